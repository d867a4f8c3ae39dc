"""The search of a contender: the points that it tries, their scores, and the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.core import points

__all__ = ["EDGE", "OUTERMOST", "Point", "Search", "Tuned", "tuned"]

Point = Mapping[str, float]

ROUND = 4
"""Trials that a sampler that learns gives at a time."""

END = 0.05
"""The share of a logarithmic range that counts as its end."""

EDGE, OUTERMOST = "edge", "outermost"
"""Marks of a best value: the search ends there; no trial lies beyond it, but the range goes on."""


@dataclass(frozen=True)
class Tuned:
    """The trials of one arm, those that have ended on every seed of the tuning.

    Attributes:
        points: in the order in which they were tried.
        scores: the mean validation score of each; minus infinity if a run of it diverged or has no
            finite score.
    """

    points: Sequence[Point]
    scores: Sequence[float]

    @property
    def told(self) -> list[tuple[Point, float]]:
        return list(zip(self.points, self.scores, strict=True))

    @property
    def lost(self) -> int:
        """The number of points without a score."""
        return sum(not math.isfinite(score) for score in self.scores)

    @property
    def best(self) -> int | None:
        """The index of the point with the highest score, of several the first; None without one."""
        if self.lost == len(self.scores):
            return None
        return max(range(len(self.scores)), key=lambda i: self.scores[i])


@dataclass(frozen=True)
class Search:
    """The points that a contender tries.

        Search({"lr": [0.01, 0.1, 1.0]})  # these values
        Search({"lr": (1e-4, 1.0)}, trials=16)  # logarithmic ranges

    Attributes:
        over: of each tuned hyper-parameter its values; with `trials` the bounds of its range.
        trials: the number of points in the ranges; None for every combination of the values.
        method: of the points in ranges, a key of `METHODS`.

    Raises:
        ValueError: no hyper-parameter, or one without values.
    """

    over: Mapping[str, Sequence[float]] = field(hash=False)
    trials: int | None = None
    method: str = "halton"

    def __post_init__(self) -> None:
        if not self.over or not all(len(values) for values in self.over.values()):
            raise ValueError(f"tune needs hyper-parameters with values, got {dict(self.over)!r}")

    @property
    def names(self) -> list[str]:
        """The tuned hyper-parameters."""
        return list(self.over)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The bounds of each hyper-parameter; none if values are listed."""
        return {} if self.trials is None else {n: (v[0], v[1]) for n, v in self.over.items()}

    @property
    def count(self) -> int:
        """The number of points."""
        if self.trials is not None:
            return self.trials
        return math.prod(len(values) for values in self.over.values())

    def points(self, tuned: Tuned) -> list[Point]:
        """The points as far as they are known, those that have ended among them."""
        if self.trials is None:
            rows = itertools.product(*self.over.values())
            return [dict(zip(self.over, row, strict=True)) for row in rows]
        if self.method != "optuna":
            return list(points(self.ranges, self.trials, self.method))
        ended = list(tuned.points)[: self.trials]
        more = min(ROUND, self.trials - len(ended))
        return [*ended, *(points(self.ranges, more, "optuna", tuned.told) if more else ())]

    def place(self, name: str, value: float, tuned: Tuned) -> str:
        """A mark of a value with no trial beyond it on one side; "" for others."""
        tried = [] if tuned.best is None else [point[name] for point in tuned.points]
        if len(set(tried)) < 2 or min(tried) < value < max(tried):
            return ""
        if name not in self.ranges:
            return EDGE
        low, high = map(math.log, self.ranges[name])
        to_end = min(math.log(value) - low, high - math.log(value))
        return EDGE if to_end <= END * (high - low) else OUTERMOST


def tuned(results: Results, names: Sequence[str], seeds: Sequence[int]) -> Tuned:
    """Read the trials of one arm.

    Args:
        results: of its runs on the seeds of the tuning.
        names: of the tuned hyper-parameters.
        seeds: a point counts when it has ended on all of these.
    """
    scores: dict[tuple[float, ...], dict[int, float]] = {}
    for item in results:
        key = tuple(float(item.spec.hyper_parameters[name]) for name in names)
        noted = None if item.diverged else item.summary.get("validation")
        score = -math.inf if noted is None or not math.isfinite(noted) else float(noted)
        scores.setdefault(key, {})[item.spec.seed] = score
    ended = {key: by_seed for key, by_seed in scores.items() if set(seeds) <= set(by_seed)}
    points = [dict(zip(names, key, strict=True)) for key in ended]
    means = [sum(by_seed[seed] for seed in seeds) / len(seeds) for by_seed in ended.values()]
    return Tuned(points, means)
