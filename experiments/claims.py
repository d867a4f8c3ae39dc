"""Claims: statements of the paper held against our numbers.

A claim about geometry (norms, angles, detection, identities) is decided by its confidence interval. A claim about
performance is a paired-seed difference with its interval; a handful of small runs never makes it "reproduced", however
narrow the interval is: that takes `PERFORMANCE_SEEDS` seeds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

__all__ = ["Claim", "Outcome", "close", "holds", "interval", "paired", "performance", "sample"]

Outcome = Literal["reproduced", "not reproduced", "inconclusive"]
Relation = Literal[">", "<"]
Values = Mapping[int, float]
"""A number for each seed."""

NOISE = 1e-9
"""A difference of this size between two scores is rounding."""

NO_RESULTS = "no results"
"""Our number where no run has one."""

MIN_SEEDS = 3
PERFORMANCE_SEEDS = 10


@dataclass(frozen=True)
class Claim:
    """One line of the scorecard.

    Attributes:
        text: the claim, as the paper or we make it.
        source: where.
        outcome: reproduced | not reproduced | inconclusive.
        ours: our number, with its interval.
        paper: the paper's number.
        seeds: how many seeds ours rests on; 0 where nothing is random.
        detail: what else one must know: diverged runs, a caveat.
        kind: geometry | performance.
    """

    text: str
    source: str
    outcome: Outcome
    ours: str
    paper: str = ""
    seeds: int = 0
    detail: str = ""
    kind: Literal["geometry", "performance"] = "geometry"


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The bootstrap confidence interval of the mean; nan with fewer than two values.

    Bias-corrected and accelerated from five values on; with fewer the acceleration cannot be estimated and the percentile
    interval, close to the range of the values, is the honest one.
    """
    sample_ = np.asarray(values, dtype=float)
    if len(sample_) < 2:
        return math.nan, math.nan
    if np.ptp(sample_) == 0:
        return float(sample_[0]), float(sample_[0])
    method = "BCa" if len(sample_) >= 5 else "percentile"
    found = stats.bootstrap(
        (sample_,),
        np.mean,
        confidence_level=level,
        method=method,
        rng=np.random.default_rng(0),
        n_resamples=2000,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def sample(
    text: str,
    values: Values,
    relation: Relation,
    bound: float,
    *,
    source: str,
    paper: str = "",
    unit: str = "",
    detail: str = "",
    what: str = "",
) -> Claim:
    """The mean of `values` over seeds lies above or below `bound`: decided by its confidence interval."""
    numbers = [0.0 if abs(value) < NOISE else value for value in values.values()]
    low, high = interval(numbers)
    outcome = _verdict(low, high, relation, bound) if len(numbers) >= MIN_SEEDS else "inconclusive"
    return Claim(
        text, source, outcome, _shown(numbers, low, high, unit, what), paper, len(numbers), detail
    )


def paired(
    text: str,
    a: Values,
    b: Values,
    relation: Relation,
    *,
    source: str,
    how: Literal["difference", "ratio"] = "difference",
    bound: float | None = None,
    paper: str = "",
    unit: str = "",
    detail: str = "",
) -> Claim:
    """a - b (or a / b) over the seeds that both have lies above or below `bound` (0, or 1 for a ratio)."""
    seeds = sorted(a.keys() & b.keys())
    combine = operator.sub if how == "difference" else operator.truediv
    values = {seed: combine(a[seed], b[seed]) for seed in seeds}
    neutral = 0.0 if how == "difference" else 1.0
    lost = len(a.keys() ^ b.keys())
    detail = "; ".join(
        part for part in (detail, f"{lost} seeds without a finished pair" if lost else "") if part
    )
    return sample(
        text,
        values,
        relation,
        neutral if bound is None else bound,
        source=source,
        paper=paper,
        unit=unit,
        detail=detail,
        what=how,
    )


def performance(
    text: str,
    ours: Values,
    baseline: Values,
    *,
    source: str,
    paper: str = "",
    unit: str = "",
    detail: str = "",
) -> Claim:
    """A higher score than the baseline's, as paired differences. See the module: few seeds can refute but never confirm."""
    claim = paired(text, ours, baseline, ">", source=source, paper=paper, unit=unit, detail=detail)
    outcome = claim.outcome
    if outcome == "reproduced" and claim.seeds < PERFORMANCE_SEEDS:
        outcome = "inconclusive"
        detail = f"{claim.detail}; " if claim.detail else ""
        detail += f"in the paper's direction, but {claim.seeds} seeds of a small task are no proof ({PERFORMANCE_SEEDS} are asked for)"
    else:
        detail = claim.detail
    return Claim(text, source, outcome, claim.ours, paper, claim.seeds, detail, "performance")


def close(
    text: str,
    ours: float,
    paper: float,
    tolerance: float,
    *,
    source: str,
    detail: str = "",
    digits: int = 4,
) -> Claim:
    """A number without randomness, within a relative tolerance of the paper's."""
    off = ours / paper - 1
    good = math.isfinite(off) and abs(off) <= tolerance
    shown = f"{ours:.{digits}g} ({100 * off:+.1f} %, allowed ±{100 * tolerance:g} %)"
    return Claim(
        text, source, "reproduced" if good else "not reproduced", shown, f"{paper:g}", 0, detail
    )


def holds(
    text: str,
    good: bool,
    ours: str,
    *,
    source: str,
    paper: str = "",
    seeds: int = 0,
    detail: str = "",
) -> Claim:
    """A statement without randomness that is true or not."""
    return Claim(
        text, source, "reproduced" if good else "not reproduced", ours, paper, seeds, detail
    )


def missing(text: str, source: str) -> Claim:
    """A claim whose runs are not there."""
    return Claim(text, source, "inconclusive", NO_RESULTS)


def _verdict(low: float, high: float, relation: str, bound: float) -> Outcome:
    if math.isnan(low):
        return "inconclusive"
    if relation == "<":
        low, high, bound = -high, -low, -bound
    if low > bound:
        return "reproduced"
    return "not reproduced" if high < bound else "inconclusive"


def _shown(numbers: Sequence[float], low: float, high: float, unit: str, what: str) -> str:
    if not numbers:
        return NO_RESULTS
    mean = float(np.mean(numbers))
    times = "× " if what == "ratio" else ""
    sign = "+" if what == "difference" else ""
    bounds = f" [{low:{sign}.3g}, {high:{sign}.3g}]" if not math.isnan(low) else ""
    return f"{times}{mean:{sign}.3g}{bounds}{' ' + unit if unit else ''}"
