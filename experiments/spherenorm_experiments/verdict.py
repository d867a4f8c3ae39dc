"""Verdicts of numbers on claims: the one module that decides, with its statistics.

A claim says that a mean over seeds lies in a region: above a bound, below it, or near it. Its
number is a function of the runs, a Series by seed. `evaluate_claim` tests it,
`adjust_for_multiplicity` counts the other claims of its study, and `Decision.verdict` is one of
five words:

    supported      the mean lies where the claim has it, and the test excludes the bound
    contradicted   the same on the other side
    equivalent     the difference is shown to be smaller than a margin
    inconclusive   tested, and none of these: what so many seeds can detect stands beside it
    not tested     no runs, too few seeds, or runs that are still missing

Student's test decides; the exact sign test does where a value has no size (a run diverged), where
one lies at a limit of what it may be, and where all are equal. nan is no pair. A verdict on a score
needs six seeds.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.tables import Cell, Table


class Verdict(StrEnum):
    """The verdict of the runs on a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not tested"


VERDICTS = tuple(Verdict)
FOR = (Verdict.SUPPORTED,)
AGAINST = (Verdict.CONTRADICTED, Verdict.EQUIVALENT)
"""Equivalent is against: the difference is shown to be smaller than the paper's effect."""

LEVEL = 0.05
"""Of every interval and every verdict: a study without any true difference has a verdict for or
against a claim with at most this probability."""

POWER = 0.8
"""The probability with which a detectable effect has a verdict."""

ROUNDING = 1e-9
"""Two numbers that differ by at most this are equal."""

LEAST_SEEDS = 3
PERFORMANCE_SEEDS = 6
"""Before any verdict on a score or a time, for or against."""

NOT_REACHED = "not in both"
"""Said of seeds on which one of two arms has not reached a target."""

EQUIVALENCE_MARGIN = 1.0
"""Points within which two scores are equivalent, unless a claim states another margin."""

MAX_DETECTABLE_RATIO = 3.0
"""The evidence tier trains a condition if its runs can be expected to detect so many times the
paper's effect."""

P_HEADING = "p (Holm)"
"""The heading of p-values: all of them are adjusted for the number of claims in the study."""

RELATION = re.compile(r"([<>=]) (\S+)(?: ± (\S+))?")

# Statistics.


def mean(values: Iterable[float]) -> float:
    """Return the mean; nan of no values."""
    sample = list(values)
    return float(np.mean(sample)) if sample else math.nan


def deviation(values: Iterable[float]) -> float:
    """Return the standard deviation of a sample; nan of fewer than two values."""
    sample = list(values)
    return float(np.std(sample, ddof=1)) if len(sample) > 1 else math.nan


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
    """Return the two-sided p-value of Student's test that the mean of the values is `bound`.

    Values without any spread have no t: of them the sign test decides.
    """
    sample = np.asarray(values, dtype=float)
    off = abs(mean(sample) - bound)
    if off < ROUNDING or len(sample) < 2:
        return 1.0
    if np.ptp(sample) < ROUNDING * max(1.0, float(np.abs(sample).max())):
        return sign_test(len(sample), 0)
    error = deviation(sample) / math.sqrt(len(sample))
    return float(2 * stdtr(len(sample) - 1, -off / error))


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact test that a win is as likely as a loss.

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
        """Return the region between the images of the ends."""
        return Region(function(self.low), function(self.high))

    def holds(self, value: float) -> bool:
        above = self.low == -math.inf or value > self.low + ROUNDING
        return above and (self.high == math.inf or value < self.high - ROUNDING)

    def signs(self, values: Iterable[float]) -> tuple[int, int]:
        """Return the counts of values inside and outside; on an end they are neither."""
        sample = list(values)
        ties = sum(any(abs(value - end) <= ROUNDING for end in self.ends) for value in sample)
        wins = sum(map(self.holds, sample))
        return wins, len(sample) - wins - ties

    def p_value(self, values: Sequence[float]) -> float:
        """Return the level at which the values decide if their mean is inside or outside.

        Inside, every end has to be excluded; outside, the nearest.
        """
        center = mean(values)
        if self.holds(center):
            return max(t_test(values, end) for end in self.ends)
        return t_test(values, min(self.ends, key=lambda end: abs(center - end)))


