"""Claims made of samples: against a bound, of two arms, of scores, and without randomness."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from spherenorm_experiments.analysis._basis import Basis
from spherenorm_experiments.analysis._claims import Claim, Region, price
from spherenorm_experiments.analysis._samples import Comparison, Sample, Values, paired_values
from spherenorm_experiments.analysis._statistics import NOISE, interval, mean, sign_test
from spherenorm_experiments.analysis._tables import Cell

__all__ = [
    "MARGIN",
    "PERFORMANCE_SEEDS",
    "close",
    "exact",
    "missing",
    "paired",
    "performance",
    "sample",
]

LEAST_SEEDS = 3
PERFORMANCE_SEEDS = 6
"""Before any verdict on a score or a time, for or against."""

MARGIN = 1.0
"""Points within which two scores count as equivalent, unless a claim states another margin."""


def sample(
    text: str,
    values: Values,
    relation: Literal[">", "<", "="],
    bound: float,
    *,
    source: Basis | str,
    margin: float = 0.0,
    paper: Cell | str = "",
    unit: str = "",
    detail: str = "",
    of: Comparison | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
    performance: bool = False,
    primary: bool = False,
) -> Claim:
    """The mean of `values` over seeds lies above or below `bound`, or within a margin of it.

    Args:
        relation: ">" and "<"; "=" for at most `margin` away from the bound.
        margin: for "=", of equivalence; else it is stated in the bound.
        of: how the values were made of two arms: a difference is shown with its sign, a ratio
            with "×".
        limits: of what the number may be, such as 0 and 100 percent; the interval is cut there.
        performance: the numbers are scores or times; a `Sample` may say so itself.
        primary: the study is made for this claim.

    Raises:
        ValueError: "=" without a margin.
    """
    region = _region(relation, bound, margin)
    found = Sample.of(values)
    # A run that diverged has no number, and counts against the claim.
    return _tested(
        Claim(
            text,
            Basis.of(source),
            paper=paper,
            detail=detail,
            performance=performance or found.performance,
            primary=primary,
            region=region,
        ),
        found,
        losses=len(found.diverged),
        of=of,
        limits=limits,
        unit=unit,
    )


def paired(
    text: str,
    a: Values,
    b: Values,
    relation: Literal[">", "<", "="],
    *,
    source: Basis | str,
    how: Comparison = "difference",
    bound: float | None = None,
    margin: float = 0.0,
    equivalence: float | None = None,
    behind: Literal["a", "b"] = "b",
    paper: Cell | str = "",
    unit: str = "",
    detail: str = "",
    performance: bool = False,
    primary: bool = False,
) -> Claim:
    """a - b, or a / b, over the seeds that both have, lies above or below `bound`, or near it.

    The mean of ratios is geometric, so that a / b and b / a decide alike. A ratio to 0 has no size;
    it counts by its sign, as a seed does on which a run diverged.

    Args:
        behind: the one that the claim puts behind: where it diverged and the other finished, that
            counts for the claim, and the reverse against it. For "=" both count against it. Seeds
            that only one of them has ended count for nothing.
        bound: 0 for a difference and 1 for a ratio, unless given.
        margin: for "=", how far from the bound the mean may lie.
        equivalence: a margin within which the claim is "equivalent" if it is not decided.
    """
    neutral = 0.0 if how == "difference" else 1.0
    bound = neutral if bound is None else bound
    a, b = Sample.of(a), Sample.of(b)
    ahead = "a" if behind == "b" else "b"
    lost = {"a": a.diverged & b.keys(), "b": b.diverged & a.keys()}
    above, below = _endless(a, b) if how == "ratio" else (0, 0)
    for_it = {">": above, "<": below, "=": 0}[relation]
    said = f"a ratio to 0 on {above + below} more" if above + below else ""
    claim = Claim(
        text,
        Basis.of(source),
        paper=paper,
        detail="; ".join(filter(None, [detail, said])),
        performance=performance or a.performance or b.performance,
        primary=primary,
        region=_region(relation, bound, margin),
    )
    lost_against = lost["a"] | lost["b"] if relation == "=" else lost[ahead]
    return _tested(
        claim,
        paired_values(a, b, how),
        wins=for_it + (0 if relation == "=" else len(lost[behind])),
        losses=above + below - for_it + len(lost_against),
        endless=above + below,
        near=None if equivalence is None else Region(bound - equivalence, bound + equivalence),
        of=how,
        scale=_scale(a, b) if how == "difference" else 1.0,
        unit=unit,
    )


def performance(
    text: str,
    ours: Values,
    baseline: Values,
    *,
    source: Basis | str,
    margin: float = MARGIN,
    paper: Cell | str = "",
    unit: str = "pp",
    detail: str = "",
    primary: bool = False,
) -> Claim:
    """A higher score than the baseline's, as differences paired by seed.

    Args:
        margin: of equivalence: a mean difference shown to be smaller makes the claim "equivalent".
    """
    return paired(
        text,
        ours,
        baseline,
        ">",
        source=source,
        equivalence=margin,
        paper=paper,
        unit=unit,
        detail="; ".join(filter(None, [detail, f"equivalent means within ±{margin:g} {unit}"])),
        performance=True,
        primary=primary,
    )


def close(
    text: str,
    ours: float,
    paper: float,
    tolerance: float,
    *,
    source: Basis | str,
    detail: str = "",
    primary: bool = False,
) -> Claim:
    """A number without randomness, within a relative tolerance of the paper's."""
    off = ours / paper - 1
    return Claim(
        text,
        Basis.of(source),
        [Cell(ours, ".4g", missing="nan"), Cell(100 * off, "+.1f", missing="nan")],
        f"{{}} ({{}} %, allowed ±{100 * tolerance:g} %)",
        Cell(paper, "g"),
        detail=detail,
        primary=primary,
        supported=math.isfinite(off) and abs(off) <= tolerance,
        p=0.0,
        region=Region(paper * (1 - tolerance), paper * (1 + tolerance)),
    )


