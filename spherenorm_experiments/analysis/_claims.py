"""Claims: statements held against our numbers, each a row that one evaluator decides.

A claim says that a mean over seeds lies in a region: above a bound, below it, or within a margin.
Student's test decides both ways alike: for the claim if the mean lies inside and the test excludes
every end of the region, against it if the mean lies outside and the test excludes the nearest end.
`adjusted` corrects the p-values of a study for their number. A verdict on performance (a score or a
time) needs six seeds. Where runs diverged, the exact sign test decides: a run that diverged is
worse than any other, and ties are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from spherenorm_experiments.analysis._arms import Arm
from spherenorm_experiments.analysis._basis import OURS, Statement
from spherenorm_experiments.analysis._results import Key, Results
from spherenorm_experiments.analysis._samples import Comparison, Sample, Values, paired_values
from spherenorm_experiments.analysis._statistics import (
    NOISE,
    holm,
    interval,
    mean,
    sign_test,
    t_test,
)
from spherenorm_experiments.analysis._tables import Cell

__all__ = [
    "LEVEL",
    "MARGIN",
    "PERFORMANCE_SEEDS",
    "VERDICTS",
    "Claim",
    "Decision",
    "Of",
    "Region",
    "Side",
    "Verdict",
    "adjusted",
    "derive",
    "evaluate",
    "price",
    "slug",
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

LEAST_SEEDS = 3
PERFORMANCE_SEEDS = 6
"""Before any verdict on a score or a time, for or against."""

MARGIN = 1.0
"""Points within which two scores are equivalent, unless a claim states another margin."""

Relation = Literal["<", ">", "="]

Side = Callable[[Results], "Values | float | None"]
"""One side of a claim: a number for each seed, or one without randomness; None if there is none."""


@dataclass(frozen=True)
class Of:
    """A number of an arm's runs, by seed: a side of a claim.

    Attributes:
        arm: a record, or its label.
        metric: an entry of the summaries, or a function of a result.
        performance: True for a score or a time; by default if the metric is one.
    """

    arm: Arm | str
    metric: Key
    performance: bool | None = None

    def __call__(self, results: Results) -> Sample:
        return results.arm(self.arm).values(self.metric, performance=self.performance)


def derive(function: Callable[..., Values], *sides: Side) -> Side:
    """A side made of others: a function of their numbers."""
    return lambda results: function(*(side(results) for side in sides))


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
    """A row: `left` is above, below or near `right`, a bound or another side.

        Claim("growth", "SGDP grows its norm less than half as much as SGD", Of("SGDP", growth),
              "<", Of("SGD", growth), how="ratio", bound=0.5, cites=says("t1.restrain"))

    Two sides are compared by seed, over the seeds that both have. The mean of ratios is geometric,
    so that a / b and b / a decide alike. A ratio to 0 has no size; it counts by its sign, as a seed
    does on which a run diverged.

    Attributes:
        name: its own in its study, in lower case; it stays when other claims come and go.
        text: the claim in words.
        left: a side.
        relation: "<", ">", or "=" for at most `margin` away from the bound.
        right: the bound, or the other side.
        cites: the statement behind it.
        how: the comparison of the sides, a difference by default. Of one side against a bound, how
            its numbers were made of two: a difference is shown with its sign, a ratio with "×".
        bound: of the compared sides; 0 for a difference and 1 for a ratio, unless given.
        margin: for "=", how far from the bound the mean may lie. For a number without randomness,
            how far beyond the bound it has to lie: within the margin, another choice of what the
            paper leaves open might turn it round.
        tolerance: a margin relative to the bound, for a number without randomness.
        equivalent: a margin within which the claim is "equivalent" if it is not decided.
        behind: the side that the claim puts behind: where it diverged and the other finished, that
            counts for the claim, and the reverse against it. For "=" both count against it. Seeds
            that only one of them has ended count for nothing.
        limits: of what the number may be, such as 0 and 100 percent; the interval is cut there.
        unit: of the number.
        format: of a number without randomness.
        paper: the paper's number.
        caveat: a fact that a reader needs, or a function of the results that gives it.
        performance: True for a score or a time; a `Sample` may say so itself.
        primary: True for the claims that a study is made for.

    Raises:
        ValueError: a name with capitals or spaces, or "=" without a margin.
    """

    name: str
    text: str
    left: Side
    relation: Relation
    right: Side | float
    cites: Statement = OURS
    how: Comparison | None = None
    bound: float | None = None
    margin: float = 0.0
    tolerance: float = 0.0
    equivalent: float | None = None
    behind: Literal["left", "right"] = "right"
    limits: tuple[float, float] = (-math.inf, math.inf)
    unit: str = ""
    format: str = ".3g"
    paper: Cell | str = ""
    caveat: str | Callable[[Results], str] = ""
    performance: bool = False
    primary: bool = False

    def __post_init__(self) -> None:
        if self.name != slug(self.name) or not self.name:
            raise ValueError(f"name must be like 'norm-growth.sgdp', got {self.name!r}")
        if self.relation == "=" and not max(self.margin, self.tolerance) > 0:
            raise ValueError(f'{self.name}: "=" needs a positive margin, got {self.margin!r}')

    @property
    def level(self) -> float:
        """The bound of the number: of one side, of a difference, or of a ratio."""
        if not callable(self.right):
            return self.right
        if self.bound is not None:
            return self.bound
        return 1.0 if self.how == "ratio" else 0.0

    @property
    def region(self) -> Region:
        """The numbers for which the claim is true."""
        if self.relation == "=":
            margin = self.margin or self.tolerance * abs(self.level)
            return Region(self.level - margin, self.level + margin)
        return Region(low=self.level) if self.relation == ">" else Region(high=self.level)


@dataclass(frozen=True)
class Decision:
    """A claim with our numbers, and what they say: one line of the scorecard.

    Attributes:
        claim: the row.
        numbers: ours, with their intervals.
        ours: the numbers in words.
        seeds: how many seeds ours rest on; 0 where nothing is random.
        detail: caveats, diverged runs, too few seeds.
        performance: True for a score or a time.
        supported: True if our number lies in the claim's region.
        p: the level at which that is decided; None where there is nothing to test.
        p_equivalent: the level at which the number is within the margin of the bound.
        looks: how often there were more seeds to look at, each time enough for a verdict.
    """

    claim: Claim
    numbers: Sequence[Cell] = ()
    ours: str = "no results"
    seeds: int = 0
    detail: str = ""
    performance: bool = False
    supported: bool = False
    p: float | None = None
    p_equivalent: float | None = None
    looks: int = 1

    @property
    def kind(self) -> str:
        return self.claim.cites.kind

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
        return bool(self.numbers)

    def to_json(self) -> dict[str, Any]:
        """The claim as it is shown, and its numbers."""
        claim, region = self.claim, self.claim.region
        return {
            "name": claim.name,
            "text": claim.text,
            "kind": self.kind,
            "place": claim.cites.place,
            "quotation": claim.cites.quotation,
            "verdict": self.verdict,
            "ours": self.ours,
            "numbers": [_as_json(cell) for cell in self.numbers],
            "paper": str(claim.paper),
            "paper_value": _as_json(claim.paper)["value"]
            if isinstance(claim.paper, Cell)
            else None,
            "seeds": self.seeds,
            "detail": self.detail,
            "performance": self.performance,
            "primary": claim.primary,
            "p": self.p,
            "region": [e if math.isfinite(e) else None for e in (region.low, region.high)],
        }


def slug(text: str) -> str:
    """A part of a claim's name.

    >>> slug("ResNet-50 + CutMix")
    'resnet-50-cutmix'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def evaluate(claim: Claim, results: Results) -> Decision:
    """The claim decided by the results, before the study's other claims are counted."""
    left = claim.left(results)
    detail = claim.caveat(results) if callable(claim.caveat) else claim.caveat
    decision = Decision(claim, detail=detail, performance=claim.performance)
    if left is None:
        return decision
    if not isinstance(left, Mapping):
        return _without_randomness(decision, float(left))
    left = Sample.of(left)
    if not callable(claim.right):
        # A run that diverged has no number, and counts against the claim.
        decision = replace(decision, performance=claim.performance or left.performance)
        return _tested(decision, left, claim.how, lost_for=0, lost_against=len(left.diverged))
    right = claim.right(results)
    assert isinstance(right, Mapping), f"{claim.name}: a number without randomness has a bound"
    return _compared(decision, left, Sample.of(right))


