"""`Search`, and the points of a search: a list, a grid, or Halton's sequence.

Every optimizer gets the same number of them, however many hyper-parameters it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spherenorm.support import unknown_name

Ranges = Mapping[str, tuple[float, float]]
"""For each hyper-parameter the bounds of a logarithmic range."""

METHODS = ("grid", "halton")

Point = Mapping[str, float]


def points(ranges: Ranges, count: int, method: str = "halton") -> list[dict[str, float]]:
    """`count` points in the ranges, the same on every call.

        points({"lr": (1e-3, 1e-1)}, 3, "grid")  # lr = 0.001, 0.01, 0.1

    Args:
        ranges: names and bounds.
        count: the number of points; for "grid" the n-th power of an integer, in n dimensions.
        method: "grid", spaced logarithmically; "halton", a quasi-random sequence that fills the
            ranges evenly at any length.

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


END = 0.05
"""The share of a logarithmic range that counts as its end."""

EDGE, OUTERMOST = "edge", "outermost"
"""Marks of a best value: the search ends there; no trial lies beyond it, but the range goes on."""

Axis = tuple[str, tuple[float, ...]]
"""A hyper-parameter with the values that are tried first; arms of a family share it."""


@dataclass(frozen=True)
class Search:
    """The points that an arm tries.

        Search({"lr": [0.01, 0.1, 1.0]})  # these values, and more where the best is at an end
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
    def axes(self) -> list[Axis]:
        """The lists of two or more values, which may grow."""
        listed = {} if self.trials is not None else self.over
        return [(name, tuple(values)) for name, values in listed.items() if len(values) > 1]

    def on(self, axes: Mapping[Axis, tuple[float, ...]]) -> Search:
        """The search with its axes as they have grown."""
        grown = {axis[0]: axes.get(axis, axis[1]) for axis in self.axes}
        return replace(self, over={**self.over, **grown})

    @property
    def points(self) -> list[Point]:
        """Every combination of the values, or so many trials in the ranges."""
        if self.trials is not None:
            return list(points(self.ranges, self.trials, self.method))
        rows = itertools.product(*self.over.values())
        return [dict(zip(self.over, row, strict=True)) for row in rows]

    def mark(self, name: str, value: float, values: Sequence[float]) -> str:
        """`EDGE` or `OUTERMOST` if no trial lies beyond a value on one side; "" for others.

        Args:
            values: those of all trials that have ended.
        """
        if len(set(values)) < 2 or min(values) < value < max(values):
            return ""
        if name not in self.ranges:
            return EDGE
        low, high = map(math.log, self.ranges[name])
        to_end = min(math.log(value) - low, high - math.log(value))
        return EDGE if to_end <= END * (high - low) else OUTERMOST


def longer(values: tuple[float, ...], *, low: bool, high: bool) -> tuple[float, ...]:
    """The values and one more at an end, by the ratio of the last two there, to three digits.

    An end with a 0 beside it, or that is one, has no ratio and does not grow.

    >>> longer((0.01, 0.03, 0.1), low=False, high=True)
    (0.01, 0.03, 0.1, 0.333)
    """
    first, second, before, last = *sorted(values)[:2], *sorted(values)[-2:]
    below = (float(f"{first * first / second:.3g}"),) if low and first and second else ()
    above = (float(f"{last * last / before:.3g}"),) if high and before and last else ()
    return (*below, *values, *above)
