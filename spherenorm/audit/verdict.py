"""Verdicts: what the sensitivity of the outputs to one weight says about its scale invariance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from spherenorm.audit.sensitivity import InnerProducts
from spherenorm.views import View

_MAX_SHARE_WITHOUT_EPS = 1e-3
"""A weight that acts through an eps alone keeps less than this share of its sensitivity when every
eps is made 1e10 times smaller."""
_MAX_SHARE_BY_CHANCE = 1e-3
"""Share of the units of an arbitrary weight that pass at one point by chance. One of a million
passes, so a share above this one is evidence."""
_MAX_EPS_STATISTIC = 0.3
"""Root mean square of the statistic above which an eps outweighs the variance, so that a
normalization does not normalize. It is about the share of eps in the variance."""
_SMALL_STATISTIC = 1e-2
"""A statistic up to this value, in the limit of eps, is reported as nearly invariant."""


class Verdict(StrEnum):
    """The verdicts on a weight, from the most to the least invariant.

    Example:
        >>> [str(verdict) for verdict in Verdict]
        ['invariant', 'invariant up to eps', 'only at this point', 'not invariant', 'no evidence']
    """

    INVARIANT = "invariant"
    UP_TO_EPS = "invariant up to eps"
    ONLY_HERE = "only at this point"
    NOT_INVARIANT = "not invariant"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True)
class Finding:
    """The result of an audit for one weight.

    Attributes:
        name, shape: name and shape of the parameter.
        verdict: the verdict; see `Verdict`.
        view: the finest view in which the weight is scale-invariant, exactly or up to eps; None
            with any other verdict.
        reason: the reason for the verdict, in words.
        tested: the view of the figures that follow: the view of the verdict, or else the finest.
        here: the largest statistic sqrt(dim(w)) |cos(w, g)| of its units at the model's own
            parameters, batch and eps; nan if no unit has a gradient.
        limit: the same statistic at the same point with every eps 1e10 times smaller.
        elsewhere: the same statistic at jittered parameters and batches, with the smaller eps.
        units: number of units.
        silent: number of units without a gradient at any point.
        invariant: number of units that are invariant.

    Example:
        >>> finding = sn.audit(torch.nn.Linear(2, 1), torch.randn(8, 2))[0]
        >>> finding.name, str(finding.verdict), finding.view, finding.tested, finding.units
        ('weight', 'not invariant', None, 'channel', 1)
    """

    name: str
    shape: tuple[int, ...]
    verdict: Verdict
    view: str | None
    reason: str
    tested: str | None = None
    here: float = math.nan
    limit: float = math.nan
    elsewhere: float = math.nan
    units: int = 0
    silent: int = 0
    invariant: int = 0


class WeightEvidence:
    """The inner products of one weight at all points.

    Attributes:
        limit: at the model's own point, in the limit of eps.
        here: at the model's own point with its own eps, one for each random direction of the
            outputs; empty if `limit` decides.
        elsewhere: at the jittered points, in the limit of eps.
        elsewhere_with_eps: at the first jittered point with the model's own eps; empty if `here`
            decides.
        n_sensitive_points: number of jittered points at which the outputs depend on the weight.
        only_through_eps: True if the outputs depend on the weight through an eps alone at the
            model's own point, as with a batch that a normalization maps to signs.
        is_conclusive_here: True if the model's own point shows how the weight acts.
    """

    def __init__(
        self,
        limit: InnerProducts,
        here: Sequence[InnerProducts] = (),
        elsewhere: Sequence[InnerProducts] = (),
        elsewhere_with_eps: Sequence[InnerProducts] = (),
    ) -> None:
        self.limit = limit
        self.here = here
        self.elsewhere = elsewhere
        self.elsewhere_with_eps = elsewhere_with_eps
        self.n_sensitive_points = sum(products.sensitivity > 0 for products in elsewhere)
        sensitivity = here[0].sensitivity if here else limit.sensitivity
        self.only_through_eps = (
            bool(here) and 0 < limit.sensitivity < _MAX_SHARE_WITHOUT_EPS * sensitivity
        )
        self.is_conclusive_here = sensitivity > 0 and not self.only_through_eps

    @property
    def is_sufficient(self) -> bool:
        """True if two jittered points show the weight, and at least one shows each of its units.

        Only units that act at the model's own point are asked for. Dropped layers and rare experts
        need more points than two.
        """
        if self.n_sensitive_points < 2:
            return False
        for dim in self.limit.by_dim:
            if any(dim not in products.by_dim for products in self.elsewhere):
                continue
            _, only_here = self.limit.statistic(View(dim))
            for products in self.elsewhere:
                _, is_sensitive = products.statistic(View(dim))
                only_here = only_here & ~is_sensitive
            if only_here.any():
                return False
        return True

    def count_candidates(self, views: Sequence[View] | None, exact: float) -> int:
        """Return how many units may be invariant in the first view that has such units.

        If the model's own point does not show how the weight acts, the count is at least 1.
        """
        for view in fitting_views(self.limit.shape, views):
            statistic, is_sensitive = self.limit.statistic(view)
            n_passing = int((is_sensitive & (statistic <= exact)).sum())
            n_by_chance = _MAX_SHARE_BY_CHANCE * int(is_sensitive.sum())
            if not self.is_conclusive_here or n_passing > n_by_chance:
                return max(n_passing, 1)
        return int(not self.is_conclusive_here)


class UnitEvidence:
    """The evidence on each unit of one view of a weight, as boolean tensors of shape (units,).

    Args:
        view: the view.
        evidence: the evidence on the weight.
        exact: the statistic up to which a unit is invariant in the limit of eps.

    Attributes:
        sensitive_here: the outputs depend on the unit at the model's own point.
        sensitive_elsewhere: they do at a jittered point.
        sensitive: they do at some point.
        fails_here: the unit is not invariant at the model's own point.
        fails_elsewhere: it is not invariant at a jittered point.
        invariant: it is invariant at all points at which the outputs depend on it, among them a
            jittered one.
    """

    def __init__(self, view: View, evidence: WeightEvidence, exact: float) -> None:
        self.view = view
        self.evidence = evidence
        statistic, is_sensitive = evidence.limit.statistic(view)
        self.sensitive_here = is_sensitive & (not evidence.only_through_eps)
        self.fails_here = self.sensitive_here & ~(statistic <= exact)
        self.sensitive_elsewhere = torch.zeros_like(is_sensitive)
        self.fails_elsewhere = torch.zeros_like(is_sensitive)
        for products in evidence.elsewhere:
            statistic, is_sensitive = products.statistic(view)
            self.sensitive_elsewhere = self.sensitive_elsewhere | is_sensitive
            self.fails_elsewhere = self.fails_elsewhere | ~(statistic <= exact)
        self.sensitive = self.sensitive_here | self.sensitive_elsewhere
        self.invariant = self.sensitive_elsewhere & ~self.fails_here & ~self.fails_elsewhere

    def statistics(self, products: Sequence[InnerProducts]) -> Tensor:
        """Return the statistics of all sensitive units in these inner products."""
        statistics = [torch.empty(0)]
        for product in products:
            statistic, is_sensitive = product.statistic(self.view)
            statistics.append(statistic[is_sensitive])
        return torch.cat(statistics)

    def largest_statistic(self, products: Sequence[InnerProducts]) -> float:
        """Return the largest of `statistics`; nan if there is none."""
        statistics = self.statistics(products)
        return float(statistics.max()) if statistics.numel() else math.nan

    @property
    def all_invariant(self) -> bool:
        """True if all sensitive units are invariant, and there is one."""
        return bool(self.invariant.any()) and torch.equal(self.invariant, self.sensitive)

    @property
    def invariant_only_here(self) -> bool:
        """True if no unit fails at the model's own point, and one does at a jittered point."""
        passes_here = bool(self.sensitive_here.any() and not self.fails_here.any())
        return passes_here and bool(self.fails_elsewhere.any())

    @property
    def invariant_only_elsewhere(self) -> bool:
        """True if units fail at the model's own point, act elsewhere, and none fails there."""
        fails_elsewhere = bool(self.fails_elsewhere.any())
        passes_elsewhere = bool(self.sensitive_elsewhere[self.fails_here].all())
        return bool(self.fails_here.any()) and passes_elsewhere and not fails_elsewhere

    @property
    def units_seen_only_here(self) -> int:
        """Number of units that act at the model's own point alone, if all others are invariant."""
        fails = bool(self.fails_here.any() or self.fails_elsewhere.any())
        if fails or not self.invariant.any():
            return 0
        return int((self.sensitive & ~self.invariant).sum())

    def make_finding(self, name: str, verdict: Verdict, reason: str) -> Finding:
        """Return a finding with the figures of this view."""
        is_invariant = verdict in (Verdict.INVARIANT, Verdict.UP_TO_EPS)
        return Finding(
            name,
            tuple(self.evidence.limit.shape),
            verdict,
            str(self.view) if is_invariant else None,
            reason,
            tested=str(self.view),
            here=self.largest_statistic(self.evidence.here),
            limit=self.largest_statistic([self.evidence.limit]),
            elsewhere=self.largest_statistic(self.evidence.elsewhere),
            units=len(self.invariant),
            silent=int((~self.sensitive).sum()),
            invariant=int(self.invariant.sum()),
        )