def _without_randomness(decision: Decision, value: float) -> Decision:
    """A number of one run: near the bound within a tolerance, or beyond it by a margin."""
    claim = decision.claim
    number = Cell(value, claim.format, unit=claim.unit, missing="nan")
    if claim.tolerance:
        off, allowed = 100 * (value / claim.level - 1), 100 * claim.tolerance
        percent = Cell(off, "+.1f", missing="nan")
        return replace(
            decision,
            numbers=[number, percent],
            ours=f"{number} ({percent} %, allowed ±{allowed:g} %)",
            supported=math.isfinite(off) and abs(off) <= allowed,
            p=0.0,
        )
    if not claim.margin > 0:
        lack = "a number without randomness needs a positive margin"
        raise ValueError(f"{claim.name}: {lack}, got {claim.margin!r}")
    beyond = (value - claim.level) * (1 if claim.relation == ">" else -1)
    said = f"decided at {claim.margin:g} beyond {claim.level:g}"
    return replace(
        decision,
        numbers=[number],
        ours=str(number),
        detail=_joined(decision.detail, said),
        supported=beyond > 0,
        p=0.0 if abs(beyond) >= claim.margin else 1.0,
    )


def _compared(decision: Decision, left: Sample, right: Sample) -> Decision:
    """The difference or the ratio of two sides, paired by seed."""
    claim = decision.claim
    how = claim.how or "difference"
    lost = {"left": left.diverged & right.keys(), "right": right.diverged & left.keys()}
    above, below = _endless(left, right) if how == "ratio" else (0, 0)
    endless = above + below
    ahead = "left" if claim.behind == "right" else "right"
    if claim.relation == "=":
        lost_for, lost_against = 0, endless + len(lost["left"] | lost["right"])
    else:
        for_it = above if claim.relation == ">" else below
        lost_for = for_it + len(lost[claim.behind])
        lost_against = endless - for_it + len(lost[ahead])
    same = claim.equivalent
    decision = replace(
        decision,
        detail=_joined(
            decision.detail,
            "" if same is None else f"equivalent means within ±{same:g} {claim.unit}",
            f"a ratio to 0 on {endless} more" if endless else "",
        ),
        performance=claim.performance or left.performance or right.performance,
    )
    scale = _scale(left, right) if how == "difference" else 1.0
    values = paired_values(left, right, how)
    return _tested(
        decision, values, how, lost_for=lost_for, lost_against=lost_against, endless=endless,
        scale=scale,
    )  # fmt: skip