def rounding_scale(*numbers: Iterable[float]) -> float:
    """Return the unit in which differences are told from rounding: 1, or a smaller one.

    >>> rounding_scale([92.0, 93.5]), rounding_scale([2e-9, -math.inf], [-3e-9])
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


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's procedure.

    The smallest of n is multiplied by n, the next by n - 1, and so on; none becomes smaller than
    one before it. A verdict where the adjusted value is below a level is false in at most that
    share of all families, whatever the dependence.

        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]

    Source: S. Holm, *A simple sequentially rejective multiple test procedure*, 1979.
    """
    count = len(p_values)
    adjusted, largest = [1.0] * count, 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[index] * (count - rank)))
        adjusted[index] = largest
    return adjusted


@functools.lru_cache(maxsize=256)
def _quantile(count: int, share: float = 1 - LEVEL / 2) -> float:
    """Return a quantile of Student's distribution with count - 1 degrees of freedom."""
    return float(stdtrit(count - 1, share))


# Claims.

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


BEYOND_PAPER = Statement("ours", "ours")


@dataclass(frozen=True)
class Claim:
    """A number by seed, above a bound, below it, or near it.

        def halved(runs):
            sgdp, sgd = runs.selected("digits", "SGDP"), runs.selected("digits", "SGD")
            return sgdp.growth / sgd.growth

        Claim("growth", "< 0.5", halved, "SGDP grows its norm less than half as much", ratio=True)

    Attributes:
        name: its own in its study, in lower case; it stays when other claims come and go.
        relation: "> 0", "< 0.5" or "= 1 ± 0.05".
        statistic: the number by seed, a function of the runs; a bare number is one without
            randomness; None where there is none.
        text: the claim in words; the first line of the function's docstring by default.
        cites: the statement behind it.
        ratio: the number is a ratio; its mean is geometric, so that a / b and b / a decide alike.
        decision_margin: of a number without randomness how far beyond the bound it has to lie:
            within, another choice of what the paper leaves open might turn it round.
        equivalence_margin: within how much of the bound a number that is not decided is
            "equivalent"; the paper's effect is another such margin, and the smaller one counts.
        limits: of what the number may be, such as 0 and 100 percent; the interval is cut there,
            and where a number lies on a limit the sign test decides.
        spread: the standard deviation of the number over seeds that is expected before the runs;
            with the number of seeds it says what they can be expected to detect.
        unit: of the number.
        format: of a number without randomness.
        paper: the paper's number; a number with the unit of ours is its effect.
        note: a fact that a reader needs, or a function of the runs that gives it.
        is_performance: True for a score or a time, which need six seeds.
        primary: True for the claims that a study is made for.
        deterministic: the runs have no randomness but their start: equal numbers decide.
        lost_word: says what befell the runs that have no size, if they did not diverge.

    Raises:
        ValueError: a name with capitals or spaces, or another relation.
    """

    name: str
    relation: str
    statistic: Callable[[Runs], pd.Series | float | None]
    text: str = ""
    cites: Statement = BEYOND_PAPER
    ratio: bool = False
    decision_margin: float | None = None
    equivalence_margin: float | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)
    spread: float = math.nan
    unit: str = ""
    format: str = ".3g"
    paper: Cell | str = ""
    note: str | Callable[[Runs], str] = ""
    is_performance: bool = False
    primary: bool = False
    deterministic: bool = False
    lost_word: str = "diverged"

    def __post_init__(self) -> None:
        if self.name != slug(self.name) or not self.name:
            raise ValueError(f"name must be like 'norm-growth.sgdp', got {self.name!r}")
        match = RELATION.fullmatch(self.relation)
        if match is None or (match[1] == "=") != (match[3] is not None):
            right = "'> 0', '< 0.5' or '= 1 ± 0.05'"
            raise ValueError(f"{self.name}: relation must be like {right}, got {self.relation!r}")
        if not self.text:
            object.__setattr__(
                self, "text", (self.statistic.__doc__ or "").split("\n")[0].rstrip(".")
            )

    @property
    def sign(self) -> str:
        """>, < or =."""
        return self.relation[0]

    @property
    def bound(self) -> float:
        """The bound."""
        return float(self.relation.split()[1])

    @property
    def region(self) -> Region:
        """The numbers for which the claim is true."""
        if self.sign == "=":
            return self.around(float(self.relation.split()[3]))
        return Region(low=self.bound) if self.sign == ">" else Region(high=self.bound)

    def around(self, margin: float) -> Region:
        """Return the numbers near the bound."""
        return Region(self.bound - margin, self.bound + margin)

    @property
    def effect(self) -> float | None:
        """The paper's effect, if its size is known."""
        number = self.paper.number if isinstance(self.paper, Cell) and self.sign != "=" else None
        return None if number is None else float(number)

    @property
    def tested_margin(self) -> float | None:
        """The margin of equivalence: at most the paper's effect, so that equivalent denies it."""
        if self.equivalence_margin is None:
            return None
        sizes = [abs(self.equivalence_margin), *([] if self.effect is None else [abs(self.effect)])]
        return min(sizes)


