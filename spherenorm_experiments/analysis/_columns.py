"""Columns of means that a reader may compare: all of one column are over the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spherenorm_experiments.analysis._samples import Sample, Values, paired_values
from spherenorm_experiments.analysis._statistics import deviation, interval, mean
from spherenorm_experiments.analysis._tables import Cell


def column(values: Sequence[Values], form: str) -> list[Cell]:
    """The means of several arms over the seeds that all of them have ended, with their spread.

    An arm that diverged on one of these seeds has no mean: it would be over other seeds, those on
    which the arm fared well. Arms without any result do not narrow the others.

        >>> first, second, third = column([{0: 1.0, 1: 2.0, 2: 9.0}, {0: 3.0, 1: 5.0}, {}], "g")
        >>> str(first), first.n, str(second), str(third)
        ('1.5 ± 0.707107', 2, '4 ± 1.41421', '–')
    """
    samples = [Sample.of(each) for each in values]
    ended = [set(sample) | sample.diverged for sample in samples]
    shared = set.intersection(*filter(None, ended)) if any(ended) else set()
    return [_mean(sample, shared, form) for sample in samples]


def mean_of(values: Values, form: str) -> Cell:
    """The mean over all seeds, with its spread and their number; none if one of them diverged.

    >>> str(mean_of({0: 1.0, 1: 2.0}, ".2f"))
    '1.50 ± 0.71'
    """
    sample = Sample.of(values)
    return _mean(sample, {*sample, *sample.diverged}, form)


def difference(a: Values, b: Values) -> Cell:
    """The mean of a - b over the seeds that both have, with its 95 % interval."""
    paired = paired_values(a, b)
    known, lost = list(paired.values()), len(paired.diverged)
    low, high = interval(known)
    ends = None if math.isnan(low) else (low, high)
    return Cell(mean(known), "+.3g", interval=ends, n=len(known), diverged=lost)


def _mean(sample: Sample, seeds: set[int], form: str) -> Cell:
    known = [value for seed, value in sample.items() if seed in seeds]
    diverged = len(sample.diverged & seeds)
    if diverged or not known:
        return Cell(None, form, diverged=diverged)
    return Cell(mean(known), form, spread=deviation(known), n=len(known))