def _tested(
    decision: Decision,
    values: Sample,
    how: Comparison | None,
    *,
    lost_for: int,
    lost_against: int,
    endless: int = 0,
    scale: float = 1.0,
) -> Decision:
    """The decision with its number, and the level at which the number decides.

    Args:
        how: the comparison of which the values are.
        lost_for: seeds without a number that count for the claim.
        lost_against: seeds without a number that count against it.
        endless: how many of these have a ratio to 0; on the others a run diverged.
        scale: the size of the numbers, of which `NOISE` is rounding.
    """
    claim, lost = decision.claim, lost_for + lost_against
    known = [0.0 if abs(value) < NOISE * scale else value for value in values.values()]
    region, seeds = claim.region, len(known) + lost
    same = claim.equivalent
    near = None if same is None else Region(claim.level - same, claim.level + same)
    if seeds == 0:
        return decision
    logarithmic = how == "ratio" and all(value > 0 for value in known)
    if logarithmic:  # a ratio and its inverse are alike
        known = [math.log(value) for value in known]
        region, near = region.map(_log), None if near is None else near.map(_log)
    back = math.exp if logarithmic else float
    low, high = (min(max(back(end), claim.limits[0]), claim.limits[1]) for end in interval(known))
    number = Cell(
        back(mean(known)),
        "+.3g" if how == "difference" else ".3g",
        interval=None if math.isnan(low) else (low, high),
        n=len(known),
        diverged=lost - endless,
        prefix="×" if how == "ratio" else "",
        unit=claim.unit,
    )
    known, region = [value / scale for value in known], region.map(lambda end: end / scale)
    near = None if near is None else near.map(lambda end: end / scale)
    least = PERFORMANCE_SEEDS if decision.performance else LEAST_SEEDS
    few = f"{seeds} seeds; a verdict needs {least}" if seeds < least else ""
    sizes = sorted({len(seeds) for seeds in values.looks if len(seeds) >= least})
    grown = ""
    if len(sizes) > 1:
        chain = " to ".join(map(str, sizes))
        grown = f"grown from {chain} seeds, so that p counts {price(len(sizes)):g}-fold"
    if lost:  # a difference to a run that diverged has a sign and no size
        ties = sum(region.touches(value) for value in known)
        wins = lost_for + sum(region.holds(value) for value in known)
        losses = seeds - wins - ties
        supported, p = wins > losses, sign_test(wins, losses)
    else:
        supported, p = region.holds(mean(known)), region.p_value(known)
    equivalent = near is not None and not lost and near.holds(mean(known))
    return replace(
        decision,
        numbers=[number],
        ours=str(number),
        seeds=seeds,
        detail=_joined(decision.detail, few, grown),
        looks=max(1, len(sizes)),
        supported=supported,
        p=None if few else p,
        p_equivalent=near.p_value(known) if near and equivalent and not few else None,
    )