def slug(text: str) -> str:
    """Return a part of a claim's name.

    >>> slug("ResNet-50 + CutMix")
    'resnet-50-cutmix'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Decision:
    """A claim with our numbers, and what they say: one line of the scorecard.

    Attributes:
        numbers: ours, with their intervals.
        number_text: the numbers in words.
        seeds: how many seeds ours rest on; 0 where nothing is random.
        detail: notes, diverged runs, too few seeds.
        supported: True if our number lies in the claim's region.
        p: the level at which that is decided; None where there is nothing to test.
        p_equivalent: the level at which the number is within the margin of the bound.
        detectable: the least effect that so many seeds of this spread find, see `detectable`.
    """

    claim: Claim
    numbers: Sequence[Cell] = ()
    number_text: str = "no results"
    seeds: int = 0
    detail: str = ""
    supported: bool = False
    p: float | None = None
    p_equivalent: float | None = None
    detectable: float | None = None

    @property
    def kind(self) -> str:
        return self.claim.cites.kind

    @property
    def verdict(self) -> Verdict:
        """The word for what the tests say."""
        if self.p is not None and self.p < LEVEL:
            return Verdict.SUPPORTED if self.supported else Verdict.CONTRADICTED
        if self.p_equivalent is not None and self.p_equivalent < LEVEL:
            return Verdict.EQUIVALENT
        return Verdict.NOT_TESTED if self.p is None else Verdict.INCONCLUSIVE

    @property
    def verdict_word(self) -> str:
        """The verdict on the claim that an optimizer scores better, as a reader says it."""
        words = {Verdict.SUPPORTED: "better", Verdict.CONTRADICTED: "worse"}
        return words.get(self.verdict, str(self.verdict))

    @property
    def printed_p(self) -> float | None:
        """The adjusted p-value that the verdict rests on; None where no such test decides.

        None for numbers without randomness and for equal ones. "Equivalent" rests on
        `p_equivalent`, which `evidence` says.
        """
        return self.p if self.p and self.seeds and self.verdict is not Verdict.EQUIVALENT else None

    @property
    def evidence(self) -> str:
        """The detail, with the size beside the paper's effect and the ground of the verdict."""
        unit = f" {self.claim.unit}" if self.claim.unit else ""
        ground = ""
        if self.verdict is Verdict.EQUIVALENT and self.p_equivalent is not None:
            within = f"within ±{self.claim.tested_margin or 0.0:.3g}{unit}"
            ground = f"{within}: p = {self.p_equivalent:.2g} (Bonferroni)"
        elif self.verdict is Verdict.INCONCLUSIVE and self.detectable is not None:
            ground = f"{self.seeds} seeds detect {self.detectable_text}"
        return joined(self.size, ground, self.detail)

    @property
    def detectable_text(self) -> str:
        """The detectable effect with its unit, of a ratio as a factor; nothing if none is known."""
        if self.detectable is None:
            return ""
        unit = f" {self.claim.unit}" if self.claim.unit else ""
        return f"{'×' if self.claim.ratio else ''}{self.detectable:.2g}{unit}"

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
        """Return the claim as it is shown, and its numbers."""
        claim, region = self.claim, self.claim.region
        return {
            "name": claim.name,
            "text": claim.text,
            "kind": self.kind,
            "place": claim.cites.place,
            "quotation": claim.cites.words if claim.cites.quotation else "",
            "verdict": str(self.verdict),
            "ours": self.number_text,
            "numbers": [cell.to_json() for cell in self.numbers],
            "paper": str(claim.paper),
            "paper_value": claim.paper.to_json()["value"]
            if isinstance(claim.paper, Cell)
            else None,
            "seeds": self.seeds,
            "detail": self.evidence,
            "is_performance": claim.is_performance,
            "primary": claim.primary,
            "p": self.p,
            "printed_p": self.printed_p,
            "detectable": self.detectable,
            "detectable_text": self.detectable_text,
            "region": [e if math.isfinite(e) else None for e in (region.low, region.high)],
        }


