"""Predictions of the theory for weights in equilibrium, at given hyper-parameters of a recipe."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spherenorm import Bound
from spherenorm_experiments.analysis import Result
from spherenorm_experiments.core import load_recipe

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True)
class Prediction:
    """Step and norm of a weight in equilibrium, as the theory derives them from a recipe's code.

    For a small product of learning rate and weight decay the step is

        sqrt(2 eta lambda / (1 + beta))               for SGD with momentum,
        sqrt(2 eta lambda (1 - beta) / (1 + beta))    for AdamW (Kosson et al. 2023),
        sqrt(2 eta lambda')                           for a projected step,

    as a projected step adds only its own square. lambda' is the decay that reaches an invariant
    weight: ratio lambda / (1 - beta) for SGDP and ratio lambda for AdamP.

    Attributes:
        step: the root mean square of the effective step.
        fourth_power: |w|^4 is this times what `scale` names.
        scale: an entry of the task's summary: gamma_squared for a step in proportion to the
            gradient, whose size gamma at |w| = 1 is the task's; dimension_squared for one whose
            size only depends on the number of entries.
    """

    step: float
    fourth_power: float
    scale: str

    def norm(self, item: Result) -> float | None:
        """The norm of a run, as the fourth root of the mean of |w|^4; None if it diverged."""
        scale = item.summary[self.scale]
        return None if scale is None else float((self.fourth_power * scale) ** 0.25)


def predict(recipe: str, hyper_parameters: Mapping[str, Any]) -> Prediction | None:
    """The prediction at these hyper-parameters.

    None for a recipe that has no law, such as one that keeps the norm constant, and for
    hyper-parameters without an equilibrium.

    Raises:
        RecipeError: there is no such recipe.
    """
    from spherenorm_theory.algebra import DIMENSION  # sympy takes a second to import
    from spherenorm_theory.laws import GAMMA

    bound, found = _equilibrium_of(recipe)
    if found is None:
        return None
    values = {**bound.defaults, **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    fourth_power = found.fourth_power.subs({GAMMA: 1, DIMENSION: 1})
    step, norm = (
        formula.subs({symbol: values.get(symbol.name, symbol) for symbol in formula.free_symbols})
        for formula in (found.squared_rotation, fourth_power)
    )
    if any(number.free_symbols or not number.is_positive for number in (step, norm)):
        return None  # a case left open, or no decay
    scale = "gamma_squared" if found.fourth_power.has(GAMMA) else "dimension_squared"
    return Prediction(math.sqrt(float(step)), float(norm), scale)


@functools.cache
def _equilibrium_of(recipe: str) -> tuple[Bound, Any]:
    """The recipe and its law, in symbols; None for a recipe that has none."""
    from spherenorm_theory import equilibrium

    bound = load_recipe(recipe)
    # The closed form of a preconditioned recipe needs eps = 0, that of SGD no Nesterov step.
    given = {"eps": 0.0} if "betas" in bound.defaults else {}
    try:
        return bound, equilibrium(bound.recipe, **given)
    except Exception:  # NoEquilibriumError, or the trace of a recipe of one's own failed
        return bound, None
