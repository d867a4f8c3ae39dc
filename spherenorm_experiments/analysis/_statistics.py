"""Statistics of results: intervals, tests and searches.

Numbers only: pictures draw them, tables and claims show them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats
from scipy.special import comb

NOISE = 1e-9
"""A difference of this size between two numbers is rounding."""


def mean(values: Iterable[float]) -> float:
    """The mean; nan of no values."""
    known = list(values)
    return float(np.mean(known)) if known else math.nan


def deviation(values: Iterable[float]) -> float:
    """The standard deviation of a sample; nan of fewer than two values."""
    known = list(values)
    return float(np.std(known, ddof=1)) if len(known) > 1 else math.nan


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % confidence interval of the mean; nan with fewer than two values.

        mean ± t(n - 1) s / sqrt(n)

    It covers the mean of normal values as often as it says at any n, and that of differences of
    accuracies within a percent (`python -m tests.experiments.analysis.coverage`).

        >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
        [-0.484, 4.484]
    """
    known = np.asarray(values, dtype=float)
    if len(known) < 2:
        return math.nan, math.nan
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    center, half = float(known.mean()), error * _quantile(len(known))
    return center - half, center + half


def t_test(values: Sequence[float], bound: float) -> float:
    """The two-sided p-value of Student's test that the mean of the values is `bound`.

    Values without any spread differ from the bound for certain, or are it.
    """
    known = np.asarray(values, dtype=float)
    off, error = abs(float(known.mean()) - bound), _standard_error(known)
    if off < NOISE or math.isnan(error):
        return 1.0
    return float(2 * stats.t.sf(off / error, len(known) - 1)) if error > 0 else 0.0


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of the exact test that a win is as likely as a loss.

    >>> sign_test(6, 0)
    0.03125
    """
    count = wins + losses
    return float(stats.binomtest(wins, count).pvalue) if count else 1.0


def holm(p_values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number by Holm's procedure with weights.

    The smallest p / weight comes first; each is multiplied by the weights of those not before it,
    over its own. A verdict where the adjusted value is below 5 % is false in at most 5 % of all
    families, whatever the dependence.

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


def _standard_error(values: np.ndarray) -> float:
    """The standard deviation of the mean; 0 if the values differ by rounding only."""
    if len(values) < 2:
        return math.nan
    if np.ptp(values) < NOISE * max(1.0, float(np.abs(values).max())):
        return 0.0
    return float(values.std(ddof=1)) / math.sqrt(len(values))


@functools.lru_cache(maxsize=256)
def _quantile(count: int) -> float:
    return float(stats.t.ppf(0.975, count - 1))


def best_of_k(scores: Sequence[float]) -> list[float]:
    """The expected best score of k trials drawn from those that were made, for k = 1, 2, ...

    Exact: the j-th smallest of n is the best of k with probability C(j - 1, k - 1) / C(n, k)
    (Dodge et al. 2019).
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    n = len(ordered)
    below = np.arange(n)  # how many scores are smaller
    return [float(comb(below, k - 1) @ ordered / comb(n, k)) for k in range(1, n + 1)]
