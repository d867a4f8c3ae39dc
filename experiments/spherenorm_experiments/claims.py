"""Claims: statements held against our numbers, and the one evaluator that decides them.

A claim says that a mean over seeds lies in a region: above a bound, below it, or near it. Its
number is a function of the runs, a Series by seed. Student's test decides both ways alike: for the
claim if the mean lies inside and the test excludes every end of the region, against it if the mean
lies outside and the test excludes the nearest end. The exact sign test decides where a value has no
size (a run diverged), where one lies at a limit of what it may be, and where all are equal; nan is
no pair. A verdict on a score needs six seeds. The p-values of a study are adjusted for their number
by Holm's procedure.

A claim whose effect the runs could hardly find is marked before they are made: it has no verdict
for or against.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.stats import (
    LATER,
    LEVEL,
    NOISE,
    POWER,
    Region,
    detectable,
    deviation,
    holm,
    interval,
    mean,
    price,
    scale_of,
    sign_test,
)
from spherenorm_experiments.tables import Cell, Table

Kind = Literal["paper", "calibrated", "identity", "ours"]
KINDS: tuple[Kind, ...] = get_args(Kind)

TITLES: dict[Kind, str] = {
    "paper": "Statements of the paper",
    "calibrated": "Calibrated: a free number was chosen so that the paper's number comes out",
    "identity": "Identities: true by construction, so that they test our code alone",
    "ours": "Ours: beyond the paper",
}


@dataclass(frozen=True)
class Statement:
    """The ground of a claim.

        >>> str(Statement("paper", "Section 3.2", "ensuring a faster convergence"))
        'Section 3.2: “ensuring a faster convergence”'

    Attributes:
        kind: paper, a statement with its place and wording; calibrated, a number of the paper's
            that a choice of ours was fitted to; identity, true by construction; ours, beyond the
            paper.
        place: the section, table, figure or equation; of another source its name.
        quotation: the paper's own words.
        topic: what it is about, in a page's index of statements.

    Raises:
        ValueError: an unknown kind, or a statement of the paper without its place and wording.
    """

    kind: Kind
    place: str
    quotation: str = ""
    topic: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "paper" and not (self.place and self.quotation):
            lack = "a statement of the paper needs its place and its wording"
            raise ValueError(f"{lack}, got {self.place!r} and {self.quotation!r}")

    @property
    def words(self) -> str:
        """The quotation in its marks; numbers of a table are none."""
        return self.quotation if self.place.startswith("Table ") else f"“{self.quotation}”"

    def __str__(self) -> str:
        return f"{self.place}: {self.words}" if self.quotation else self.place


OURS = Statement("ours", "ours")

MARGIN = 1.0
"""Points within which two scores are equivalent, unless a claim states another margin."""

RELATION = re.compile(r"([<>=]) (\S+)(?: ± (\S+))?")

Verdict = Literal[
    "supported", "contradicted", "equivalent", "inconclusive", "cannot be decided here"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FOR: tuple[Verdict, ...] = ("supported",)
AGAINST: tuple[Verdict, ...] = ("contradicted", "equivalent")
"""Equivalent is against: the difference is shown to be smaller than the paper's effect."""

OUT_OF_REACH = 3.0
"""A claim cannot be decided if the expected detectable effect is so many times the paper's."""

LEAST_SEEDS = 3
PERFORMANCE_SEEDS = 6
"""Before any verdict on a score or a time, for or against."""

PRIMARY_WEIGHT = 4.0
"""A primary claim counts this often among the claims of its study."""

P_HEADING = "p (Holm)"
"""The heading of p-values: all of them are adjusted for the claims of the study, and for looks."""


