"""The points of a hyper-parameter search: a grid, Halton's sequence, or a sampler that learns.

Every optimizer gets the same number of them, however many hyper-parameters it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from spherenorm.support import unknown_name
from spherenorm_experiments.core._errors import require_extra

Ranges = Mapping[str, tuple[float, float]]
"""For each hyper-parameter the bounds of a logarithmic range."""

Told = Sequence[tuple[Mapping[str, float], float]]
"""Points with their scores."""

METHODS = ("grid", "halton", "optuna")


def points(
    ranges: Ranges, count: int, method: str = "halton", told: Told = ()
) -> list[dict[str, float]]:
    """`count` points in the ranges, the same on every call.

        points({"lr": (1e-3, 1e-1)}, 3, "grid")  # lr = 0.001, 0.01, 0.1

    Args:
        ranges: names and bounds.
        count: the number of points; for "grid" the n-th power of an integer, in n dimensions.
        method: "grid", spaced logarithmically; "halton", a quasi-random sequence that fills the
            ranges evenly at any length; "optuna", a tree-structured Parzen estimator that learns
            from `told` (extra: tune).
        told: for "optuna", earlier points with their scores (higher is better).

    Raises:
        ValueError: an unknown method, a range that is not positive and rising, or a grid that does
            not fill the dimensions.
    """
    for name, (low, high) in ranges.items():
        if not 0 < low < high:
            raise ValueError(
                f"the range of {name} must be positive and rising, got ({low}, {high})"
            )
    if method == "grid":
        return _grid(ranges, count)
    if method == "halton":
        return _halton(ranges, count)
    if method == "optuna":
        return _optuna(ranges, count, told)
    raise unknown_name("search method", method, METHODS)


def _halton(ranges: Ranges, count: int) -> list[dict[str, float]]:
    from scipy.stats import qmc  # half a second to import, which workers do without

    # Unscrambled, its first point is the corner 0; the second one on fills the middle first.
    unit = qmc.Halton(len(ranges), scramble=False).random(count + 1)[1:]
    return [
        {name: _at(ranges[name], float(u)) for name, u in zip(ranges, row, strict=True)}
        for row in unit
    ]


def _at(bounds: tuple[float, float], share: float) -> float:
    low, high = bounds
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


def _grid(ranges: Ranges, count: int) -> list[dict[str, float]]:
    side = round(count ** (1 / len(ranges)))
    if side ** len(ranges) != count or side < 2:
        lack = f"a grid of {count} points does not fill {len(ranges)} dimensions"
        raise ValueError(f"{lack}; give a power, such as {2 ** len(ranges)}")
    axes = [np.geomspace(*bounds, side).tolist() for bounds in ranges.values()]
    return [dict(zip(ranges, row, strict=True)) for row in itertools.product(*axes)]


def _optuna(ranges: Ranges, count: int, told: Told) -> list[dict[str, float]]:
    """Points of a seeded sampler that was told everything, so that it repeats itself."""
    optuna = require_extra("optuna", "the search method optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=len(told), n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {
        name: optuna.distributions.FloatDistribution(*bounds, log=True)
        for name, bounds in ranges.items()
    }
    for params, score in told:
        value = score if math.isfinite(score) else -1e9
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(params), distributions=dict(distributions), value=value
            )
        )
    return [dict(study.ask(dict(distributions)).params) for _ in range(count)]
