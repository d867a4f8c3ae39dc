"""Verdicts: what the sensitivities of one weight say about its scale invariance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from spherenorm.audit.sensitivity import Sums
from spherenorm.views import View

_ONLY_THROUGH_EPS = 1e-3
"""The share of its sensitivity that a weight loses at least, if it acts through an eps alone."""
_BY_CHANCE = 1e-3
"""The share of units of which nothing is made that pass at one point: of a million one does."""
_MOST_EPS = 0.3
"""The share of eps in the variance, about, above which a normalization does not normalize."""
_SMALL = 1e-2


class Verdict(StrEnum):
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


@dataclass(frozen=True)
class Finding:
    """The audit's result for one weight.

    Attributes:
        name, shape: the parameter's.
        verdict: see `Verdict`.
        view: the finest view in which the weight is scale-invariant, exactly or up to eps; None
            with any other verdict.
        reason: for the verdict, in words.
        tested: the view of the figures that follow: the one of the verdict, or else the finest.
        here: the largest statistic sqrt(dim(w)) |cos(w, g)| of its units at the model's own
            parameters, batch and eps; nan where none has a gradient.
        limit: there with every eps 1e10 times smaller.
        elsewhere: at jittered parameters and batches, with the smaller eps.
        units, silent, invariant: how many units there are; that had no gradient at any point; that
            are invariant.

    Example:
        >>> found = sn.audit(torch.nn.Linear(2, 1), torch.randn(8, 2))[0]
        >>> found.name, str(found.verdict), found.view, found.tested, found.units
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


class Evidence:
    """The sensitivities to one weight.

    Attributes:
        limit: at the model's own point, with eps in the limit.
        here: there at the model's own eps, in random directions; empty if `limit` suffices.
        elsewhere: at jittered points with eps in the limit.
        plain: at the first jittered point with the model's own eps; empty if `here` suffices.
        shown: the number of jittered points at which anything depends on the weight.
        only_through_eps: nothing else than the eps of a normalization depends on the weight at the
            own point, as with a batch that a normalization maps to signs.
        tells_here: the own point shows how the weight acts.
    """

    def __init__(
        self,
        limit: Sums,
        here: Sequence[Sums] = (),
        elsewhere: Sequence[Sums] = (),
        plain: Sequence[Sums] = (),
    ) -> None:
        self.limit, self.here, self.elsewhere, self.plain = limit, here, elsewhere, plain
        own = here[0] if here else limit
        self.shown = sum(sums.sensitivity > 0 for sums in elsewhere)
        self.only_through_eps = (
            bool(here) and 0 < limit.sensitivity < _ONLY_THROUGH_EPS * own.sensitivity
        )
        self.tells_here = own.sensitivity > 0 and not self.only_through_eps

    @property
    def suffices(self) -> bool:
        """True if two jittered points show the weight, and one at least each unit that acts here.

        Dropped layers and rare experts need more points than two.
        """
        if self.shown < 2:
            return False
        for dim in self.limit.along:
            if all(dim in sums.along for sums in self.elsewhere):
                _, unseen = self.limit.statistic(View(dim))
                for sums in self.elsewhere:
                    unseen = unseen & ~sums.statistic(View(dim))[1]
                if unseen.any():
                    return False
        return True

    def candidates(self, views: Sequence[View] | None, exact: float) -> int:
        """The units that may be invariant, as far as the own point tells; of the first such view.

        All is possible where the own point tells nothing.
        """
        for view in fitting_views(self.limit.shape, views):
            statistic, shows = self.limit.statistic(view)
            passing = int((shows & (statistic <= exact)).sum())
            if not self.tells_here or passing > _BY_CHANCE * int(shows.sum()):
                return max(passing, 1)
        return int(not self.tells_here)


