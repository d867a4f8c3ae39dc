"""Decisions: claims decided by our numbers, all by one evaluator.

A claim says that a mean over seeds lies in a region: above a bound, below it, or within a margin.
Student's test decides both ways alike: for the claim if the mean lies inside and the test excludes
every end of the region, against it if the mean lies outside and the test excludes the nearest end.
`adjusted` corrects the p-values of a study for their number. A verdict on performance (a score or a
time) needs six seeds. The exact sign test decides where runs diverged, where a number lies at a
limit of what it may be, and where all numbers are equal: a run that diverged is worse than any
other, and ties are left out.

A claim whose effect the runs could hardly find is marked before they are made: it has no verdict
for or against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from spherenorm_experiments.claims import Claim, Region
from spherenorm_experiments.results import Results
from spherenorm_experiments.samples import Comparison, Sample, paired_values
from spherenorm_experiments.stats import (
    LEVEL,
    NOISE,
    detectable,
    deviation,
    holm,
    interval,
    mean,
    price,
    sign_test,
)
from spherenorm_experiments.tables import Cell

Verdict = Literal[
    "reproduced",
    "smaller than the paper's",
    "larger than the paper's",
    "not reproduced",
    "holds",
    "does not hold",
    "equivalent",
    "inconclusive",
    "cannot be decided here",
]
"""Only a statement of the paper is reproduced or not; a claim of another kind holds or does not."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

FOR: tuple[Verdict, ...] = (*VERDICTS[:3], "holds")
AGAINST: tuple[Verdict, ...] = ("not reproduced", "does not hold", "equivalent")
"""Equivalent is against: the difference is shown to be smaller than the paper's effect."""

OUT_OF_REACH = 3.0
"""A claim cannot be decided if the expected detectable effect is so many times the paper's."""

LEAST_SEEDS = 3
PERFORMANCE_SEEDS = 6
"""Before any verdict on a score or a time, for or against."""

PRIMARY_WEIGHT = 4.0
"""A primary claim counts this often among the claims of its study."""


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
        detectable: the least effect that so many seeds of this spread find, see `detectable`.
        expected: the same for the spread that was expected before the runs.
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
    detectable: float | None = None
    expected: float | None = None
    looks: int = 1

    @property
    def kind(self) -> str:
        return self.claim.cites.kind

    @property
    def verdict(self) -> Verdict:
        """For, against, equivalent or open; of the paper's statements in other words."""
        if self.out_of_reach:
            return "cannot be decided here"
        if self.p is not None and self.p < LEVEL:
            if self.kind == "paper":
                return self._size if self.supported else "not reproduced"
            return "holds" if self.supported else "does not hold"
        equivalent = self.p_equivalent is not None and self.p_equivalent < LEVEL
        return "equivalent" if equivalent else "inconclusive"

    @property
    def out_of_reach(self) -> bool:
        """True if these runs could not be expected to find the paper's effect."""
        effect = self.claim.effect
        if self.expected is None or effect is None:
            return False
        return self.expected > OUT_OF_REACH * abs(effect)

    @property
    def is_test(self) -> bool:
        """True if the claim has a p-value for which its study pays."""
        return self.p is not None and self.seeds > 0 and not self.out_of_reach

    @property
    def _size(self) -> Verdict:
        """The paper's effect beside the interval of ours, which lies on the same side."""
        effect, sign = self.claim.effect, 1 if self.claim.relation == ">" else -1
        if effect is None or not self.numbers or self.numbers[0].interval is None:
            return "reproduced"
        low, high = sorted(sign * end for end in self.numbers[0].interval)
        if high < sign * effect:
            return "smaller than the paper's"
        return "larger than the paper's" if low > sign * effect else "reproduced"

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
            "detectable": self.detectable,
            "expected": self.expected,
            "region": [e if math.isfinite(e) else None for e in (region.low, region.high)],
        }


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
    if callable(claim.right):
        right = claim.right(results)
        if right is None:
            return decision
        assert isinstance(right, Mapping), f"{claim.name}: a number without randomness has a bound"
        return _compared(decision, left, Sample.of(right))
    # A run that diverged has no number, and counts against the claim.
    decision = replace(decision, performance=claim.performance or left.performance)
    return _tested(decision, left, claim.how, lost_for=0, lost_against=len(left.diverged))


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
    tested = [i for i, each in enumerate(decisions) if each.is_test]
    weights = [PRIMARY_WEIGHT if decisions[i].claim.primary else 1.0 for i in tested]
    prices = [price(decisions[i].looks) for i in tested]
    raw = [factor * (decisions[i].p or 0.0) for i, factor in zip(tested, prices, strict=True)]
    adjusted = list(decisions)
    for i, weight, factor, p in zip(tested, weights, prices, holm(raw, weights), strict=True):
        equivalent = decisions[i].p_equivalent
        if equivalent is not None:
            equivalent = min(1.0, factor * equivalent * sum(weights) / weight)
        adjusted[i] = replace(decisions[i], p=p, p_equivalent=equivalent)
    return adjusted


