"""Tuning: what each optimizer's trials scored, and the point that its final runs take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spherenorm_experiments.analysis import Results

__all__ = ["Point", "Tuned", "at_end", "tuned"]

END = 0.05
"""The share of a logarithmic range that counts as its end."""

Point = Mapping[str, float]


@dataclass(frozen=True)
class Tuned:
    """The trials of one optimizer, those that have ended on every seed of the tuning.

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

    def at_edge(self, name: str, value: float) -> bool:
        """True if no value of a hyper-parameter beyond the chosen one was tried on one side."""
        tried = [] if self.best is None else [point[name] for point in self.points]
        return len(set(tried)) > 1 and not min(tried) < value < max(tried)


def at_end(value: float, bounds: tuple[float, float]) -> bool:
    """True if a logarithmic range ends at a value, up to a twentieth of the range."""
    low, high = map(math.log, bounds)
    return min(math.log(value) - low, high - math.log(value)) <= END * (high - low)


def tuned(results: Results, names: Sequence[str], seeds: Sequence[int]) -> Tuned:
    """Read the trials of one optimizer.

    Args:
        results: of its runs on the seeds of the tuning.
        names: of the tuned hyper-parameters.
        seeds: a point counts when it has ended on all of these.
    """
    scores: dict[tuple[float, ...], dict[int, float]] = {}
    for item in results:
        key = tuple(float(item.spec.hyper_parameters[name]) for name in names)
        found = None if item.diverged else item.summary.get("validation")
        score = -math.inf if found is None or not math.isfinite(found) else float(found)
        scores.setdefault(key, {})[item.spec.seed] = score
    ended = {key: by_seed for key, by_seed in scores.items() if set(seeds) <= set(by_seed)}
    points = [dict(zip(names, key, strict=True)) for key in ended]
    means = [sum(by_seed[seed] for seed in seeds) / len(seeds) for by_seed in ended.values()]
    return Tuned(points, means)
