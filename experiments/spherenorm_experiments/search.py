"""The points of a hyper-parameter search: a grid, or Halton's sequence.

Every optimizer gets the same number of them, however many hyper-parameters it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from spherenorm.support import unknown_name

Ranges = Mapping[str, tuple[float, float]]
"""For each hyper-parameter the bounds of a logarithmic range."""

METHODS = ("grid", "halton")


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