class Units:
    """The units of one view of a weight, one by one, as tensors of truth.

    Args:
        view: of the weight.
        evidence: on it.
        exact: the statistic below which a unit is invariant in the limit of eps.

    Attributes:
        seen, seen_here, seen_elsewhere: something depends on them at some point, at the own one, at
            a jittered one.
        bad_here, bad_elsewhere: not invariant at the own point, at a jittered one.
        good: invariant wherever anything depends on them, and so at a jittered point.
    """

    def __init__(self, view: View, evidence: Evidence, exact: float) -> None:
        self.view, self.evidence = view, evidence
        statistic, shows = evidence.limit.statistic(view)
        self.seen_here = shows & (not evidence.only_through_eps)
        self.bad_here = self.seen_here & ~(statistic <= exact)
        self.seen_elsewhere = self.bad_elsewhere = torch.zeros_like(shows)
        for sums in evidence.elsewhere:
            statistic, shows = sums.statistic(view)
            self.seen_elsewhere = self.seen_elsewhere | shows
            self.bad_elsewhere = self.bad_elsewhere | ~(statistic <= exact)
        self.seen = self.seen_here | self.seen_elsewhere
        self.good = self.seen_elsewhere & ~self.bad_here & ~self.bad_elsewhere

    def shown(self, sums: Sequence[Sums]) -> Tensor:
        """The statistics that were seen."""
        pairs = (each.statistic(self.view) for each in sums)
        return torch.cat([torch.empty(0), *(statistic[shows] for statistic, shows in pairs)])

    def largest(self, sums: Sequence[Sums]) -> float:
        values = self.shown(sums)
        return float(values.max()) if values.numel() else math.nan

    @property
    def holds(self) -> bool:
        return bool(self.good.any()) and torch.equal(self.good, self.seen)

    @property
    def only_here(self) -> bool:
        """True if no unit fails at the own point, and one does at a jittered point."""
        here = bool(self.seen_here.any() and not self.bad_here.any())
        return here and bool(self.bad_elsewhere.any())

    @property
    def only_elsewhere(self) -> bool:
        """True if units that fail at the own point, and no others, pass at the jittered ones."""
        passes = bool(self.seen_elsewhere[self.bad_here].all()) and not self.bad_elsewhere.any()
        return bool(self.bad_here.any()) and passes

    @property
    def unseen(self) -> int:
        """The number of units that act at the own point alone, if all others are invariant."""
        if not self.good.any() or self.bad_here.any() or self.bad_elsewhere.any():
            return 0
        return int((self.seen & ~self.good).sum())

    def finding(self, name: str, verdict: Verdict, reason: str) -> Finding:
        """The finding that has the figures of this view."""
        invariant = verdict in (Verdict.INVARIANT, Verdict.UP_TO_EPS)
        return Finding(
            name,
            tuple(self.evidence.limit.shape),
            verdict,
            str(self.view) if invariant else None,
            reason,
            tested=str(self.view),
            here=self.largest(self.evidence.here),
            limit=self.largest([self.evidence.limit]),
            elsewhere=self.largest(self.evidence.elsewhere),
            units=len(self.good),
            silent=int((~self.seen).sum()),
            invariant=int(self.good.sum()),
        )


