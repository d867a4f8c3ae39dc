"""Hyper-parameter search with an equal number of trials for every optimizer, however many hyper-parameters it has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import qmc

from experiments.extras import needed
from experiments.spec import nearest

__all__ = ["METHODS", "points"]

Space = Mapping[str, tuple[float, float]]
"""For each hyper-parameter the bounds of a logarithmic range."""

Told = Sequence[tuple[Mapping[str, float], float]]
"""Points with their scores."""

METHODS = ("grid", "halton", "optuna")


def points(
    space: Space, count: int, method: str = "halton", told: Told = ()
) -> list[dict[str, float]]:
    """`count` points of the space, the same on every call.

    Args:
        space: names and bounds.
        count: how many; for "grid" a power of the number of dimensions, or any number for one dimension.
        method: "grid", spaced logarithmically; "halton", a quasi-random sequence that fills the space evenly at any
            length; "optuna", a tree-structured Parzen estimator that learns from what was told (extra: tune).
        told: for "optuna", earlier points with their scores (higher is better): new points are proposed after these.

    Raises:
        ValueError: an unknown method, a range that is not positive and rising, or a grid that does not fill the space.
    """
    for name, (low, high) in space.items():
        if not 0 < low < high:
            raise ValueError(
                f"the range of {name} must be positive and rising, got ({low}, {high})"
            )
    if method == "grid":
        return _grid(space, count)
    if method == "halton":
        # Unscrambled, its first point is the corner 0; the second one on fills the middle first.
        unit = qmc.Halton(len(space), scramble=False).random(count + 1)[1:]
        return [
            {name: _at(space[name], float(u)) for name, u in zip(space, row, strict=True)}
            for row in unit
        ]
    if method == "optuna":
        return _optuna(space, count, told)
    raise ValueError(f"no search method is named {method!r}; {nearest(method, METHODS)}")


def _at(bounds: tuple[float, float], share: float) -> float:
    low, high = bounds
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


def _grid(space: Space, count: int) -> list[dict[str, float]]:
    side = round(count ** (1 / len(space)))
    if side ** len(space) != count or side < 2:
        raise ValueError(
            f"a grid of {count} points does not fill {len(space)} dimensions; give a power, such as {2 ** len(space)}"
        )
    axes = [np.geomspace(*bounds, side).tolist() for bounds in space.values()]
    return [dict(zip(space, row, strict=True)) for row in itertools.product(*axes)]


def _optuna(space: Space, count: int, told: Told) -> list[dict[str, float]]:
    """A seeded sampler that has seen everything told so far proposes the same points each time it is asked."""
    optuna = needed("optuna", "the search method optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=len(told), n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {
        name: optuna.distributions.FloatDistribution(*bounds, log=True)
        for name, bounds in space.items()
    }
    for params, score in told:
        value = score if math.isfinite(score) else -1e9
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(params), distributions=dict(distributions), value=value
            )
        )
    return [dict(study.ask(dict(distributions)).params) for _ in range(count)]
