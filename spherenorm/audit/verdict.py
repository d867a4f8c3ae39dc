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
        at_own_point: the largest statistic sqrt(dim(w)) |cos(w, g)| of its units at the model's own
            parameters, batch and eps; nan if no unit has a gradient.
        at_tiny_eps: the same statistic at the same point with every eps 1e10 times smaller.
        at_jittered_points: the same statistic at jittered parameters and batches, with the smaller
            eps.
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
    at_own_point: float = math.nan
    at_tiny_eps: float = math.nan
    at_jittered_points: float = math.nan
    units: int = 0
    silent: int = 0
    invariant: int = 0


class WeightEvidence:
    """The inner products of one weight at all points.

    Attributes:
        at_tiny_eps: the inner products at the model's own point, with every eps 1e10 times smaller.
        at_own_point: those with the model's own eps, one for each random direction of the outputs;
            empty if `at_tiny_eps` decides.
        at_jittered_points: those at each jittered point, with every eps 1e10 times smaller.
        at_jittered_point_with_eps: those at the first jittered point with the model's own eps;
            empty if `at_own_point` decides.
        n_sensitive_points: number of jittered points at which the outputs depend on the weight.
        only_through_eps: True if the outputs depend on the weight through an eps alone at the
            model's own point, as with a batch that a normalization maps to signs.
        is_conclusive_at_own_point: True if the model's own point shows how the weight acts.
    """

    def __init__(
        self,
        at_tiny_eps: InnerProducts,
        at_own_point: Sequence[InnerProducts] = (),
        at_jittered_points: Sequence[InnerProducts] = (),
        at_jittered_point_with_eps: Sequence[InnerProducts] = (),
    ) -> None:
        self.at_tiny_eps = at_tiny_eps
        self.at_own_point = at_own_point
        self.at_jittered_points = at_jittered_points
        self.at_jittered_point_with_eps = at_jittered_point_with_eps
        self.n_sensitive_points = sum(products.sensitivity > 0 for products in at_jittered_points)
        sensitivity = at_own_point[0].sensitivity if at_own_point else at_tiny_eps.sensitivity
        self.only_through_eps = (
            bool(at_own_point)
            and 0 < at_tiny_eps.sensitivity < _MAX_SHARE_WITHOUT_EPS * sensitivity
        )
        self.is_conclusive_at_own_point = sensitivity > 0 and not self.only_through_eps

    @property
    def is_sufficient(self) -> bool:
        """True if two jittered points show the weight, and at least one shows each of its units.

        Only units that act at the model's own point are asked for. Dropped layers and rare experts
        need more points than two.
        """
        if self.n_sensitive_points < 2:
            return False
        for dim in self.at_tiny_eps.by_dim:
            if any(dim not in products.by_dim for products in self.at_jittered_points):
                continue
            _, only_at_own_point = self.at_tiny_eps.statistic(View(dim))
            for products in self.at_jittered_points:
                _, is_sensitive = products.statistic(View(dim))
                only_at_own_point = only_at_own_point & ~is_sensitive
            if only_at_own_point.any():
                return False
        return True

    def count_candidates(self, views: Sequence[View] | None, zero_tolerance: float) -> int:
        """Return how many units may be invariant in the first view that has such units.

        If the model's own point does not show how the weight acts, the count is at least 1.
        """
        for view in fitting_views(self.at_tiny_eps.shape, views):
            statistic, is_sensitive = self.at_tiny_eps.statistic(view)
            n_passing = int((is_sensitive & (statistic <= zero_tolerance)).sum())
            n_by_chance = _MAX_SHARE_BY_CHANCE * int(is_sensitive.sum())
            if not self.is_conclusive_at_own_point or n_passing > n_by_chance:
                return max(n_passing, 1)
        return int(not self.is_conclusive_at_own_point)


