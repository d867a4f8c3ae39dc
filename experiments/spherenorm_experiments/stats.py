"""Statistics of results: intervals, tests, and the correction for many of them.

Numbers only: pictures draw them, tables and claims show them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

NOISE = 1e-9
"""A difference of this size between two numbers is rounding."""

LEVEL = 0.05
"""Of every interval and every verdict: a study without any true difference has a verdict for or
against a claim with at most this probability."""

LATER = 0.2
"""The share of `LEVEL` that all later looks have together, at a claim whose seeds grew."""

POWER = 0.8
"""The probability with which a detectable effect has a verdict."""


def mean(values: Iterable[float]) -> float:
    """The mean; nan of no values."""
    known = list(values)
    return float(np.mean(known)) if known else math.nan


def deviation(values: Iterable[float]) -> float:
    """The standard deviation of a sample; nan of fewer than two values."""
    known = list(values)
    return float(np.std(known, ddof=1)) if len(known) > 1 else math.nan


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's confidence interval of the mean at `LEVEL`; nan with fewer than two values.

        mean ± t(n - 1) s / sqrt(n)

    It covers the mean of normal values as often as it says at any n, and that of differences of
    accuracies within a percent (`python -m tests.experiments.analysis.coverage`).

        >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
        [-0.484, 4.484]
    """
    if len(values) < 2:
        return math.nan, math.nan
    center = mean(values)
    half = deviation(values) / math.sqrt(len(values)) * _quantile(len(values))
    return center - half, center + half


def t_test(values: Sequence[float], bound: float) -> float:
    """The two-sided p-value of Student's test that the mean of the values is `bound`.

    Values without any spread have no t: of them the sign test decides.
    """
    known = np.asarray(values, dtype=float)
    off = abs(mean(known) - bound)
    if off < NOISE or len(known) < 2:
        return 1.0
    if np.ptp(known) < NOISE * max(1.0, float(np.abs(known).max())):
        return sign_test(len(known), 0)
    error = deviation(known) / math.sqrt(len(known))
    return float(2 * stdtr(len(known) - 1, -off / error))


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of the exact test that a win is as likely as a loss.

    >>> sign_test(6, 0)
    0.03125
    """
    count = wins + losses
    tail = sum(math.comb(count, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / float(2**count))


@dataclass(frozen=True)
class Region:
    """An open interval of means, such as those for which a claim is true."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def ends(self) -> list[float]:
        return [end for end in (self.low, self.high) if math.isfinite(end)]

    def map(self, function: Callable[[float], float]) -> Region:
        """The region between the images of the ends."""
        return Region(function(self.low), function(self.high))

    def holds(self, value: float) -> bool:
        above = self.low == -math.inf or value > self.low + NOISE
        return above and (self.high == math.inf or value < self.high - NOISE)

    def signs(self, values: Iterable[float]) -> tuple[int, int]:
        """The counts of values inside and outside; on an end they are neither."""
        known = list(values)
        ties = sum(any(abs(value - end) <= NOISE for end in self.ends) for value in known)
        wins = sum(map(self.holds, known))
        return wins, len(known) - wins - ties

    def p_value(self, values: Sequence[float]) -> float:
        """The level at which the values decide if their mean is inside or outside.

        Inside, every end has to be excluded; outside, the nearest.
        """
        center = mean(values)
        if self.holds(center):
            return max(t_test(values, end) for end in self.ends)
        return t_test(values, min(self.ends, key=lambda end: abs(center - end)))


def scale_of(*numbers: Iterable[float]) -> float:
    """The unit in which differences of these numbers are told from rounding: 1, or a smaller one.

    >>> scale_of([92.0, 93.5]), scale_of([2e-9, -math.inf], [-3e-9])
    (1.0, 3e-09)
    """
    sizes = [abs(x) for part in numbers for x in part if math.isfinite(x) and x]
    return min(1.0, max(sizes, default=1.0))


def detectable(spread: float, count: int) -> float:
    """The least mean that Student's test finds to differ from 0 with the probability `POWER`.

        (t(1 - LEVEL / 2) + t(POWER)) s / sqrt(n), quantiles of n - 1 degrees of freedom

    Args:
        spread: s, the standard deviation of the values.
        count: n, their number; below 2 nothing is detectable.

    Examples:
        >>> round(detectable(4.0, 6), 2), round(detectable(4.0, 24), 2)
        (5.7, 2.39)
    """
    if count < 2:
        return math.inf
    return (_quantile(count) + _quantile(count, POWER)) * spread / math.sqrt(count)


def holm(p_values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number by Holm's procedure with weights.

    The smallest p / weight comes first; each is multiplied by the weights of those not before it,
    over its own. A verdict where the adjusted value is below a level is false in at most that
    share of all families, whatever the dependence.

        >>> holm([0.01, 0.04, 0.03], [1.0, 1.0, 1.0])
        [0.03, 0.06, 0.06]

    Source: S. Holm, *A simple sequentially rejective multiple test procedure*, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i] / weights[i])
    adjusted, largest, left = [1.0] * len(p_values), 0.0, float(sum(weights))
    for i in order:
        largest = max(largest, min(1.0, p_values[i] * left / weights[i]))
        adjusted[i] = largest
        left -= weights[i]
    return adjusted


def price(looks: int) -> float:
    """The factor of a p-value at the k-th look at more and more seeds.

        1 / (1 - LATER) for k = 1, else k (k - 1) / LATER

    The levels of all looks then add up to `LEVEL`, and those of the later ones to a share `LATER`
    of it, however many there are, whatever the numbers of seeds and whenever one stops
    (Bonferroni's inequality).

    >>> [price(k) for k in (1, 2, 3)]
    [1.25, 10.0, 30.0]
    """
    return 1 / (1 - LATER) if looks < 2 else looks * (looks - 1) / LATER


@functools.lru_cache(maxsize=256)
def _quantile(count: int, share: float = 1 - LEVEL / 2) -> float:
    """Of Student's distribution with count - 1 degrees of freedom."""
    return float(stdtrit(count - 1, share))
