"""The norm at which weight decay holds weights, and the turn per step that follows.

spherenorm run experiments/studies/equilibrium.py
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from spherenorm import Bound
from spherenorm_experiments.lookup import load_recipe
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, RecordedNumber, Result, Runs, Trial, number
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, Row, Table
from spherenorm_experiments.verdict import Claim, Statement, slug

MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.99]}
SGD_POINTS = ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))
OPTIMIZERS: dict[str, tuple[Mapping[str, Any], Sequence[tuple[float, float]]]] = {
    "SGD": (MOMENTUM, SGD_POINTS),
    "SGDP": (MOMENTUM, SGD_POINTS),
    "AdamW": (BETAS, ((0.01, 1.0), (0.02, 1.0), (0.01, 3.0), (0.02, 3.0))),
    "AdamP": (BETAS, ((0.01, 10.0), (0.02, 10.0), (0.01, 30.0), (0.02, 30.0))),
}
"""Fixed hyper-parameters, and pairs of learning rate and weight decay, by the recipes' names."""

ALLOWED = 15.0
"""Percent by which a prediction may be off."""

NOTE = (
    "Step: root mean square. Norm: fourth root of the mean of ‖w‖⁴; its law needs how large "
    "gradients are at ‖w‖ = 1 (SGD, SGDP) or how many weights a unit has (AdamW, AdamP), both "
    "measured at the end. Drift: the norm over the last quarter of the steps against the quarter "
    "before. No law: the theory has none for the recipe, or none with these settings."
)


class Prediction(NamedTuple):
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
        return _fourth_root(item.summary[self.scale], self.fourth_power)


def _fourth_root(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else float((factor * value) ** 0.25)


def predict(recipe: str, hyper_parameters: Mapping[str, Any]) -> Prediction | None:
    """The prediction at these hyper-parameters.

    None for a recipe that has no law, such as one that keeps the norm constant, and for
    hyper-parameters without an equilibrium.

    Raises:
        RecipeError: there is no such recipe.
    """
    from spherenorm_theory.step import GAMMA
    from spherenorm_theory.symbols import DIMENSION  # sympy takes a second to import

    bound, law = _law_of(recipe)
    if law is None:
        return None
    values = {**bound.defaults, **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    fourth_power = law.fourth_power.subs({GAMMA: 1, DIMENSION: 1})
    step, norm = (
        formula.subs({symbol: values.get(symbol.name, symbol) for symbol in formula.free_symbols})
        for formula in (law.squared_effective_step, fourth_power)
    )
    if any(number.free_symbols or not number.is_positive for number in (step, norm)):
        return None  # a case left open, or no decay
    scale = "gamma_squared" if law.fourth_power.has(GAMMA) else "dimension_squared"
    return Prediction(math.sqrt(float(step)), float(norm), scale)


@functools.cache
def _law_of(recipe: str) -> tuple[Bound, Any]:
    """The recipe and its law, in symbols; None for a recipe that has none."""
    from spherenorm_theory import equilibrium

    bound = load_recipe(recipe)
    # The closed form of a preconditioned recipe needs eps = 0, that of SGD no Nesterov step.
    settings = {"eps": 0.0} if "betas" in bound.defaults else {}
    try:
        return bound, equilibrium(bound.recipe, **settings)
    except Exception:  # NoEquilibriumError, or the trace of a recipe of one's own failed
        return bound, None


def _predict_step(run: Result) -> float | None:
    """Return the effective step of the law at the settings of a run; None if there is no law."""
    law = predict(run.spec.recipe, run.spec.hyper_parameters)
    return None if law is None else law.step


def _predict_norm(run: Result) -> float | None:
    """Return the norm of the law at the settings of a run; None if there is no law."""
    law = predict(run.spec.recipe, run.spec.hyper_parameters)
    return None if law is None else law.norm(run)


Number = Callable[[Result], float | None]
QUANTITIES: dict[str, tuple[Number, Number]] = {
    "effective step": (
        RecordedNumber("predicted effective step", _predict_step),
        lambda run: run.summary["effective_step_rms"],
    ),
    "norm": (
        RecordedNumber("predicted norm", _predict_norm),
        lambda run: _fourth_root(run.summary["fourth_power_late"]),
    ),
}
"""The number that the law predicts, and the one that the run measures."""


def _claim(quantity: str, name: str) -> Claim:
    predicted, measured = QUANTITIES[quantity]

    def off(runs: Runs) -> pd.Series:
        """By how many percent at the worst point, by seed; empty if a point has no law."""
        complete = runs.complete_grid("", name).set_index("seed")
        law = number(complete, predicted, worst=1.0)
        if law.isna().any():
            return pd.Series(dtype=float)
        share = number(complete, measured, worst=math.inf) / law
        return 100 * (share - 1).abs().groupby("seed").max()

    return Claim(
        f"{slug(quantity)}.{slug(name)}", f"< {ALLOWED:g}", off,
        f"{name}: the measured {quantity} in equilibrium is within 15 % of the prediction, at the "
        "worst of four points", Statement("ours", "ours; Kosson et al. 2023"), unit="% off",
        limits=(0.0, math.inf),
    )  # fmt: skip


class EquilibriumStudy(Study):
    """Equilibrium: weight decay and step size alone decide how far weights turn

    A network of scale-invariant weights only, half of its labels random, constant learning rate:
    the norm settles where decay and steps balance, and the effective step there follows from the
    hyper-parameters alone; the norm does too, up to the size of the gradients. The laws are those
    that `spherenorm_theory` derives from the code of each recipe, for gradients that are random and
    orthogonal to the weight. All points of an optimizer train at once. Averages are over the second
    half of the steps.
    """

    name = "equilibrium"
    seeds = {"smoke": 1, "small": 3, "full": 10}  # noqa: RUF012
    claims = tuple(_claim(quantity, name) for quantity in QUANTITIES for name in OPTIMIZERS)

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials = []
        for name, (fixed, pairs) in OPTIMIZERS.items():
            rates, decays = (list(column) for column in zip(*pairs, strict=True))
            setting = {**fixed, "lr": rates, "weight_decay": decays}
            trials += self.make_trials(
                plan,
                Place("", name),
                "invariant_mlp:Mlp",
                name.lower(),
                setting,
                schedule="constant",
                probes=(),
            )
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for place in runs.places:
            for _, point_runs in runs.all_runs(*place).groupby("point", sort=False):
                point = point_runs.run.iloc[0].spec.hyper_parameters
                cells = [Cell(point.get(key), "g") for key in ("lr", "weight_decay")]
                for keys in QUANTITIES.values():
                    law, measured = (float(number(point_runs, key).mean()) for key in keys)
                    cells += [Cell(law, ".4f", missing="no law"),
                              Cell(measured, ".4f", missing="diverged"),
                              Cell(100 * (measured / law - 1), "+.1f", missing="")]  # fmt: skip
                drift = number(point_runs, lambda item: item.summary["norm_drift"]).mean()
                rows.append([place.arm, *cells, Cell(100 * float(drift), "+.1f")])
        columns = ["optimizer", "lr", "weight decay"]
        for quantity in ("step", "norm"):
            columns += [f"predicted {quantity}", "measured", "off by %"]
        title = "Effective step and norm in equilibrium"
        return [Table(title, [*columns, "still drifting %"], rows, NOTE)] if rows else []
