"""Intervals of real numbers, in which hyper-parameters must lie."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_SPELLING = re.compile(r"([\[(])(\S+), (\S+)([\])])")


@dataclass(frozen=True)
class Interval:
    """The real numbers between two ends.

    Args:
        low: the lower end.
        high: the upper end.
        open_low: the lower end does not belong to it.
        open_high: the upper end does not belong to it.

    Example:
        >>> Interval.parse("[0, 1)")
        Interval(low=0.0, high=1.0, open_low=False, open_high=True)
        >>> 0 in Interval.parse("[0, 1)"), 1 in Interval.parse("[0, 1)")
        (True, False)
        >>> print(Interval.parse("(0, inf)"))
        (0, ∞)
    """

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    @classmethod
    def parse(cls, text: str) -> Interval:
        """The interval written as `text`, such as "[0, 1)" or "(0, inf)".

        Raises:
            ValueError: the text is no interval.
        """
        match = _SPELLING.fullmatch(text)
        if match is None:
            raise ValueError(f'an interval is written as "[0, 1)" or "(0, inf)", got {text!r}')
        return cls(float(match[2]), float(match[3]), match[1] == "(", match[4] == ")")

    def __contains__(self, value: float) -> bool:
        """Tell if `value` lies in the interval; nan lies in none."""
        above = self.low < value if self.open_low else self.low <= value
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{left}{_shown(self.low)}, {_shown(self.high)}{right}"


def _shown(end: float) -> str:
    return f"{end:g}" if math.isfinite(end) else "∞" if end > 0 else "-∞"
