"""Samples: a number for each seed, the seeds that diverged, and the kind of number it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Values = Mapping[int, float]
"""A number for each seed."""

Comparison = Literal["difference", "ratio"]

Looks = tuple[frozenset[int], ...]
"""The seeds that were there after each request of a store; empty for numbers of no store."""


@dataclass(frozen=True, eq=False)
class Sample(Mapping[int, float]):
    """A number for each seed whose run finished.

        >>> sample = Sample({0: 97.5, 1: 98.0}, diverged=frozenset({2}), performance=True)
        >>> sample[1], len(sample), sorted(sample.diverged)
        (98.0, 2, [2])

    Attributes:
        by_seed: the numbers; a seed whose number is not finite counts as diverged.
        diverged: the seeds whose runs diverged; they have no number.
        performance: True for a score or a time, False for a norm, an angle or a count.
        looks: the seeds that could be looked at, request by request.
    """

    by_seed: Mapping[int, float]
    diverged: frozenset[int] = field(default_factory=frozenset)
    performance: bool = False
    looks: Looks = ()

    def __post_init__(self) -> None:
        lost = {seed for seed, value in self.by_seed.items() if not math.isfinite(value)}
        if lost:  # the class is frozen
            kept = {seed: value for seed, value in self.by_seed.items() if seed not in lost}
            object.__setattr__(self, "by_seed", kept)
            object.__setattr__(self, "diverged", self.diverged | lost)

    def __getitem__(self, seed: int) -> float:
        return self.by_seed[seed]

    def __iter__(self) -> Iterator[int]:
        return iter(self.by_seed)

    def __len__(self) -> int:
        return len(self.by_seed)

    @classmethod
    def of(cls, values: Values) -> Sample:
        """The values as a sample; a sample stays as it is."""
        return values if isinstance(values, Sample) else cls(dict(values))

    def map(self, function: Callable[[float], float]) -> Sample:
        """The function of each number."""
        return replace(self, by_seed={seed: function(value) for seed, value in self.items()})


def compare(a: float, b: float, how: Comparison) -> float:
    """a - b, or a / b."""
    return a - b if how == "difference" else a / b


def paired_values(a: Values, b: Values, how: Comparison = "difference") -> Sample:
    """a - b, or a / b, for each seed that both have; no ratio to 0, as of steps at rate 0.

    >>> dict(paired_values({0: 1.0, 1: 0.0, 2: 3.0}, {0: 2.0, 1: 0.0}, "ratio"))
    {0: 0.5}
    """
    a, b = Sample.of(a), Sample.of(b)
    shared = [s for s in sorted(a.keys() & b.keys()) if how == "difference" or b[s] != 0]
    paired = {seed: compare(a[seed], b[seed], how) for seed in shared}
    lost, performance = a.diverged | b.diverged, a.performance or b.performance
    return Sample(paired, lost, performance, _looks(frozenset.intersection, [a, b]))


def advantage(ours: Values, theirs: Values, how: Comparison = "difference") -> Sample:
    """The same, lost for the seeds that ours lost and theirs did not.

    Runs that theirs lost do not count against us.
    """
    ours, theirs = Sample.of(ours), Sample.of(theirs)
    lost = frozenset(ours.diverged & theirs.keys())
    return replace(paired_values(ours, theirs, how), diverged=lost)


def combined(function: Callable[[list[float]], float], arms: Sequence[Values]) -> Sample:
    """A function of the numbers of several arms, for each seed that all of them have."""
    samples = [Sample.of(arm) for arm in arms]
    shared = set.intersection(*map(set, samples))
    lost = frozenset().union(*(sample.diverged for sample in samples))
    return _over(function, samples, shared, lost, frozenset.intersection)


def best_of(function: Callable[[list[float]], float], arms: Sequence[Values]) -> Sample:
    """The best number of each seed; a seed is lost if it diverged and no arm has its number.

    >>> arms = Sample({0: 1.0, 1: 2.0}), Sample({0: 3.0}, diverged=frozenset({1}))
    >>> dict(best_of(max, arms)), dict(worst_of(min, arms)), sorted(worst_of(min, arms).diverged)
    ({0: 3.0, 1: 2.0}, {0: 1.0}, [1])
    """
    samples = [Sample.of(arm) for arm in arms]
    lost = frozenset().union(*(sample.diverged for sample in samples))
    known = set().union(*samples)
    return _over(function, samples, known, lost - known, frozenset.union)


def worst_of(function: Callable[[list[float]], float], arms: Sequence[Values]) -> Sample:
    """The worst number of each seed, of the arms that have one; it is lost if any arm lost it."""
    samples = [Sample.of(arm) for arm in arms]
    lost = frozenset().union(*(sample.diverged for sample in samples))
    return _over(function, samples, set().union(*samples) - lost, lost, frozenset.union)


def _over(
    function: Callable[[list[float]], float],
    samples: Sequence[Sample],
    seeds: set[int],
    lost: frozenset[int],
    looks: Callable[..., frozenset[int]],
) -> Sample:
    """A function of the numbers of each seed, of the samples that have one."""
    return Sample(
        {seed: function([s[seed] for s in samples if seed in s]) for seed in sorted(seeds)},
        lost,
        any(sample.performance for sample in samples),
        _looks(looks, samples),
    )


def _looks(joined: Callable[..., frozenset[int]], samples: Sequence[Sample]) -> Looks:
    """The looks at several samples together, of which each has them of the same requests."""
    known = [sample.looks for sample in samples if sample.looks]
    return tuple(joined(*seeds) for seeds in zip(*known, strict=True))


def spread(arms: Sequence[Values], how: Comparison = "difference") -> Sample:
    """Largest minus, or over, smallest of several arms, for each seed that all of them have."""
    return combined(lambda values: compare(max(values), min(values), how), arms)


def pooled(arms: Iterable[Values]) -> Sample:
    """The mean over several arms, for each seed that all of them have."""
    return combined(lambda values: sum(values) / len(values), list(arms))
