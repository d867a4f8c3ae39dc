"""Verdicts: what the sensitivities of one weight say about its scale invariance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._units import Evidence, Figures, UnitVerdicts, fitting_views, judge_units

_MOST_EPS = 0.3
"""The share of eps in the variance, about, above which a normalization does not normalize."""
_SMALL = 1e-2


class Verdict(str, Enum):
    """The kinds of findings, from the most to the least invariant.

    Example:
        >>> [str(each) for each in Verdict]
        ['invariant', 'invariant up to eps', 'only at this point', 'not invariant', 'no evidence']
    """

    INVARIANT = "invariant"
    UP_TO_EPS = "invariant up to eps"
    ONLY_HERE = "only at this point"
    NOT_INVARIANT = "not invariant"
    NO_EVIDENCE = "no evidence"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """The audit's result for one weight.

    Attributes:
        name: the parameter's name.
        shape: its shape.
        verdict: see `Verdict`.
        view: the finest view in which the weight is scale-invariant, exactly or up to eps; None
            with any other verdict.
        reason: for the verdict, in words.
        figures: behind it, by the names of views: those tested that say most.

    Example:
        >>> found = sn.audit(torch.nn.Linear(2, 1), torch.randn(8, 2))[0]
        >>> found.name, str(found.verdict), found.view
        ('weight', 'not invariant', None)
    """

    name: str
    shape: tuple[int, ...]
    verdict: Verdict
    view: str | None
    reason: str
    figures: dict[str, Figures]


def judge(
    name: str,
    shape: torch.Size,
    evidence: Evidence,
    views: Sequence[View] | None,
    exact: float,
    tolerance: float,
) -> Finding:
    """The finding for one weight.

    Args:
        name, shape: the weight's.
        evidence: its sensitivities.
        views: to try in order, of which those that do not fit are left out; None tries all
            dimensions, their equal groups, and the whole weight, from fine to coarse.
        exact: the statistic below which a unit is invariant in the limit of eps.
        tolerance: the statistic at the model's own eps up to which this is said without "up to".
    """
    tried: list[UnitVerdicts] = []
    verdict, reason, units = _judged(shape, evidence, views, exact, tolerance, tried)
    shown = [*filter(None, [units]), *_most_telling(tried)]
    figures = {str(each.view): each.figures for each in shown}
    invariant = verdict in (Verdict.INVARIANT, Verdict.UP_TO_EPS)
    view = str(units.view) if units is not None and invariant else None
    return Finding(name, tuple(shape), verdict, view, reason, figures)


_Judged = tuple[Verdict, str, UnitVerdicts | None]
"""A verdict, its reason, and the view that it is about."""


def _judged(
    shape: torch.Size,
    evidence: Evidence,
    views: Sequence[View] | None,
    exact: float,
    tolerance: float,
    tried: list[UnitVerdicts],
) -> _Judged:
    """The verdict on a weight; `tried` gets the views that were looked at."""
    everywhere = [*evidence.here, evidence.limit, *evidence.elsewhere]
    if all(sums.sensitivity == 0 for sums in everywhere):
        return Verdict.NO_EVIDENCE, "no output depends on it at any point", None
    for view in fitting_views(shape, views):
        tried.append(units := judge_units(view, evidence, exact))
        if units.holds:
            return *_up_to_eps(units, evidence, tolerance), units
        if units.unseen:  # a coarser view would hide them
            count = f"{units.unseen} of {units.figures.units} units of view {view}"
            return Verdict.NO_EVIDENCE, f"{count} act at this point only; a larger batch?", None
        if units.only_elsewhere:  # a coarser view would hide the units that an eps outweighs
            left = f"{units.figures.limit:.1g} in view {units.view} at this point"
            return Verdict.NOT_INVARIANT, f"eps outweighs the variance: {left} alone", units
    if not tried:
        return Verdict.NO_EVIDENCE, "none of the views fits it", None
    if evidence.only_through_eps:
        reason = "it acts through the eps of a normalization alone; a larger batch?"
        return Verdict.NO_EVIDENCE, reason, None
    here = next((units for units in tried if units.only_here), None)
    if here is not None:
        moved = f"{here.figures.elsewhere:.1g} when the other parameters move"
        return Verdict.ONLY_HERE, f"view {here.view}: {moved}", here
    if not evidence.shown and not all(units.bad_here.any() for units in tried):
        return Verdict.NO_EVIDENCE, "no output depends on it at a jittered point", None
    return _not_invariant(tried)


def _not_invariant(tried: Sequence[UnitVerdicts]) -> _Judged:
    """The verdict on a weight of which no view holds, with the view that comes nearest."""
    part = max(tried, key=lambda units: units.share)
    if part.share:
        count = f"{part.figures.invariant} of {part.figures.units}"
        reason = f"{count} units of view {part.view} are: {_runs(part.good)}"
        return Verdict.NOT_INVARIANT, reason, part
    least = min(tried, key=lambda units: _or_infinity(units.figures.limit))
    if least.figures.limit <= _SMALL and least.figures.elsewhere <= _SMALL:
        left = f"{least.figures.elsewhere:.1g} is left in view {least.view}, which no eps explains"
        return Verdict.NOT_INVARIANT, left, least
    return Verdict.NOT_INVARIANT, "the outputs change with its norm", None


def _up_to_eps(units: UnitVerdicts, evidence: Evidence, tolerance: float) -> tuple[Verdict, str]:
    """The verdict on a weight that is invariant in the limit of eps."""
    figures, silent = units.figures, ""
    if figures.silent:
        silent = f"; {figures.silent} of {figures.units} units showed nothing"
    sums = evidence.here if evidence.tells_here else evidence.plain
    if not sums:
        return Verdict.INVARIANT, f"no output depends on it at this point{silent}"
    seen = torch.cat([s[shows] for s, shows in (each.statistic(units.view) for each in sums)])
    if not seen.numel() or float(seen.max()) <= tolerance:
        return Verdict.INVARIANT, f"at {1 + evidence.shown} points{silent}"
    share = float(seen.square().mean().sqrt())
    if share > _MOST_EPS:
        return (
            Verdict.NOT_INVARIANT,
            f"eps outweighs the variance: {share:.1g} in view {units.view} at this eps",
        )
    largest = float(seen.max())
    return Verdict.UP_TO_EPS, f"{largest:.1g} at this eps, {figures.limit:.1g} in its limit{silent}"


def _most_telling(tried: Sequence[UnitVerdicts]) -> list[UnitVerdicts]:
    """The views that figures are kept of: those without groups."""
    return [units for units in tried if units.view.groups is None]


def _or_infinity(x: float) -> float:
    return math.inf if math.isnan(x) else x


def _runs(good: Tensor) -> str:
    """The indices of true entries as ranges: "0-7, 12"."""
    indices: list[int] = good.nonzero().flatten().tolist()
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts[:6]) + (", ..." if len(texts) > 6 else "")


def reject(finding: Finding) -> Finding:
    """The finding of a weight whose scaling changes the outputs, though the gradient denies it."""
    reason = "scaling it changes the outputs, though its gradient is tangential"
    return replace(finding, verdict=Verdict.NOT_INVARIANT, view=None, reason=reason)
