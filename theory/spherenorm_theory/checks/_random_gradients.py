"""Laws about random gradients against float64 runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from spherenorm import Recipe, Update, as_view
from spherenorm import rules as r
from spherenorm_theory.algebra import resolve_recipe, structure_of
from spherenorm_theory.checks._problems import (
    Problem,
    UnitGradients,
    Weights,
    noise,
    random_readout,
)
from spherenorm_theory.checks._simulation import Transition, simulate
from spherenorm_theory.laws import (
    NoEquilibriumError,
    S,
    W,
    drop_transients,
    equilibrium,
    false_positive_rate,
    growth_ratio,
    norm_growth,
    turn_at_rest,
)

CHANNEL = as_view("channel")

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

SOURCES = {"noise": noise, "network": random_readout}


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
    source: str = "noise",
    *,
    steps: int = 600,
    warm_up: int = 600,
    units: int = 64,
    dimension: int = 256,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` with weight decay under random gradients, against its equilibrium law.

    Args:
        recipe: as for `equilibrium`.
        source: "noise" or "network", the losses of `noise` and `random_readout`.
        steps, warm_up: how many are measured, and how many go before, from half the predicted
            |w|^2.
        units, dimension, seed: the weight has shape (units, dimension), drawn from the seed.
        hyper_parameters: of the run; lr * weight_decay * warm_up should be some units.

    Raises:
        ValueError: another source.
        NoEquilibriumError: the law has no equilibrium, or leaves a case open.

    Example:
        >>> check_equilibrium("sgdw", lr=0.1, weight_decay=0.1, momentum=0.9).passed
        True
    """
    if source not in SOURCES:
        raise ValueError(f'source must be "noise" or "network", got {source!r}')
    law = equilibrium(recipe, **structure_of(hyper_parameters))
    if law.open:
        raise NoEquilibriumError(f"{law.name}: not a number: {'; '.join(law.open)}")
    values = law.traced.values(**hyper_parameters)
    squared_norm = partial(law.squared_norm, values, dimension)
    problem = _start_near_equilibrium(SOURCES[source](units, dimension), squared_norm)
    rule = law.traced.recipe(**hyper_parameters)
    norm, turn, gamma = _measure_rest(simulate(rule, problem, warm_up + steps, seed), warm_up)
    pairs = {
        "|w|": (squared_norm(gamma) ** 0.5, norm),
        "effective step": (law.rotation(values), turn),
    }
    return RunCheck(f"{law.name} on {source}", pairs, TOLERANCE)


def check_turn(
    recipe: str | Recipe,
    *,
    steps: int = 600,
    warm_up: int = 600,
    units: int = 64,
    dimension: int = 256,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` under random gradients, against its turn at rest.

    Args:
        recipe: as for `turn_at_rest`; its view is "channel".
        steps, warm_up: how many are measured, and how many go before.
        units, dimension, seed: as for `check_equilibrium`.
        hyper_parameters: of the run.

    Raises:
        NoEquilibriumError: the law has no turn.

    Example:
        >>> check_turn("adamh", lr=0.05, betas=(0.9, 0.99), view="channel").passed
        True
    """
    predicted = turn_at_rest(recipe, **hyper_parameters)
    rule = resolve_recipe(recipe)(**hyper_parameters)
    source = noise(units, dimension)
    _, chord, _ = _measure_rest(simulate(rule, source, warm_up + steps, seed), warm_up)
    return RunCheck(f"{recipe}", {"turn": (predicted, 2 * math.asin(chord / 2))}, TOLERANCE)


def _start_near_equilibrium(problem: Problem, squared_norm: Callable[[float], float]) -> Problem:
    """The problem, started at half of the |w|^2 that is predicted from its first gradient."""

    def start(generator: Generator) -> Weights:
        weights = problem.start(generator)
        weight, grad = weights["w"], problem.gradients(weights, generator)["w"]
        gamma = float((grad.square().sum(1) * weight.square().sum(1)).mean().sqrt())
        return {"w": weight / CHANNEL.norm(weight) * (0.5 * squared_norm(gamma)) ** 0.5}

    return replace(problem, start=start)


def _measure_rest(
    transitions: Iterator[dict[str, Transition]], warm_up: int
) -> tuple[float, float, float]:
    """The root mean squares of |w|, of the effective step and of |w| |g| after the warm-up."""
    norms, turns, scales = [], [], []
    for step in islice(transitions, warm_up, None):
        weight, grad, new = step["w"].weight, step["w"].grad, step["w"].new_weight
        turned = new / CHANNEL.norm(new) - weight / CHANNEL.norm(weight)
        squared = CHANNEL.inner(weight, weight)
        norms.append(squared.mean().item())
        turns.append(CHANNEL.inner(turned, turned).mean().item())
        scales.append((CHANNEL.inner(grad, grad) * squared).mean().item())
    norm, turn, gamma = (float(np.mean(values)) ** 0.5 for values in (norms, turns, scales))
    return norm, turn, gamma


def check_ratio(
    recipe: str | Recipe,
    *,
    steps: int = 600,
    warm_up: int = 600,
    units: int = 16,
    dimension: int = 256,
    seed: int = 0,
    **hyper_parameters: Any,
) -> RunCheck:
    """Run `recipe` under random tangent gradients of length 1, against its growth ratio.

    Measured is sum (|w'|^2 - (1 - kappa)^2 |w|^2) / sum |s|^2 over steps and units, after the
    warm-up.

    Args:
        recipe: as for `growth_ratio`.
        steps, warm_up, units, dimension, seed: as for `check_equilibrium`.
        hyper_parameters: of the run; with coupled decay the ratio is a function of the means of
            |w|^2 and |s|^2, which are then measured.

    Example:
        >>> print(check_ratio("sgd", momentum=0.9))
        sgd: growth / sum |s|^2 19 predicted, 18.9929 measured; off by 0.04% (tolerance 0.50%)
    """
    law = norm_growth(recipe, **structure_of(hyper_parameters))
    traced = law.step.traced
    values = traced.values(**hyper_parameters)
    keep = 1 - float(drop_transients(law.kappa, law.step).subs(values))
    rule = traced.recipe(**hyper_parameters)
    source = UnitGradients(units, dimension)
    grown = moved = squared = 0.0
    for step in islice(simulate(rule, source, warm_up + steps, seed), warm_up, None):
        weight, new = step["w"].weight, step["w"].new_weight
        drive, before = new - keep * weight, CHANNEL.inner(weight, weight)
        grown += float((CHANNEL.inner(new, new) - keep**2 * before).sum())
        moved += float(CHANNEL.inner(drive, drive).sum())
        squared += float(before.sum())
    predicted = float(growth_ratio(law).subs(values).subs({W: squared, S: moved}))
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