def undecided(decision: Decision, reason: str) -> Decision:
    """The decision with its numbers and without a verdict, for or against."""
    detail = _joined(reason, decision.detail)
    return replace(decision, p=None, p_equivalent=None, detail=detail)


def _without_randomness(decision: Decision, value: float) -> Decision:
    """A number of one run: near the bound within a tolerance, or beyond it by a margin."""
    claim = decision.claim
    number = Cell(value, claim.format, unit=claim.unit, missing="nan")
    if claim.relation == "=":
        near = claim.region.low <= value <= claim.region.high
        numbers, allowed = [number], f"{claim.margin:g}"
        if not claim.margin:
            off = 100 * (value / claim.level - 1)
            numbers.append(Cell(off, "+.1f", unit="%", missing="nan"))
            allowed = f"{100 * claim.tolerance:g} %"
        ours = f"{number} ({', '.join([*map(str, numbers[1:]), f'allowed ±{allowed}'])})"
        return replace(decision, numbers=numbers, ours=ours, supported=near, p=0.0)
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
    """The difference or the ratio of two sides, paired by seed.

    A ratio to 0 has no size; it counts as a lost seed on the side of its sign. 0 / 0 is neither.
    """
    claim, shared = decision.claim, left.keys() & right.keys()
    how, same = claim.how or "difference", claim.same
    over_0 = [left[s] for s in shared if right[s] == 0] if how == "ratio" else []
    above, endless = sum(x > 0 for x in over_0), sum(x != 0 for x in over_0)
    lost = {"left": left.diverged & right.keys(), "right": right.diverged & left.keys()}
    if claim.relation == "=":
        lost_for, lost_against = 0, endless + len(lost["left"] | lost["right"])
    else:
        for_it = above if claim.relation == ">" else endless - above
        lost_for = for_it + len(lost[claim.behind])
        lost_against = endless - for_it + len(lost["left" if claim.behind == "right" else "right"])
    equivalent = "" if same is None else f"equivalent means within ±{same:g} {claim.unit}"
    sizes = [abs(side[seed]) for seed in shared for side in (left, right)]
    return _tested(
        replace(
            decision,
            detail=_joined(
                decision.detail, equivalent, f"a ratio to 0 on {endless} more" if endless else ""
            ),
            performance=claim.performance or left.performance or right.performance,
        ),
        paired_values(left, right, how),
        how,
        lost_for=lost_for,
        lost_against=lost_against,
        endless=endless,
        scale=(min(max(sizes, default=1.0), 1.0) or 1.0) if how == "difference" else 1.0,
    )


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
        scale: the size of the numbers, at most 1, of which `NOISE` is rounding.
    """
    claim, lost = decision.claim, lost_for + lost_against
    known = [0.0 if abs(value) < NOISE * scale else value for value in values.values()]
    region, seeds = claim.region, len(known) + lost
    same = claim.same
    near = None if same is None else Region(claim.level - same, claim.level + same)
    if seeds == 0:
        return decision
    limited = any(value in claim.limits for value in known)
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
    found = None if logarithmic or len(known) < 2 else detectable(deviation(known), len(known))
    known, region = [value / scale for value in known], region.map(lambda end: end / scale)
    near = None if near is None else near.map(lambda end: end / scale)
    least = PERFORMANCE_SEEDS if decision.performance else LEAST_SEEDS
    few = f"{seeds} seeds; a verdict needs {least}" if seeds < least else ""
    sizes = sorted({len(seeds) for seeds in values.looks if len(seeds) >= least})
    grown = ""
    if len(sizes) > 1:
        chain = " to ".join(map(str, sizes))
        grown = f"grown from {chain} seeds, so that p counts {price(len(sizes)):g}-fold"
    if lost or limited:  # a sign, and no size
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
        detectable=found,
        expected=None if math.isnan(claim.spread) else detectable(claim.spread, seeds),
        supported=supported,
        p=None if few else p,
        p_equivalent=near.p_value(known) if near and equivalent and not few else None,
    )


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


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