@dataclass(frozen=True)
class Claim:
    """A number by seed, above a bound, below it, or near it.

        def halved(runs):
            sgdp, sgd = runs.best("digits", "SGDP"), runs.best("digits", "SGD")
            return sgdp.growth / sgd.growth

        Claim("growth", "< 0.5", halved, "SGDP grows its norm less than half as much", ratio=True)

    Attributes:
        name: its own in its study, in lower case; it stays when other claims come and go.
        relation: "> 0", "< 0.5" or "= 1 ± 0.05".
        of: the number by seed, a function of the runs; a bare number is one without randomness;
            None where there is none.
        text: the claim in words; the first line of the function's docstring by default.
        cites: the statement behind it.
        ratio: the number is a ratio; its mean is geometric, so that a / b and b / a decide alike.
        margin: of a number without randomness how far beyond the bound it has to lie: within,
            another choice of what the paper leaves open might turn it round. Else, within how much
            of the bound the number is "equivalent", if it is not decided; the paper's effect is
            another, and the smaller one counts.
        limits: of what the number may be, such as 0 and 100 percent; the interval is cut there,
            and where a number lies on a limit the sign test decides.
        spread: the standard deviation of the number over seeds that is expected before the runs;
            with the number of seeds it says if the paper's effect can be found.
        unit: of the number.
        format: of a number without randomness.
        paper: the paper's number; a number with the unit of ours is its effect.
        note: a fact that a reader needs, or a function of the runs that gives it.
        score: True for a score or a time, which need six seeds.
        primary: True for the claims that a study is made for.
        deterministic: the runs have no randomness but their start: equal numbers decide.

    Raises:
        ValueError: a name with capitals or spaces, or another relation.
    """

    name: str
    relation: str
    of: Callable[[Runs], pd.Series | float | None]
    text: str = ""
    cites: Statement = OURS
    ratio: bool = False
    margin: float | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)
    spread: float = math.nan
    unit: str = ""
    format: str = ".3g"
    paper: Cell | str = ""
    note: str | Callable[[Runs], str] = ""
    score: bool = False
    primary: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.name != slug(self.name) or not self.name:
            raise ValueError(f"name must be like 'norm-growth.sgdp', got {self.name!r}")
        found = RELATION.fullmatch(self.relation)
        if found is None or (found[1] == "=") != (found[3] is not None):
            right = "'> 0', '< 0.5' or '= 1 ± 0.05'"
            raise ValueError(f"{self.name}: relation must be like {right}, got {self.relation!r}")
        if not self.text:
            object.__setattr__(self, "text", (self.of.__doc__ or "").split("\n")[0].rstrip("."))

    @property
    def sign(self) -> str:
        """>, < or =."""
        return self.relation[0]

    @property
    def level(self) -> float:
        """The bound."""
        return float(self.relation.split()[1])

    @property
    def region(self) -> Region:
        """The numbers for which the claim is true."""
        if self.sign == "=":
            return self.around(float(self.relation.split()[3]))
        return Region(low=self.level) if self.sign == ">" else Region(high=self.level)

    def around(self, margin: float) -> Region:
        """The numbers near the bound."""
        return Region(self.level - margin, self.level + margin)

    @property
    def effect(self) -> float | None:
        """The paper's effect, if its size is known."""
        number = self.paper.number if isinstance(self.paper, Cell) and self.sign != "=" else None
        return None if number is None else float(number)

    @property
    def same(self) -> float | None:
        """The margin of equivalence: at most the paper's effect, so that equivalent denies it."""
        if self.margin is None or self.effect is None:
            return None if self.margin is None else abs(self.margin)
        return min(abs(self.margin), abs(self.effect))


