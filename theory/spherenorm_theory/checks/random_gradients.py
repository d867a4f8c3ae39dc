"""Laws about random gradients against float64 runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np

from spherenorm import Recipe, Rule, as_view, bind
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe, structure_of_run
from spherenorm_theory.checks.problems import RandomGradients, simulate
from spherenorm_theory.laws.equilibrium import equilibrium
from spherenorm_theory.laws.turn import turn_at_rest

TOLERANCE = 0.02
"""Relative, on |w| and on the effective step.

The formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of relative size
sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of
relative variance 2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as
many steps to settle); and the error of the mean over 64 units and the run, below 0.5 %.
"""

SHAPE = (64, 256)
"""Of the weight: units, and the entries of each."""


@dataclass(frozen=True)
class RunCheck:
    """The values that a law predicts, beside those of a run.

    Attributes:
        name: of the law and of the run.
        values: (predicted, measured) by quantity.
        tolerance: relative, on each of them.

    Example:
        >>> print(RunCheck("ours", {"|w|": (2.0, 2.01)}, 0.02))
        ours: |w| 2 predicted, 2.01 measured; off by 0.50% (tolerance 2.00%)
    """

    name: str
    values: Mapping[str, tuple[float, float]]
    tolerance: float

    @property
    def error(self) -> float:
        """The greatest relative difference; nan if one of them is."""
        off = [abs(measured / predicted - 1) for predicted, measured in self.values.values()]
        return float(np.max(off))  # (max() would drop a nan that is not the first)

    @property
    def passed(self) -> bool:
        """True if all values agree within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        values = (f"{n} {a:.6g} predicted, {b:.6g} measured" for n, (a, b) in self.values.items())
        off = f"off by {self.error:.2%} (tolerance {self.tolerance:.2%})"
        return f"{self.name}: {'; '.join([*values, off])}"

    __repr__ = __str__


def _measure(
    rule: Rule, source: RandomGradients, warm_up: int, steps: int, seed: int
) -> tuple[float, float, float]:
    """Root mean squares of |w|, of the effective step and of |w| |g| over units and steps."""
    view, found = as_view(source.view), list[list[float]]()
    for each in islice(simulate(repeat(rule, warm_up + steps), source, seed), warm_up, None):
        inputs, new = each["w"]
        turned = new / view.norm(new) - inputs.weight / view.norm(inputs.weight)
        norm, turn, grad = (view.inner(x, x) for x in (inputs.weight, turned, inputs.grad))
        found.append([x.mean().item() for x in (norm, turn, norm * grad)])
    norm, turn, gamma = np.sqrt(np.mean(found, 0)).tolist()
    return norm, turn, gamma


def check_equilibrium(
    recipe: str | Recipe,
    *,
    shape: tuple[int, ...] = SHAPE,
    steps: int = 600,
    warm_up: int = 600,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` with weight decay under random gradients, against its equilibrium law.

    Args:
        recipe: as for `equilibrium`.
        shape: of the weight: one unit per index of dimension 0; for an orthogonal factor, one
            matrix.
        steps, warm_up: how many are measured, and how many go before, from half the predicted
            |w|^2.
        seed: of the weight and the gradients.
        hyper_parameters: of the run; lr * weight_decay * warm_up should be some units.

    Raises:
        NoEquilibriumError: the law has no equilibrium.

    Example:
        >>> check_equilibrium("sgdw", lr=0.1, weight_decay=0.1, momentum=0.9).passed
        True
    """
    law = equilibrium(recipe, **structure_of_run(recipe, hyper_parameters))
    values = law.traced.values(**hyper_parameters)
    whole = law.factor is not None
    entries = math.prod(shape if whole else shape[1:])
    unit = shape if whole else entries
    expected = law.squared_norm(values, unit, math.sqrt(entries - 1))
    view = "layer" if whole else "channel"
    source = RandomGradients(shape, view, norm=math.sqrt(expected / 2))
    rule = law.traced.recipe(**hyper_parameters)
    norm, turn, gamma = _measure(rule, source, warm_up, steps, seed)
    pairs = {
        "|w|": (law.squared_norm(values, unit, gamma) ** 0.5, norm),
        "effective step": (law.rotation(values, shape), turn),
    }
    return RunCheck(f"{law.name} on random gradients", pairs, TOLERANCE)


def check_turn(
    recipe: str | Recipe,
    *,
    shape: tuple[int, ...] = SHAPE,
    view: str = "channel",
    steps: int = 600,
    warm_up: int = 600,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` under random gradients, against its turn at rest.

    Args:
        recipe: as for `turn_at_rest`.
        shape, steps, warm_up, seed: as for `check_equilibrium`.
        view: of the units; a recipe that has a `view` takes it, too.
        hyper_parameters: of the run.

    Raises:
        NoEquilibriumError: the law has no turn.

    Example:
        >>> check_turn("adamh", lr=0.05, betas=(0.9, 0.99)).passed
        True
    """
    function = resolve_recipe(recipe)
    if "view" in bind(function).defaults:
        hyper_parameters = {"view": view, **hyper_parameters}
    predicted = turn_at_rest(recipe, shape=shape, **hyper_parameters)
    rule, source = function(**hyper_parameters), RandomGradients(shape, view)
    _, chord, _ = _measure(rule, source, warm_up, steps, seed)
    return RunCheck(f"{recipe}", {"turn": (predicted, 2 * math.asin(chord / 2))}, TOLERANCE)
