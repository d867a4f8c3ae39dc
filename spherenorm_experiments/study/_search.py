"""The search of a contender: the points that it tries, and the marks of the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spherenorm_experiments.analysis import Point, Tuned
from spherenorm_experiments.core import points

ROUND = 4
"""Trials that a sampler that learns gives at a time."""

END = 0.05
"""The share of a logarithmic range that counts as its end."""

EDGE, OUTERMOST = "edge", "outermost"
"""Marks of a best value: the search ends there; no trial lies beyond it, but the range goes on."""


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
        told = list(zip(tuned.points, tuned.scores, strict=True))
        return [*ended, *(points(self.ranges, more, "optuna", told) if more else ())]

    def mark(self, name: str, value: float, tuned: Tuned) -> str:
        """`EDGE` or `OUTERMOST` if no trial lies beyond a value on one side; "" for others."""
        tried = [] if tuned.best is None else [point[name] for point in tuned.points]
        if len(set(tried)) < 2 or min(tried) < value < max(tried):
            return ""
        if name not in self.ranges:
            return EDGE
        low, high = map(math.log, self.ranges[name])
        to_end = min(math.log(value) - low, high - math.log(value))
        return EDGE if to_end <= END * (high - low) else OUTERMOST
