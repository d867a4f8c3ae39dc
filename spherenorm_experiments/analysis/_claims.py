"""Claims: statements held against our numbers, and the one rule that decides them.

A claim says that a mean over seeds lies in a region: above a bound, below it, or within a margin.
Student's test decides both ways alike: for the claim if the mean lies inside and the test excludes
every end of the region, against it if the mean lies outside and the test excludes the nearest end.
`decide` adjusts the p-values of a study for their number. A verdict on performance (a score or a
time) needs six seeds. Where runs diverged, the exact sign test decides: a run that diverged is
worse than any other, and ties are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from spherenorm_experiments.analysis._basis import Basis
from spherenorm_experiments.analysis._statistics import NOISE, holm, mean, t_test
from spherenorm_experiments.analysis._tables import Cell

__all__ = [
    "LEVEL",
    "VERDICTS",
    "Claim",
    "Region",
    "Verdict",
    "decide",
    "price",
]

Verdict = Literal[
    "reproduced", "not reproduced", "holds", "does not hold", "equivalent", "inconclusive"
]
"""Only a statement of the paper is reproduced or not; a claim of another kind holds or does not."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

LEVEL = 0.04
"""The share of studies without any true difference that have a verdict.

At most 5 % is the promise; the rest is for scores, which are not quite normal, and for later looks.
"""

LATER_LEVEL = 0.01
"""The share that all later looks have together, at a claim whose seeds grew."""

PRIMARY_WEIGHT = 4.0
"""A primary claim counts this often among the claims of its study."""

NO_RESULTS = "no results"


@dataclass(frozen=True)
class Region:
    """The means for which a claim is true, an open interval."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def ends(self) -> list[float]:
        return [end for end in (self.low, self.high) if math.isfinite(end)]

    def map(self, function: Callable[[float], float]) -> Region:
        """The region between the images of the ends."""
        return Region(function(self.low), function(self.high))

    def holds(self, value: float) -> bool:
        return self.low + NOISE < value < self.high - NOISE

    def touches(self, value: float) -> bool:
        """True on an end, where a value speaks neither for a claim nor against it."""
        return any(abs(value - end) <= NOISE for end in self.ends)

    def p_value(self, values: Sequence[float]) -> float:
        """The level at which the values decide, for or against."""
        center = mean(values)
        tests = [t_test(values, end) for end in self.ends]
        if self.holds(center):
            return max(tests)
        nearest = min(self.ends, key=lambda end: abs(center - end))
        return t_test(values, nearest)


@dataclass(frozen=True)
class Claim:
    """One line of the scorecard.

    Attributes:
        text: the claim.
        basis: its kind, and the place and wording of the statement behind it.
        numbers: ours, with their intervals.
        words: a format string that says the numbers; empty if no run has any.
        paper: the paper's number.
        seeds: how many seeds ours rest on; 0 where nothing is random.
        detail: diverged runs, a caveat.
        performance: True for a score or a time.
        primary: True for the claims that a study is made for.
        supported: True if our number lies in the claim's region.
        p: the level at which that is decided; None where there is nothing to test.
        p_equivalent: the level at which the number is within the margin of the bound.
        looks: how often there were more seeds to look at, each time enough for a verdict.
        region: of the number, for the picture.
    """

    text: str
    basis: Basis
    numbers: Sequence[Cell] = ()
    words: str = ""
    paper: Cell | str = ""
    seeds: int = 0
    detail: str = ""
    performance: bool = False
    primary: bool = False
    supported: bool = False
    p: float | None = None
    p_equivalent: float | None = None
    looks: int = 1
    region: Region | None = None

    @property
    def kind(self) -> str:
        return self.basis.kind

    @property
    def verdict(self) -> Verdict:
        """For, against, equivalent or open; of the paper's statements in other words."""
        if self.p is not None and self.p < LEVEL:
            if self.kind == "paper":
                return "reproduced" if self.supported else "not reproduced"
            return "holds" if self.supported else "does not hold"
        equivalent = self.p_equivalent is not None and self.p_equivalent < LEVEL
        return "equivalent" if equivalent else "inconclusive"

    @property
    def has_results(self) -> bool:
        return bool(self.words)

    @property
    def ours(self) -> str:
        """Our numbers in words."""
        return self.words.format(*self.numbers) if self.has_results else NO_RESULTS

    def to_json(self) -> dict[str, Any]:
        """The claim as it is shown, and its numbers."""
        region = self.region
        return {
            "text": self.text,
            "kind": self.kind,
            "place": self.basis.place,
            "quotation": self.basis.quotation,
            "verdict": self.verdict,
            "ours": self.ours,
            "numbers": [_as_json(cell) for cell in self.numbers],
            "paper": str(self.paper),
            "paper_value": _as_json(self.paper)["value"] if isinstance(self.paper, Cell) else None,
            "seeds": self.seeds,
            "detail": self.detail,
            "performance": self.performance,
            "primary": self.primary,
            "p": self.p,
            "region": None if region is None else [_finite(end) for end in _pair(region)],
        }


def decide(claims: Sequence[Claim]) -> list[Claim]:
    """The claims of a study with their p-values adjusted for their looks and their number.

    Holm's procedure with weights: primary claims count `PRIMARY_WEIGHT` times. A verdict of
    equivalence is adjusted by the same weights, all at once.
    """
    tested = [i for i, claim in enumerate(claims) if claim.p is not None and claim.seeds]
    weights = [PRIMARY_WEIGHT if claims[i].primary else 1.0 for i in tested]
    prices = [price(claims[i].looks) for i in tested]
    raw = [factor * (claims[i].p or 0.0) for i, factor in zip(tested, prices, strict=True)]
    adjusted = holm(raw, weights)
    made = list(claims)
    for i, weight, factor, p in zip(tested, weights, prices, adjusted, strict=True):
        equivalent = claims[i].p_equivalent
        if equivalent is not None:
            equivalent = min(1.0, factor * equivalent * sum(weights) / weight)
        made[i] = replace(claims[i], p=p, p_equivalent=equivalent)
    return made


def price(looks: int) -> float:
    """The factor of a p-value at the k-th look at more and more seeds.

        1 for k = 1, else LEVEL k (k - 1) / LATER_LEVEL

    The levels of all later looks then add up to `LATER_LEVEL`, however many there are, whatever the
    numbers of seeds and whenever one stops (Bonferroni's inequality).

    >>> [price(k) for k in (1, 2, 3)]
    [1.0, 8.0, 24.0]
    """
    return 1.0 if looks < 2 else LEVEL * looks * (looks - 1) / LATER_LEVEL


def _pair(region: Region) -> tuple[float, float]:
    return region.low, region.high


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _as_json(cell: Cell) -> dict[str, Any]:
    number = cell.number
    low, high = cell.interval or (None, None)
    return {
        "value": None if number is None else float(number),
        "low": low,
        "high": high,
        "n": cell.n,
        "unit": cell.unit,
        "prefix": cell.prefix,
    }
