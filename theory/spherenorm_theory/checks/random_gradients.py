"""Laws about random gradients against float64 runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from spherenorm import Recipe, Update, View, as_view, bind
from spherenorm import rules as r
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe, structure_of_run
from spherenorm_theory.algebra.symbols import Norm
from spherenorm_theory.checks.problems import RandomGradients
from spherenorm_theory.checks.runs import Transition, simulate
from spherenorm_theory.laws.detection import false_positive_rate
from spherenorm_theory.laws.equilibrium import equilibrium
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.mean_field import drop_transients
from spherenorm_theory.laws.turn import growth_ratio, turn_at_rest

TOLERANCE = 0.02
"""Relative, on |w| and on the effective step.

The formula leaves out, for d = 256: fluctuations of |g|^2 and of <m, g>, of relative size
sqrt(2 / d), which enter by their squares (0.4 % each); those of an entrywise second moment, of
relative variance 2 (1 - beta2) / (1 + beta2), 1 % at beta2 = 0.99 (a longer memory would take as
many steps to settle); and the error of the mean over 64 units and the run, below 0.5 %.
"""

RATIO_TOLERANCE = 0.005
"""Relative, on the growth ratio.

600 steps leave some of the first and the last momentum, and of <m, g>, which Nesterov's ratio takes
for 0 on average: 0.2 % or less. Nesterov's ratio is 34 % from the heavy ball's.
"""

DEVIATIONS = 4
"""Standard deviations of a count: a true law is further off in one of 16000 seeds."""

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
    view = "layer" if whole else "channel"
    unit = shape if whole else math.prod(shape[1:])
    entries = math.prod(shape) if whole else math.prod(shape[1:])
    expected = law.squared_norm(values, unit, math.sqrt(entries - 1))
    source = RandomGradients(shape, view, norm=math.sqrt(expected / 2))
    rule = law.traced.recipe(**hyper_parameters)
    run = simulate(rule, source, warm_up + steps, seed)
    norm, turn, gamma = measure_rest(run, warm_up, as_view(view))
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
        shape: of the weight.
        view: of its units; a recipe that has a `view` takes it, too.
        steps, warm_up: how many are measured, and how many go before.
        seed: of the weight and the gradients.
        hyper_parameters: of the run.

    Raises:
        NoEquilibriumError: the law has no turn.

    Example:
        >>> check_turn("adamh", lr=0.05, betas=(0.9, 0.99)).passed
        True
    """
    own = {"view": view} if "view" in bind(resolve_recipe(recipe)).defaults else {}
    predicted = turn_at_rest(recipe, shape=shape, **own, **hyper_parameters)
    rule = resolve_recipe(recipe)(**own, **hyper_parameters)
    run = simulate(rule, RandomGradients(shape, view), warm_up + steps, seed)
    _, chord, _ = measure_rest(run, warm_up, as_view(view))
    return RunCheck(f"{recipe}", {"turn": (predicted, 2 * math.asin(chord / 2))}, TOLERANCE)


def measure_rest(
    transitions: Iterator[dict[str, Transition]], warm_up: int, view: View
) -> tuple[float, float, float]:
    """The root mean squares of |w|, of the effective step and of |w| |g| after the warm-up."""
    norms, turns, scales = [], [], []
    for step in islice(transitions, warm_up, None):
        weight, grad, new = step["w"].weight, step["w"].grad, step["w"].new_weight
        turned = new / view.norm(new) - weight / view.norm(weight)
        squared = view.inner(weight, weight)
        norms.append(squared.mean().item())
        turns.append(view.inner(turned, turned).mean().item())
        scales.append((view.inner(grad, grad) * squared).mean().item())
    norm, turn, gamma = (float(np.mean(values)) ** 0.5 for values in (norms, turns, scales))
    return norm, turn, gamma


def check_ratio(
    recipe: str | Recipe,
    *,
    steps: int = 600,
    warm_up: int = 600,
    shape: tuple[int, ...] = (16, 256),
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` under random tangent gradients of length 1, against its growth ratio.

    Measured is sum (|w'|^2 - (1 - kappa)^2 |w|^2) / sum |s|^2 over steps and units, after the
    warm-up.

    Args:
        recipe: as for `growth_ratio`.
        steps, warm_up, shape, seed: as for `check_equilibrium`.
        hyper_parameters: of the run; with coupled decay the ratio is a function of the means of
            |w|^2 and |s|^2, which are then measured.

    Example:
        >>> print(check_ratio("sgd", momentum=0.9, weight_decay=0.0, dampening=0.0))
        sgd: growth / sum |s|^2 19 predicted, 18.9929 measured; off by 0.04% (tolerance 0.50%)
    """
    law = norm_growth(recipe, **structure_of_run(recipe, hyper_parameters))
    traced, view = law.step.traced, as_view("channel")
    values = traced.values(**hyper_parameters)
    keep = 1 - float(drop_transients(law.kappa, law.step).subs(values))
    rule = traced.recipe(**hyper_parameters)
    source = RandomGradients(shape, relative=False)
    grown = moved = squared = 0.0
    for step in islice(simulate(rule, source, warm_up + steps, seed), warm_up, None):
        weight, new = step["w"].weight, step["w"].new_weight
        drive, before = new - keep * weight, view.inner(weight, weight)
        grown += float((view.inner(new, new) - keep**2 * before).sum())
        moved += float(view.inner(drive, drive).sum())
        squared += float(before.sum())
    lengths = {Norm("w"): math.sqrt(squared), Norm("s"): math.sqrt(moved)}
    predicted = float(growth_ratio(law).subs(values).subs(lengths))
    pairs = {"growth / sum |s|^2": (predicted, grown / moved)}
    return RunCheck(law.name, pairs, RATIO_TOLERANCE)


def count_false_positives(
    delta: float = 0.1,
    dimension: int = 64,
    channels: int = 1,
    view: str = "channel",
    trials: int = 20_000,
    seed: int = 0,
) -> RunCheck:
    """Count how often the test flags a weight for a Gaussian gradient, in one view.

    The count is binomial. Its deviation is taken as at least one count, where none is expected.

    Args:
        delta: the threshold of the test.
        dimension, channels: the weight has shape (channels, dimension).
        view: "channel" or "layer".
        trials: gradients.
        seed: of the weight and the gradients.

    Example:
        >>> count_false_positives(trials=1000).passed
        True
    """
    generator = Generator().manual_seed(seed)
    weight, grads = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((channels, dimension), (trials, channels, dimension))
    )
    test = r.ScaleInvarianceTest(delta, views=(view,))

    def flag(grad: Tensor) -> Tensor:
        update, _ = test.update(Update(weight, grad, grad), {})
        assert update.invariance is not None
        return update.invariance.flags[0].any()

    count = int(torch.func.vmap(flag)(grads).sum())
    unit, units = (channels * dimension, 1) if view == "layer" else (dimension, channels)
    rate = false_positive_rate(delta, unit, units)
    deviation = max((rate * (1 - rate) * trials) ** 0.5, 1.0)
    pairs = {"rate": (rate, count / trials)}
    return RunCheck(f"{trials} random gradients", pairs, DEVIATIONS * deviation / (rate * trials))