def fitting_views(shape: torch.Size, views: Sequence[View] | None) -> Iterator[View]:
    """The views that fit a weight, of those asked for; None tries all, from fine to coarse."""
    if views is not None:
        yield from (view for view in views if _fits(view, shape))
        return
    dims = range(len(shape)) if len(shape) <= 3 else (0, 1)  # not those of a kernel
    yield View(0)
    yield from (View(dim) for dim in dims[1:] if shape[dim] > 1)
    for dim in dims:
        length = shape[dim]
        yield from (View(dim, count) for count in range(length // 2, 1, -1) if not length % count)
    yield View(None)


def dims_of(shape: torch.Size, views: Sequence[View] | None) -> list[int]:
    """The dimensions at whose indices these views need sums, and 0."""
    asked = {view.dim % len(shape) for view in fitting_views(shape, views) if view.dim is not None}
    return sorted({0, *asked})


def _fits(view: View, shape: torch.Size) -> bool:
    try:
        view.size(torch.empty(shape, device="meta"))
    except ValueError:
        return False
    return True


def judge(
    name: str, evidence: Evidence, views: Sequence[View] | None, exact: float, tolerance: float
) -> Finding:
    """The finding for one weight.

    Args:
        name: the weight's.
        evidence: its sensitivities.
        views: to try in order, of which those that do not fit are left out; None tries all
            dimensions, their equal groups, and the whole weight, from fine to coarse.
        exact: the statistic below which a unit is invariant in the limit of eps.
        tolerance: the statistic at the model's own eps up to which this is said without "up to".
    """
    shape, none = evidence.limit.shape, Verdict.NO_EVIDENCE
    everywhere = [*evidence.here, evidence.limit, *evidence.elsewhere]
    if all(sums.sensitivity == 0 for sums in everywhere):
        return Finding(name, tuple(shape), none, None, "no output depends on it at any point")
    tried: list[Units] = []
    for view in fitting_views(shape, views):
        tried.append(units := Units(view, evidence, exact))
        if units.holds:
            return units.finding(name, *_up_to_eps(units, tolerance))
        if units.unseen:  # a coarser view would hide them
            count = f"{units.unseen} of {len(units.good)} units of view {view}"
            why = f"{count} act at this point only; a larger batch?"
            return tried[0].finding(name, none, why)
        if units.only_elsewhere:  # a coarser view would hide the units that an eps outweighs
            left = f"{units.largest([evidence.limit]):.1g} in view {view} at this point"
            why = f"eps outweighs the variance: {left} alone"
            return units.finding(name, Verdict.NOT_INVARIANT, why)
    if not tried:
        return Finding(name, tuple(shape), none, None, "none of the views fits it")
    return _without_view(name, evidence, tried)


def _without_view(name: str, evidence: Evidence, tried: Sequence[Units]) -> Finding:
    """The finding for a weight that is invariant in none of the views that were tried."""
    none, variant, finest = Verdict.NO_EVIDENCE, Verdict.NOT_INVARIANT, tried[0]
    if evidence.only_through_eps:
        why = "it acts through the eps of a normalization alone; a larger batch?"
        return finest.finding(name, none, why)
    if here := next((units for units in tried if units.only_here), None):
        moved = f"{here.largest(evidence.elsewhere):.1g} when the other parameters move"
        return here.finding(name, Verdict.ONLY_HERE, f"view {here.view}: {moved}")
    if not evidence.shown and not all(units.bad_here.any() for units in tried):
        return finest.finding(name, none, "no output depends on it at a jittered point")
    part = max(tried, key=lambda units: float(units.good.sum() / units.seen.sum().clamp(min=1)))
    if part.good.any():
        count = f"{int(part.good.sum())} of {len(part.good)}"
        override = f"{{'as': '{part.view}', 'per': 'unit'}}"
        why = f"{count} units of view {part.view} are: {_runs(part.good)}; override: {override}"
        return part.finding(name, variant, why)
    for units in tried:
        largest = units.largest(evidence.elsewhere)
        if units.largest([evidence.limit]) <= _SMALL and largest <= _SMALL:
            why = f"{largest:.1g} is left in view {units.view}, which no eps explains"
            return units.finding(name, variant, why)
    return finest.finding(name, variant, "the outputs change with its norm")


def _up_to_eps(units: Units, tolerance: float) -> tuple[Verdict, str]:
    """The verdict on a weight that is invariant in the limit of eps."""
    evidence, silent = units.evidence, int((~units.seen).sum())
    beside = f"; {silent} of {len(units.seen)} units showed nothing" if silent else ""
    seen = units.shown(evidence.here if evidence.tells_here else evidence.plain)
    if not evidence.tells_here and not evidence.plain:
        return Verdict.INVARIANT, f"no output depends on it at this point{beside}"
    largest = float(seen.max()) if seen.numel() else 0.0
    if largest <= tolerance:
        return Verdict.INVARIANT, f"at {1 + evidence.shown} points{beside}"
    share = float(seen.square().mean().sqrt())
    if share > _MOST_EPS:
        left = f"{share:.1g} in view {units.view} at this eps"
        return Verdict.NOT_INVARIANT, f"eps outweighs the variance: {left}"
    limit = units.largest([evidence.limit])
    return Verdict.UP_TO_EPS, f"{largest:.1g} at this eps, {limit:.1g} in its limit{beside}"


def _runs(good: Tensor) -> str:
    """The indices of true entries as ranges: "0-7, 12"."""
    runs: list[list[int]] = []
    for index in good.nonzero().flatten().tolist():
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts[:6]) + (", ..." if len(texts) > 6 else "")