def slug(text: str) -> str:
    """A part of a claim's name.

    >>> slug("ResNet-50 + CutMix")
    'resnet-50-cutmix'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Decision:
    """A claim with our numbers, and what they say: one line of the scorecard.

    Attributes:
        numbers: ours, with their intervals.
        ours: the numbers in words.
        seeds: how many seeds ours rest on; 0 where nothing is random.
        detail: notes, diverged runs, too few seeds.
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
        """For, against, equivalent or open."""
        if self.out_of_reach:
            return "cannot be decided here"
        if self.p is not None and self.p < LEVEL:
            return "supported" if self.supported else "contradicted"
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
    def shown_p(self) -> float | None:
        """The adjusted p-value that the verdict rests on; None where no such test decides.

        None for numbers without randomness and for equal ones. "Equivalent" rests on
        `p_equivalent`, which `evidence` says.
        """
        return self.p if self.p and self.seeds and self.verdict != "equivalent" else None

    @property
    def evidence(self) -> str:
        """The detail, with the size beside the paper's effect and the ground of equivalence."""
        margin = ""
        if self.verdict == "equivalent" and self.p_equivalent is not None:
            unit = f" {self.claim.unit}" if self.claim.unit else ""
            within = f"within ±{self.claim.same or 0.0:.3g}{unit}"
            margin = f"{within}: p = {self.p_equivalent:.2g} (Bonferroni)"
        return joined(self.size, margin, self.detail)

    @property
    def has_results(self) -> bool:
        return bool(self.numbers)

    @property
    def size(self) -> str:
        """Our interval beside the paper's effect: smaller, larger, or nothing to say."""
        effect, sign = self.claim.effect, 1 if self.claim.sign == ">" else -1
        if self.verdict not in FOR or effect is None or self.numbers[0].interval is None:
            return ""
        low, high = sorted(sign * end for end in self.numbers[0].interval)
        if high < sign * effect:
            return "smaller than the paper's"
        return "larger than the paper's" if low > sign * effect else ""

    def to_json(self) -> dict[str, Any]:
        """The claim as it is shown, and its numbers."""
        claim, region = self.claim, self.claim.region
        return {
            "name": claim.name,
            "text": claim.text,
            "kind": self.kind,
            "place": claim.cites.place,
            "quotation": claim.cites.words if claim.cites.quotation else "",
            "verdict": self.verdict,
            "ours": self.ours,
            "numbers": [cell.to_json() for cell in self.numbers],
            "paper": str(claim.paper),
            "paper_value": claim.paper.to_json()["value"]
            if isinstance(claim.paper, Cell)
            else None,
            "seeds": self.seeds,
            "detail": self.evidence,
            "score": claim.score,
            "primary": claim.primary,
            "p": self.p,
            "shown_p": self.shown_p,
            "detectable": self.detectable,
            "expected": self.expected,
            "region": [e if math.isfinite(e) else None for e in (region.low, region.high)],
        }


def joined(*parts: str) -> str:
    """The parts of a detail that are not empty."""
    return "; ".join(filter(None, parts))


def measure(claim: Claim, runs: Runs, of: Sequence[Place] | None = None) -> Decision:
    """The claim decided by the runs, before the study's other claims are counted.

    Args:
        of: the places whose scores a score compares, which say what is rounding; all by default.
    """
    value = claim.of(runs)
    note = claim.note(runs) if callable(claim.note) else claim.note
    decision = Decision(claim, detail=note)
    if value is None:
        return decision
    if not isinstance(value, pd.Series):
        return _without_randomness(decision, float(value))
    chosen = (runs.best(*place).test for place in (runs.places if of is None else of))
    scale = scale_of(*chosen) if claim.score and not claim.ratio else 1.0
    series = value.astype(float).dropna() / scale
    return decision if series.empty else _tested(decision, series, runs.looks, scale)


