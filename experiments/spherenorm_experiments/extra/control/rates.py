"""Loss against learning rate, seed by seed: sensitivity, plateau, best rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spherenorm_experiments.extra.control.byte_model import UNIFORM
from spherenorm_experiments.runs import Result, Runs

WITHIN = 0.02
"""Nats: rates whose loss is so near the best one are on the plateau."""

REACH = 2
"""Octaves on both sides of the best rate over which the sensitivity is taken."""


@dataclass(frozen=True)
class Curve:
    """The test losses of one seed at rates a factor 2 apart.

        >>> curve = Curve((-6.0, -5.0, -4.0), (2.0, 1.0, 1.5))
        >>> curve.sensitivity(range(3)), curve.plateau(0.5), round(curve.best, 2)
        (0.5, 1.5, -4.83)

    Attributes:
        octaves: log2 of the rates, rising.
        losses: at each; a run that diverged, or does worse than a uniform model, has its loss.
    """

    octaves: Sequence[float]
    losses: Sequence[float]

    def sensitivity(self, places: Sequence[int]) -> float:
        """The mean loss over some of the rates minus the best of these.

        Source: Wortsman et al. 2023, arXiv:2309.14322, Section 2.
        """
        chosen = [self.losses[place] for place in places]
        return sum(chosen) / len(chosen) - min(chosen)

    def plateau(self, within: float = WITHIN) -> float:
        """The octaves whose loss, linear between two rates, is near the best one.

        Args:
            within: how near, in nats.
        """
        level, width = min(self.losses) + within, 0.0
        ends = zip(self.octaves, self.losses, strict=True)
        for (left, first), (right, second) in itertools.pairwise(ends):
            low, high = sorted((first, second))
            share = 1.0 if high <= level else max(0.0, (level - low) / (high - low))
            width += (right - left) * share
        return width

    @property
    def best(self) -> float:
        """log2 of the best rate: the vertex of the parabola through the best one and those beside.

        At an end of the rates it is that end.
        """
        place = int(np.argmin(self.losses))
        if place in (0, len(self.losses) - 1):
            return self.octaves[place]
        before, here, after = self.losses[place - 1 : place + 2]
        curved = before - 2 * here + after
        step = (self.octaves[place + 1] - self.octaves[place - 1]) / 2
        return self.octaves[place] + step * (0.0 if curved == 0 else (before - after) / 2 / curved)


def loss_of(item: Result) -> float:
    """The test loss of a run in nats per byte, at most that of a uniform model."""
    score = None if item.diverged else item.summary.get("test")
    return UNIFORM if score is None else min(UNIFORM, -float(score))


def curves(runs: Runs, condition: str, arm: str) -> dict[int, Curve]:
    """The curve of each seed, over the rates at which all seeds have ended."""
    own = runs.of(condition, arm).sort_values("lr")
    return {
        int(seed): Curve([math.log2(lr) for lr in rows.lr], [loss_of(item) for item in rows.run])
        for seed, rows in own.groupby("seed")
    }


def best_place(found: dict[int, Curve]) -> int:
    """The place of the rate with the best mean loss."""
    return int(np.argmin(np.mean([curve.losses for curve in found.values()], axis=0)))


def around_best(found: dict[int, Curve]) -> range:
    """The places of the rates within `REACH` of the best mean loss.

    Fewer where the rates end: others in their place would lie further from the best, where losses
    are higher, and make the arm look more sensitive than one whose best rate is in the middle.
    """
    place, count = best_place(found), len(next(iter(found.values())).octaves)
    return range(max(0, place - REACH), min(count, place + REACH + 1))


def lacking(found: dict[int, Curve]) -> int:
    """The number of rates within `REACH` of the best that the search does not have."""
    return 2 * REACH + 1 - len(around_best(found)) if found else 0


def losses_over(found: dict[int, Curve], octaves: Sequence[float]) -> pd.Series:
    """The mean loss of each seed over these rates, which its curve has."""
    return _by_seed(
        found, lambda c: float(np.mean([c.losses[list(c.octaves).index(x)] for x in octaves]))
    )


def sensitivity(found: dict[int, Curve]) -> pd.Series:
    """Of each seed, over the rates around the best mean loss."""
    places = around_best(found) if found else range(0)
    return _by_seed(found, lambda curve: curve.sensitivity(places))


def plateau(found: dict[int, Curve]) -> pd.Series:
    """Of each seed, in octaves."""
    return _by_seed(found, Curve.plateau)


def best_octave(found: dict[int, Curve]) -> pd.Series:
    """log2 of the best rate of each seed."""
    return _by_seed(found, lambda curve: curve.best)


def _by_seed(found: dict[int, Curve], number: Callable[[Curve], float]) -> pd.Series:
    return pd.Series({seed: number(curve) for seed, curve in found.items()}, dtype=float)