def adjusted(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions of a study with their p-values adjusted for their looks and their number.

    Holm's procedure with weights: primary claims count `PRIMARY_WEIGHT` times. A verdict of
    equivalence is adjusted by the same weights, all at once.

    Raises:
        ValueError: two claims have one name.
    """
    names = [decision.claim.name for decision in decisions]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two claims have the name {twice[0]!r}")
    tested = [i for i, found in enumerate(decisions) if found.p is not None and found.seeds]
    weights = [PRIMARY_WEIGHT if decisions[i].claim.primary else 1.0 for i in tested]
    prices = [price(decisions[i].looks) for i in tested]
    raw = [factor * (decisions[i].p or 0.0) for i, factor in zip(tested, prices, strict=True)]
    made = list(decisions)
    rows = zip(tested, weights, prices, holm(raw, weights), strict=True)
    for i, weight, factor, p in rows:
        equivalent = decisions[i].p_equivalent
        if equivalent is not None:
            equivalent = min(1.0, factor * equivalent * sum(weights) / weight)
        made[i] = replace(decisions[i], p=p, p_equivalent=equivalent)
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


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _endless(a: Sample, b: Sample) -> tuple[int, int]:
    """The seeds with a ratio of a to 0: above all numbers, and below. 0 / 0 is neither."""
    over_0 = [a[seed] for seed in a.keys() & b.keys() if b[seed] == 0]
    return sum(value > 0 for value in over_0), sum(value < 0 for value in over_0)


def _scale(a: Sample, b: Sample) -> float:
    """The size of the numbers of two arms, at most 1."""
    size = max((abs(x[seed]) for seed in a.keys() & b.keys() for x in (a, b)), default=1.0)
    return min(size, 1.0) or 1.0


def _log(bound: float) -> float:
    """The logarithm of a bound of positive numbers, which those below zero do not bound."""
    return math.log(bound) if bound > 0 else -math.inf


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