def adjusted(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions of a study with their p-values adjusted for their looks and their number.

    Holm's procedure with weights: primary claims count `PRIMARY_WEIGHT` times. A verdict of
    equivalence is adjusted by the same weights, all at once. A claim takes part if it has a p-value
    of random numbers, and is not out of reach; one out of reach has no p-value afterwards.

    Raises:
        ValueError: two claims have one name.
    """
    names = [decision.claim.name for decision in decisions]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two claims have the name {twice[0]!r}")
    found = [replace(d, p=None, p_equivalent=None) if d.out_of_reach else d for d in decisions]
    tested = [i for i, d in enumerate(found) if d.p is not None and d.seeds > 0]
    weights = [PRIMARY_WEIGHT if found[i].claim.primary else 1.0 for i in tested]
    paid = [price(found[i].looks) * (found[i].p or 0.0) for i in tested]
    for i, weight, p in zip(tested, weights, holm(paid, weights), strict=True):
        equivalent = found[i].p_equivalent
        if equivalent is not None:
            share = sum(weights) / weight
            equivalent = min(1.0, price(found[i].looks) * equivalent * share)
        found[i] = replace(found[i], p=p, p_equivalent=equivalent)
    return found


def undecided(decision: Decision, reason: str) -> Decision:
    """The decision with its numbers and without a verdict, for or against."""
    return replace(decision, p=None, p_equivalent=None, detail=joined(reason, decision.detail))


def _without_randomness(decision: Decision, value: float) -> Decision:
    """A number of one run: near the bound, or beyond it by a margin."""
    claim, margin = decision.claim, decision.claim.margin or 0.0
    number = Cell(value, claim.format, unit=claim.unit, missing="nan")
    if claim.sign == "=":
        near = claim.region.low <= value <= claim.region.high
        allowed = f"{100 * (value / claim.level - 1):+.1f} %, allowed {claim.relation[2:]}"
        ours = f"{number} ({allowed})"
        return replace(decision, numbers=[number], ours=ours, supported=near, p=0.0)
    if not margin > 0:
        lack = "a number without randomness needs a positive margin"
        raise ValueError(f"{claim.name}: {lack}, got {claim.margin!r}")
    beyond = (value - claim.level) * (1 if claim.sign == ">" else -1)
    detail = joined(decision.detail, f"decided at {margin:g} beyond {claim.level:g}")
    return replace(
        decision, numbers=[number], ours=str(number), detail=detail, supported=beyond > 0,
        p=0.0 if abs(beyond) >= margin else 1.0,
    )  # fmt: skip


def _tested(
    decision: Decision, series: pd.Series, looks: Sequence[frozenset[int]], scale: float
) -> Decision:
    """The decision with its number, and the level at which the number decides.

    A ratio is tested by its logarithm: a ratio and its inverse are alike.

    Args:
        series: in units of the scale.
    """
    claim = decision.claim

    def inner(end: float) -> float:
        if claim.ratio:  # of positive numbers, which an end below zero does not bound
            return math.log(end) if end > 0 else -math.inf
        return end / scale

    def outer(value: float) -> float:
        return math.exp(value) if claim.ratio else value * scale

    values = np.where(series.abs() < NOISE, 0.0, series)
    sized = np.isfinite(values) & ((values > 0) | (not claim.ratio))
    known = (np.log(values[sized]) if claim.ratio else values[sized]).tolist()
    region = claim.region.map(inner)
    low, high = np.clip([outer(end) for end in interval(known)], *claim.limits).tolist()
    number = Cell(
        outer(mean(known)),
        "+.3g" if not claim.ratio and claim.level == 0 else ".3g",
        interval=None if math.isnan(low) else (low, high),
        n=len(known),
        diverged=int((~np.isfinite(values)).sum()),
        prefix="×" if claim.ratio else "",
        unit=claim.unit,
    )
    lost = len(known) < len(values)
    if lost or any(value * scale in claim.limits for value in values):  # a sign, and no size
        wins, losses = claim.region.map(lambda end: end / scale).signs(values)
        supported, p = wins > losses, sign_test(wins, losses)
    else:
        supported, p = region.holds(mean(known)), region.p_value(known)
        if claim.deterministic and np.ptp(known) < NOISE and any(region.signs(known)):
            p = 0.0
    p_equivalent = None
    if claim.same is not None and not lost:
        around = claim.around(claim.same).map(inner)
        p_equivalent = around.p_value(known) if around.holds(mean(known)) else None
    least = PERFORMANCE_SEEDS if claim.score else LEAST_SEEDS
    few = f"{len(values)} seeds; a verdict needs {least}" if len(values) < least else ""
    sizes = sorted({len(look & {*series.index}) for look in looks})
    sizes = [size for size in sizes if size >= least]
    grown = ""
    if len(sizes) > 1:
        chain = " to ".join(map(str, sizes))
        grown = f"grown from {chain} seeds, so that p counts {price(len(sizes)):g}-fold"
    alone = claim.ratio or len(known) < 2
    return replace(
        decision,
        numbers=[number],
        ours=str(number),
        seeds=len(values),
        detail=joined(decision.detail, few, grown),
        looks=max(1, len(sizes)),
        detectable=None if alone else scale * detectable(deviation(known), len(known)),
        expected=None if math.isnan(claim.spread) else detectable(claim.spread, len(values)),
        supported=supported,
        p=None if few else p,
        p_equivalent=None if few else p_equivalent,
    )


def claims_table(decisions: Sequence[Decision]) -> Table:
    """Claims as a table. Of several numbers in a claim, its first one has a column of its own."""
    columns = (
        *("name", "claim", "kind", "source", "verdict", P_HEADING),
        *("number", "ours in words", "paper", "seeds", "detail"),
    )
    rows = [
        (
            *(each.claim.name, each.claim.text, each.kind, str(each.claim.cites), each.verdict),
            Cell(each.shown_p, ".2g", missing=""),
            each.numbers[0] if each.numbers else "",
            *(each.ours, each.claim.paper, Cell(each.seeds, "d"), each.evidence),
        )
        for each in decisions
    ]
    return Table("Claims", columns, rows)


def rules() -> list[str]:
    """The rules of verdicts; each number is the constant that decides."""
    return [
        f"A number is a mean over seeds with Student's {100 * (1 - LEVEL):g} % interval; two "
        "optimizers are compared seed by seed. The exact sign test decides where a run diverged, "
        "where a number lies at a limit such as 100 %, and where all numbers are equal. A score or "
        f"a time needs {PERFORMANCE_SEEDS} seeds.",
        f"The level is {LEVEL:g}, of which later looks at more seeds share {LATER:g}. The claims "
        "of one study are one family: their p-values are adjusted by Holm's procedure, in which "
        f"primary claims count {PRIMARY_WEIGHT:g} times, so that a study without any true "
        f"difference has a verdict for or against with a probability of at most {LEVEL:g}. "
        "Intervals are not adjusted. Where nothing is random, equal numbers decide. A condition "
        "whose scores could not be decided by all seeds has three.",
        "*Supported*: the number lies where the claim has it, and the test excludes the bound; a "
        "note says if the interval lies below or above the paper's effect, which is of other data "
        "and another network. *Contradicted*: the same on the other side. *Equivalent*: the "
        "difference is shown to be within a margin that is at most the paper's effect, so that it "
        "is denied.",
        "Detectable is the effect that these runs find with a probability of "
        f"{POWER:g}: (t(1 - {LEVEL:g} / 2) + t({POWER:g})) s / √n, with the n - 1 degrees of "
        "freedom of n seeds of standard deviation s. If s as earlier runs have it makes that more "
        f"than {OUT_OF_REACH:g} times the paper's effect, the claim *cannot be decided here*, "
        "whatever the runs say: it takes no part in the family and has no p; so it is where a "
        "spread was known beforehand.",
        "Every p in a table is adjusted as above, and is the one that the verdict rests on. A "
        "claim without one cannot be decided, is *equivalent* by a test of its own (adjusted by "
        "Bonferroni's procedure with the same weights), or has numbers that are all equal, or one "
        "number.",
        "Claims in bold are those that a study is made for. A tolerance, a factor or a number of "
        "points in a claim is ours, unless the column of the paper's numbers has it.",
    ]