def fitting_views(shape: torch.Size, views: Sequence[View] | None) -> Iterator[View]:
    """Yield those of `views` that fit a weight; None tries all, from fine to coarse.

    All views are each dimension (not those of a convolution's kernel), all groups of equal size
    along each, and the whole weight.
    """
    if views is not None:
        yield from (view for view in views if _fits(view, shape))
        return
    dims = range(len(shape)) if len(shape) <= 3 else (0, 1)
    yield View(0)
    yield from (View(dim) for dim in dims[1:] if shape[dim] > 1)
    for dim in dims:
        length = shape[dim]
        yield from (View(dim, count) for count in range(length // 2, 1, -1) if not length % count)
    yield View(None)


def dims_of_views(shape: torch.Size, views: Sequence[View] | None) -> list[int]:
    """Return the dimensions at whose indices the fitting views need sums, and 0."""
    dims = {view.dim % len(shape) for view in fitting_views(shape, views) if view.dim is not None}
    return sorted({0, *dims})


def _fits(view: View, shape: torch.Size) -> bool:
    try:
        view.size(torch.empty(shape, device="meta"))
    except ValueError:
        return False
    return True


def judge(
    name: str,
    evidence: WeightEvidence,
    views: Sequence[View] | None,
    exact: float,
    tolerance: float,
) -> Finding:
    """Return the finding for one weight.

    Args:
        name: name of the weight.
        evidence: its inner products at all points.
        views: the views to try, in order; those that do not fit are left out. None tries all
            dimensions, their equal groups, and the whole weight, from fine to coarse.
        exact: the statistic up to which a unit is invariant in the limit of eps.
        tolerance: the statistic at the model's own eps up to which the verdict is "invariant", and
            not "invariant up to eps".
    """
    shape = evidence.limit.shape
    points = [*evidence.here, evidence.limit, *evidence.elsewhere]
    if all(products.sensitivity == 0 for products in points):
        reason = "no output depends on it at any point"
        return Finding(name, tuple(shape), Verdict.NO_EVIDENCE, None, reason)
    units_by_view: list[UnitEvidence] = []
    for view in fitting_views(shape, views):
        units = UnitEvidence(view, evidence, exact)
        units_by_view.append(units)
        if units.all_invariant:
            return _judge_eps(name, units, tolerance)
        # The next two cases end the search, because a coarser view would hide these units.
        if units.units_seen_only_here:
            count = f"{units.units_seen_only_here} of {len(units.invariant)}"
            reason = f"{count} units of view {view} act at this point only; a larger batch?"
            return units_by_view[0].make_finding(name, Verdict.NO_EVIDENCE, reason)
        if units.invariant_only_elsewhere:
            statistic = units.largest_statistic([evidence.limit])
            reason = (
                f"eps outweighs the variance: {statistic:.1g} in view {view} at this point alone"
            )
            return units.make_finding(name, Verdict.NOT_INVARIANT, reason)
    if not units_by_view:
        reason = "none of the views fits it"
        return Finding(name, tuple(shape), Verdict.NO_EVIDENCE, None, reason)
    return _judge_without_view(name, evidence, units_by_view)


def _judge_without_view(
    name: str, evidence: WeightEvidence, units_by_view: Sequence[UnitEvidence]
) -> Finding:
    """Return the finding for a weight that is invariant in none of the views."""
    finest = units_by_view[0]
    if evidence.only_through_eps:
        reason = "it acts through the eps of a normalization alone; a larger batch?"
        return finest.make_finding(name, Verdict.NO_EVIDENCE, reason)
    for units in units_by_view:
        if units.invariant_only_here:
            statistic = units.largest_statistic(evidence.elsewhere)
            reason = f"view {units.view}: {statistic:.1g} when the other parameters move"
            return units.make_finding(name, Verdict.ONLY_HERE, reason)
    fails_in_all_views = all(units.fails_here.any() for units in units_by_view)
    if not evidence.n_sensitive_points and not fails_in_all_views:
        reason = "no output depends on it at a jittered point"
        return finest.make_finding(name, Verdict.NO_EVIDENCE, reason)
    best = max(units_by_view, key=_invariant_share)
    if best.invariant.any():
        reason = (
            f"{int(best.invariant.sum())} of {len(best.invariant)} units of view {best.view} are:"
            f" {_format_ranges(best.invariant)};"
            f" override: {{'as': '{best.view}', 'per': 'unit'}}"
        )
        return best.make_finding(name, Verdict.NOT_INVARIANT, reason)
    for units in units_by_view:
        limit = units.largest_statistic([evidence.limit])
        elsewhere = units.largest_statistic(evidence.elsewhere)
        if limit <= _SMALL_STATISTIC and elsewhere <= _SMALL_STATISTIC:
            reason = f"{elsewhere:.1g} is left in view {units.view}, which no eps explains"
            return units.make_finding(name, Verdict.NOT_INVARIANT, reason)
    reason = "the outputs change with its norm"
    return finest.make_finding(name, Verdict.NOT_INVARIANT, reason)


def _invariant_share(units: UnitEvidence) -> float:
    """Return the share of the sensitive units that is invariant."""
    return float(units.invariant.sum() / units.sensitive.sum().clamp(min=1))


def _judge_eps(name: str, units: UnitEvidence, tolerance: float) -> Finding:
    """Return the finding for a weight that is invariant in the limit of eps in this view.

    The model's own eps decides whether it is invariant, invariant up to eps, or not invariant.
    """
    evidence = units.evidence
    n_silent = int((~units.sensitive).sum())
    suffix = f"; {n_silent} of {len(units.sensitive)} units showed nothing" if n_silent else ""
    if not evidence.is_conclusive_here and not evidence.elsewhere_with_eps:
        reason = f"no output depends on it at this point{suffix}"
        return units.make_finding(name, Verdict.INVARIANT, reason)
    with_eps = evidence.here if evidence.is_conclusive_here else evidence.elsewhere_with_eps
    statistics = units.statistics(with_eps)
    largest = float(statistics.max()) if statistics.numel() else 0.0
    if largest <= tolerance:
        reason = f"at {1 + evidence.n_sensitive_points} points{suffix}"
        return units.make_finding(name, Verdict.INVARIANT, reason)
    root_mean_square = float(statistics.square().mean().sqrt())
    if root_mean_square > _MAX_EPS_STATISTIC:
        reason = (
            f"eps outweighs the variance: {root_mean_square:.1g} in view {units.view} at this eps"
        )
        return units.make_finding(name, Verdict.NOT_INVARIANT, reason)
    limit = units.largest_statistic([evidence.limit])
    reason = f"{largest:.1g} at this eps, {limit:.1g} in its limit{suffix}"
    return units.make_finding(name, Verdict.UP_TO_EPS, reason)


def _format_ranges(flags: Tensor) -> str:
    """Return the indices of true entries as at most six ranges: "0-7, 12"."""
    ranges: list[list[int]] = []
    for index in flags.nonzero().flatten().tolist():
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts[:6]) + (", ..." if len(texts) > 6 else "")