def joined(*parts: str) -> str:
    """Return the parts of a detail that are not empty."""
    return "; ".join(filter(None, parts))


def evaluate_claim(claim: Claim, runs: Runs, compared: Sequence[Place] | None = None) -> Decision:
    """Test a claim by the runs, before the study's other claims are counted.

    Args:
        compared: the places whose scores a score compares, which say what is rounding; all by
            default.
    """
    value = claim.statistic(runs)
    note = claim.note(runs) if callable(claim.note) else claim.note
    decision = Decision(claim, detail=note)
    if value is None:
        return decision
    if not isinstance(value, pd.Series):
        return _decide_without_randomness(decision, float(value))
    scale = 1.0
    if claim.is_performance and not claim.ratio:
        places = runs.places if compared is None else compared
        scale = rounding_scale(*(runs.selected(*place).test for place in places))
    series = value.astype(float).dropna()
    return decision if series.empty else _test_series(decision, series, runs.seed_counts, scale)


def adjust_for_multiplicity(decisions: Sequence[Decision]) -> list[Decision]:
    """Adjust the p-values of a study's decisions for their number by Holm's procedure.

    A p-value of equivalence is multiplied by the number of claims (Bonferroni). A claim takes part
    if it has a p-value of random numbers.

    Raises:
        ValueError: two claims have one name.
    """
    names = [decision.claim.name for decision in decisions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two claims have the name {name!r}")
    adjusted = list(decisions)
    family = [
        i for i, decision in enumerate(decisions) if decision.p is not None and decision.seeds > 0
    ]
    for i, p in zip(family, holm([decisions[i].p or 0.0 for i in family]), strict=True):
        equivalent = decisions[i].p_equivalent
        if equivalent is not None:
            equivalent = min(1.0, equivalent * len(family))
        adjusted[i] = replace(decisions[i], p=p, p_equivalent=equivalent)
    return adjusted


def without_verdict(decision: Decision, reason: str) -> Decision:
    """Return the decision with its numbers and without a verdict."""
    return replace(decision, p=None, p_equivalent=None, detail=joined(reason, decision.detail))


def paired_difference(a: pd.Series, b: pd.Series) -> Cell:
    """Return the mean of a - b over the seeds that both have, with its interval at `LEVEL`."""
    return estimate((a - b).astype(float).dropna(), rounding_scale(a, b))


def estimate(
    values: pd.Series,
    scale: float = 1.0,
    *,
    ratio: bool = False,
    limits: tuple[float, float] = (-math.inf, math.inf),
    form: str = "+.3g",
    unit: str = "",
    lost_word: str = "diverged",
) -> Cell:
    """The mean of a number over seeds with Student's interval: of a claim, and in every table.

    Runs that diverged have no size and are counted beside it.

    Args:
        values: the number by seed.
        scale: see `rounding_scale`.
        ratio: the mean and its interval are geometric.
        limits: of what the number may be; the interval is cut there.
        lost_word: says what befell the runs without a size.
    """
    sized = _finite_test_values(values, scale, ratio)
    sample = sized.tolist()
    low, high = np.clip(
        [_from_test_scale(end, scale, ratio) for end in interval(sample)], *limits
    ).tolist()
    n_lost = len(values) - len(sample)
    return Cell(
        _from_test_scale(mean(sample), scale, ratio), form,
        interval=None if math.isnan(low) else (low, high), n=len(sample),
        diverged=n_lost, lost_word=lost_word, prefix="×" if ratio else "", unit=unit,
    )  # fmt: skip


def _finite_test_values(values: pd.Series, scale: float, ratio: bool) -> np.ndarray:
    """Return the numbers that have a size, in units of the scale; of ratios their logarithms."""
    scaled = _in_scale(values, scale)
    sized: np.ndarray = scaled[np.isfinite(scaled) & ((scaled > 0) | (not ratio))]
    return np.log(sized) if ratio else sized


def _in_scale(values: pd.Series, scale: float) -> np.ndarray:
    scaled = values.to_numpy(dtype=float) / scale
    return np.where(np.abs(scaled) < ROUNDING, 0.0, scaled)


def _from_test_scale(value: float, scale: float, ratio: bool) -> float:
    """Return a number of the test as the reader has it."""
    return math.exp(value) if ratio else value * scale


def _to_test_scale(end: float, scale: float, ratio: bool) -> float:
    """Return an end of a region as the test has it."""
    if ratio:  # of positive numbers, which an end below zero does not bound
        return math.log(end) if end > 0 else -math.inf
    return end / scale


def _decide_without_randomness(decision: Decision, value: float) -> Decision:
    """Return a number of one run: near the bound, or beyond it by a margin."""
    claim, margin = decision.claim, decision.claim.decision_margin or 0.0
    number = Cell(value, claim.format, unit=claim.unit, missing="nan")
    if claim.sign == "=":
        is_near = claim.region.low <= value <= claim.region.high
        allowed = f"{100 * (value / claim.bound - 1):+.1f} %, allowed {claim.relation[2:]}"
        number_text = f"{number} ({allowed})"
        return replace(
            decision, numbers=[number], number_text=number_text, supported=is_near, p=0.0
        )
    if not margin > 0:
        lack = "a number without randomness needs a positive decision_margin"
        raise ValueError(f"{claim.name}: {lack}, got {claim.decision_margin!r}")
    beyond = (value - claim.bound) * (1 if claim.sign == ">" else -1)
    detail = joined(decision.detail, f"decided at {margin:g} beyond {claim.bound:g}")
    return replace(
        decision, numbers=[number], number_text=str(number), detail=detail, supported=beyond > 0,
        p=0.0 if abs(beyond) >= margin else 1.0,
    )  # fmt: skip


def _test_series(
    decision: Decision, series: pd.Series, seed_counts: Sequence[int], scale: float
) -> Decision:
    """Test a number by seed; a ratio by its logarithm, so that a ratio and its inverse are alike.

    Args:
        seed_counts: how many seeds there were after each request.
        scale: see `rounding_scale`.
    """
    claim = decision.claim
    inner = functools.partial(_to_test_scale, scale=scale, ratio=claim.ratio)
    form = "+.3g" if not claim.ratio and claim.bound == 0 else ".3g"
    number = estimate(
        series,
        scale,
        ratio=claim.ratio,
        limits=claim.limits,
        form=form,
        unit=claim.unit,
        lost_word=claim.lost_word,
    )
    values, sample = (
        _in_scale(series, scale),
        _finite_test_values(series, scale, claim.ratio).tolist(),
    )
    region = claim.region.map(inner)
    has_lost = len(sample) < len(values)
    if has_lost or any(value * scale in claim.limits for value in values):  # a sign, and no size
        wins, losses = claim.region.map(lambda end: end / scale).signs(values)
        supported, p = wins > losses, sign_test(wins, losses)
    else:
        supported, p = region.holds(mean(sample)), region.p_value(sample)
        if claim.deterministic and np.ptp(sample) < ROUNDING and any(region.signs(sample)):
            p = 0.0
    p_equivalent = None
    if claim.tested_margin is not None and not has_lost:
        around = claim.around(claim.tested_margin).map(inner)
        p_equivalent = around.p_value(sample) if around.holds(mean(sample)) else None
    min_seeds = PERFORMANCE_SEEDS if claim.is_performance else LEAST_SEEDS
    few = f"{len(values)} seeds; a verdict needs {min_seeds}" if len(values) < min_seeds else ""
    return replace(
        decision,
        numbers=[number],
        number_text=str(number),
        seeds=len(values),
        detail=joined(
            decision.detail, few, _describe_added_seeds(len(values), seed_counts, min_seeds)
        ),
        detectable=_detectable(sample, scale, claim.ratio),
        supported=supported,
        p=None if few else p,
        p_equivalent=None if few else p_equivalent,
    )


def _detectable(sample: Sequence[float], scale: float, ratio: bool) -> float | None:
    """Return the effect that so many values of this spread find; of ratios a factor."""
    if len(sample) < 2:
        return None
    effect = detectable(deviation(sample), len(sample))
    return math.exp(effect) if ratio else scale * effect


def _describe_added_seeds(count: int, seed_counts: Sequence[int], min_seeds: int) -> str:
    """Say how the number of seeds grew, if a verdict was possible before."""
    counts = sorted({min(number, count) for number in seed_counts})
    counts = [count for count in counts if count >= min_seeds]
    if len(counts) < 2:
        return ""
    return f"n was raised from {' to '.join(map(str, counts))}; p is not adjusted for it"


def claims_table(decisions: Sequence[Decision]) -> Table:
    """Claims as a table. Of several numbers in a claim, its first one has a column of its own."""
    columns = (
        *("name", "claim", "kind", "source", "verdict", P_HEADING),
        *("number", "ours in words", "paper", "seeds", "detail"),
    )
    rows = [
        (
            *(
                decision.claim.name,
                decision.claim.text,
                decision.kind,
                str(decision.claim.cites),
                decision.verdict,
            ),
            Cell(decision.printed_p, ".2g", missing=""),
            decision.numbers[0] if decision.numbers else "",
            *(
                decision.number_text,
                decision.claim.paper,
                Cell(decision.seeds, "d"),
                decision.evidence,
            ),
        )
        for decision in decisions
    ]
    return Table("Claims", columns, rows)


def rules() -> list[str]:
    """Return the rules of verdicts; each number is the constant that decides."""
    return [
        f"A number is a mean over seeds with Student's {100 * (1 - LEVEL):g} % interval; two "
        "optimizers are compared seed by seed. The exact sign test decides where a run diverged, "
        "where a number lies at a limit such as 100 %, and where all numbers are equal. A score or "
        f"a time needs {PERFORMANCE_SEEDS} seeds.",
        f"The level is {LEVEL:g}. The claims of one study are one family: their p-values are "
        "adjusted by Holm's procedure, so that a study without any true difference has a verdict "
        f"for or against with a probability of at most {LEVEL:g}. Intervals are not adjusted. "
        "Where nothing is random, equal numbers decide. Where seeds were added after a look, the "
        "claim says so, and p is not adjusted for it.",
        "*Supported*: the number lies where the claim has it, and the test excludes the bound; a "
        "note says if the interval lies below or above the paper's effect, which is of other data "
        "and another network. *Contradicted*: the same on the other side. *Equivalent*: the "
        "difference is shown to be within a margin that is at most the paper's effect, so that it "
        "is denied. *Inconclusive*: none of these. *Not tested*: no runs, or too few.",
        "Detectable, beside every inconclusive number, is the effect that these runs find with a "
        f"probability of {POWER:g}: (t(1 - {LEVEL:g} / 2) + t({POWER:g})) s / √n, with the n - 1 "
        "degrees of freedom of n seeds of standard deviation s. A condition whose runs could be "
        f"expected to detect no less than {MAX_DETECTABLE_RATIO:g} times the paper's effect is not "
        "trained in the evidence tier.",
        "Every p in a table is adjusted as above, and is the one that the verdict rests on. "
        "*Equivalent* rests on a test of its own, whose p (times the number of claims) stands "
        "beside the margin. Numbers that are all equal, and a single number, have no p.",
        "Claims in bold are those that a study is made for. A tolerance, a factor or a number of "
        "points in a claim is ours, unless the column of the paper's numbers has it.",
    ]