class UnitEvidence:
    """The evidence on each unit of one view of a weight, as boolean tensors of shape (units,).

    Args:
        view: the view.
        evidence: the evidence on the weight.
        zero_tolerance: the statistic up to which a unit is invariant in the limit of eps.

    Attributes:
        sensitive_at_own_point: the outputs depend on the unit at the model's own point.
        sensitive_at_jittered_points: the outputs depend on the unit at a jittered point.
        sensitive: the outputs depend on the unit at some point.
        fails_at_own_point: the unit is not invariant at the model's own point.
        fails_at_jittered_points: the unit is not invariant at a jittered point.
        invariant: the unit is invariant at all points at which the outputs depend on it, among them
            a jittered one.
    """

    def __init__(self, view: View, evidence: WeightEvidence, zero_tolerance: float) -> None:
        self.view = view
        self.evidence = evidence
        statistic, is_sensitive = evidence.at_tiny_eps.statistic(view)
        self.sensitive_at_own_point = is_sensitive & (not evidence.only_through_eps)
        self.fails_at_own_point = self.sensitive_at_own_point & ~(statistic <= zero_tolerance)
        self.sensitive_at_jittered_points = torch.zeros_like(is_sensitive)
        self.fails_at_jittered_points = torch.zeros_like(is_sensitive)
        for products in evidence.at_jittered_points:
            statistic, is_sensitive = products.statistic(view)
            self.sensitive_at_jittered_points = self.sensitive_at_jittered_points | is_sensitive
            self.fails_at_jittered_points = self.fails_at_jittered_points | ~(
                statistic <= zero_tolerance
            )
        self.sensitive = self.sensitive_at_own_point | self.sensitive_at_jittered_points
        self.invariant = (
            self.sensitive_at_jittered_points
            & ~self.fails_at_own_point
            & ~self.fails_at_jittered_points
        )

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
    def invariant_only_at_own_point(self) -> bool:
        """True if no unit fails at the model's own point, and one does at a jittered point."""
        passes_at_own_point = bool(
            self.sensitive_at_own_point.any() and not self.fails_at_own_point.any()
        )
        return passes_at_own_point and bool(self.fails_at_jittered_points.any())

    @property
    def invariant_only_at_jittered_points(self) -> bool:
        """True if units fail at the model's own point, and pass at the jittered ones."""
        fails_at_jittered_points = bool(self.fails_at_jittered_points.any())
        passes_at_jittered_points = bool(
            self.sensitive_at_jittered_points[self.fails_at_own_point].all()
        )
        return (
            bool(self.fails_at_own_point.any())
            and passes_at_jittered_points
            and not fails_at_jittered_points
        )

    @property
    def units_seen_only_at_own_point(self) -> int:
        """Number of units that act at the model's own point alone, if all others are invariant."""
        fails = bool(self.fails_at_own_point.any() or self.fails_at_jittered_points.any())
        if fails or not self.invariant.any():
            return 0
        return int((self.sensitive & ~self.invariant).sum())

    def make_finding(self, name: str, verdict: Verdict, reason: str) -> Finding:
        """Return a finding with the figures of this view."""
        is_invariant = verdict in (Verdict.INVARIANT, Verdict.UP_TO_EPS)
        return Finding(
            name,
            tuple(self.evidence.at_tiny_eps.shape),
            verdict,
            str(self.view) if is_invariant else None,
            reason,
            tested=str(self.view),
            at_own_point=self.largest_statistic(self.evidence.at_own_point),
            at_tiny_eps=self.largest_statistic([self.evidence.at_tiny_eps]),
            at_jittered_points=self.largest_statistic(self.evidence.at_jittered_points),
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
    zero_tolerance: float,
    tolerance: float,
) -> Finding:
    """Return the finding for one weight.

    Args:
        name: name of the weight.
        evidence: the weight's inner products at all points.
        views: the views to try, in order; those that do not fit are left out. None tries all
            dimensions, their equal groups, and the whole weight, from fine to coarse.
        zero_tolerance: the statistic up to which a unit is invariant in the limit of eps.
        tolerance: the statistic at the model's own eps up to which the verdict is "invariant", and
            not "invariant up to eps".
    """
    shape = evidence.at_tiny_eps.shape
    points = [*evidence.at_own_point, evidence.at_tiny_eps, *evidence.at_jittered_points]
    if all(products.sensitivity == 0 for products in points):
        reason = "no output depends on it at any point"
        return Finding(name, tuple(shape), Verdict.NO_EVIDENCE, None, reason)
    units_by_view: list[UnitEvidence] = []
    for view in fitting_views(shape, views):
        units = UnitEvidence(view, evidence, zero_tolerance)
        units_by_view.append(units)
        if units.all_invariant:
            return _judge_eps(name, units, tolerance)
        # The next two cases end the search, because a coarser view would hide these units.
        if units.units_seen_only_at_own_point:
            count = f"{units.units_seen_only_at_own_point} of {len(units.invariant)}"
            reason = f"{count} units of view {view} act at this point only; a larger batch?"
            return units_by_view[0].make_finding(name, Verdict.NO_EVIDENCE, reason)
        if units.invariant_only_at_jittered_points:
            statistic = units.largest_statistic([evidence.at_tiny_eps])
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
        if units.invariant_only_at_own_point:
            statistic = units.largest_statistic(evidence.at_jittered_points)
            reason = f"view {units.view}: {statistic:.1g} when the other parameters move"
            return units.make_finding(name, Verdict.ONLY_HERE, reason)
    fails_in_all_views = all(units.fails_at_own_point.any() for units in units_by_view)
    if not evidence.n_sensitive_points and not fails_in_all_views:
        reason = "no output depends on it at a jittered point"
        return finest.make_finding(name, Verdict.NO_EVIDENCE, reason)
    best = max(units_by_view, key=_share_of_invariant_units)
    if best.invariant.any():
        reason = (
            f"{int(best.invariant.sum())} of {len(best.invariant)} units of view {best.view} are:"
            f" {_format_ranges(best.invariant)};"
            f" override: {{'as': '{best.view}', 'per': 'unit'}}"
        )
        return best.make_finding(name, Verdict.NOT_INVARIANT, reason)
    for units in units_by_view:
        at_tiny_eps = units.largest_statistic([evidence.at_tiny_eps])
        at_jittered_points = units.largest_statistic(evidence.at_jittered_points)
        if at_tiny_eps <= _SMALL_STATISTIC and at_jittered_points <= _SMALL_STATISTIC:
            reason = f"{at_jittered_points:.1g} is left in view {units.view}, which no eps explains"
            return units.make_finding(name, Verdict.NOT_INVARIANT, reason)
    reason = "the outputs change with its norm"
    return finest.make_finding(name, Verdict.NOT_INVARIANT, reason)


def _share_of_invariant_units(units: UnitEvidence) -> float:
    """Return the share of the sensitive units that is invariant."""
    return float(units.invariant.sum() / units.sensitive.sum().clamp(min=1))


def _judge_eps(name: str, units: UnitEvidence, tolerance: float) -> Finding:
    """Return the finding for a weight that is invariant in the limit of eps in this view.

    The model's own eps decides whether it is invariant, invariant up to eps, or not invariant.
    """
    evidence = units.evidence
    n_silent = int((~units.sensitive).sum())
    suffix = f"; {n_silent} of {len(units.sensitive)} units showed nothing" if n_silent else ""
    if not evidence.is_conclusive_at_own_point and not evidence.at_jittered_point_with_eps:
        reason = f"no output depends on it at this point{suffix}"
        return units.make_finding(name, Verdict.INVARIANT, reason)
    with_eps = (
        evidence.at_own_point
        if evidence.is_conclusive_at_own_point
        else evidence.at_jittered_point_with_eps
    )
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
    at_tiny_eps = units.largest_statistic([evidence.at_tiny_eps])
    reason = f"{largest:.1g} at this eps, {at_tiny_eps:.1g} in its limit{suffix}"
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