def exact(
    text: str,
    ours: float,
    relation: Literal[">", "<"],
    bound: float,
    margin: float,
    *,
    source: Basis | str,
    form: str = ".3g",
    unit: str = "",
    paper: Cell | str = "",
    detail: str = "",
    primary: bool = False,
) -> Claim:
    """A number without randomness lies beyond `bound`, by a margin.

    Within the margin it decides nothing: another choice of what the paper leaves open might turn
    it round.

    Raises:
        ValueError: a margin that is not positive.
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin!r}: a claim of one run needs one")
    beyond = (ours - bound) * (1 if relation == ">" else -1)
    said = f"decided at {margin:g} beyond {bound:g}"
    return Claim(
        text,
        Basis.of(source),
        [Cell(ours, form, unit=unit, missing="nan")],
        "{}",
        paper,
        detail="; ".join(filter(None, [detail, said])),
        primary=primary,
        supported=beyond > 0,
        p=0.0 if abs(beyond) >= margin else 1.0,
        region=_region(relation, bound, 0.0),
    )


def missing(
    text: str, source: Basis | str, paper: Cell | str = "", detail: str = "", primary: bool = False
) -> Claim:
    """A claim that no run has results for."""
    return Claim(text, Basis.of(source), paper=paper, detail=detail, primary=primary)


def _tested(
    claim: Claim,
    values: Sample,
    *,
    of: Comparison | None,
    unit: str,
    wins: int = 0,
    losses: int = 0,
    endless: int = 0,
    near: Region | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
    scale: float = 1.0,
) -> Claim:
    """The claim with its number, and the level at which the number decides.

    Args:
        wins: seeds without a number that count for the claim.
        losses: seeds without a number that count against it.
        endless: how many of these have a ratio to 0; on the others a run diverged.
        near: the region of equivalence.
        scale: the size of the numbers, of which `NOISE` is rounding.
    """
    known = [0.0 if abs(value) < NOISE * scale else value for value in values.values()]
    region, seeds = claim.region, len(known) + wins + losses
    if region is None or seeds == 0:
        return claim
    logarithmic = of == "ratio" and all(value > 0 for value in known)
    if logarithmic:  # a ratio and its inverse are alike
        known = [math.log(value) for value in known]
        region, near = region.map(_log), None if near is None else near.map(_log)
    back = math.exp if logarithmic else float
    low, high = (min(max(back(end), limits[0]), limits[1]) for end in interval(known))
    center = back(mean(known))
    known, region = [value / scale for value in known], region.map(lambda end: end / scale)
    near = None if near is None else near.map(lambda end: end / scale)
    number = Cell(
        center,
        "+.3g" if of == "difference" else ".3g",
        interval=None if math.isnan(low) else (low, high),
        n=len(known),
        diverged=wins + losses - endless,
        prefix="×" if of == "ratio" else "",
        unit=unit,
    )
    least = PERFORMANCE_SEEDS if claim.performance else LEAST_SEEDS
    few = f"{seeds} seeds; a verdict needs {least}" if seeds < least else ""
    sizes = sorted({len(seeds) for seeds in values.looks if len(seeds) >= least})
    grown = ""
    if len(sizes) > 1:
        chain = " to ".join(map(str, sizes))
        grown = f"grown from {chain} seeds, so that p counts {price(len(sizes)):g}-fold"
    without_size = wins + losses
    if without_size:  # a difference to a run that diverged has a sign and no size
        ties = sum(region.touches(value) for value in known)
        wins += sum(region.holds(value) for value in known)
        losses = seeds - wins - ties
        supported, p = wins > losses, sign_test(wins, losses)
    else:
        supported, p = region.holds(mean(known)), region.p_value(known)
    equivalent = near is not None and not without_size and near.holds(mean(known))
    return replace(
        claim,
        numbers=[number],
        words="{}",
        seeds=seeds,
        detail="; ".join(filter(None, [claim.detail, few, grown])),
        looks=max(1, len(sizes)),
        supported=supported,
        p=None if few else p,
        p_equivalent=near.p_value(known) if near and equivalent and not few else None,
    )


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


def _region(relation: str, bound: float, margin: float) -> Region:
    if relation == "=":
        if not margin > 0:
            raise ValueError(f'"=" needs a positive margin, got {margin!r}')
        return Region(bound - margin, bound + margin)
    return Region(low=bound) if relation == ">" else Region(high=bound)
