"""The units of one view of a weight, and what the evidence says of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm._views import View
from spherenorm.audit._sensitivity import Sums, default_dims

_ONLY_THROUGH_EPS = 1e-3
"""The share of its sensitivity that a weight loses at least, if it acts through an eps alone."""
_BY_CHANCE = 1e-3
"""The share of units of which nothing is made that pass at one point: of a million one does."""


@dataclass(frozen=True)
class Figures:
    """The largest statistic sqrt(dim(w)) |cos(w, g)| of the units of one view; nan where none has
    a gradient.

    Attributes:
        here: at the model's own parameters, batch and eps.
        limit: there with every eps 1e10 times smaller.
        elsewhere: at jittered parameters and batches, with the smaller eps.
        units: how many units the view has.
        silent: how many of them had no gradient at any point.
        invariant: how many of them are invariant.

    Example:
        >>> layers = torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3)
        >>> found = sn.audit(torch.nn.Sequential(*layers), torch.randn(32, 4))
        >>> figures = found[0].figures["channel"]
        >>> figures.units, figures.invariant, figures.elsewhere < 1e-6
        (3, 3, True)
    """

    here: float
    limit: float
    elsewhere: float
    units: int
    silent: int
    invariant: int


@dataclass(frozen=True)
class Evidence:
    """The sensitivities to one weight.

    Attributes:
        here: at the model's own point, in random directions; empty if `limit` suffices.
        limit: there with eps in the limit.
        elsewhere: at jittered points with eps in the limit.
        plain: at the first jittered point with the model's own eps; empty if `here` suffices.
    """

    here: Sequence[Sums]
    limit: Sums
    elsewhere: Sequence[Sums] = ()
    plain: Sequence[Sums] = ()

    @property
    def only_through_eps(self) -> bool:
        """True if nothing else than the eps of a normalization depends on the weight here.

        So it is with a batch that a normalization maps to signs.
        """
        own = self.here[0].sensitivity if self.here else 0.0
        return 0 < self.limit.sensitivity < _ONLY_THROUGH_EPS * own

    @property
    def tells_here(self) -> bool:
        """True if the own point shows how the weight acts."""
        sums = self.here[0] if self.here else self.limit
        return sums.sensitivity > 0 and not self.only_through_eps

    @property
    def shown(self) -> int:
        """The number of jittered points at which anything depends on the weight."""
        return sum(sums.sensitivity > 0 for sums in self.elsewhere)

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

    def may_hold(self, views: Sequence[View] | None, exact: float) -> bool:
        """True if a unit of some view may be invariant, as far as the own point tells."""
        if not self.tells_here:
            return True
        for view in fitting_views(self.limit.shape, views):
            statistic, shows = self.limit.statistic(view)
            if int((shows & (statistic <= exact)).sum()) > _BY_CHANCE * int(shows.sum()):
                return True
        return False


@dataclass(frozen=True)
class UnitVerdicts:
    """One view of a weight: its units, one by one, as tensors of truth.

    Attributes:
        good: invariant wherever anything depends on them, and so at a jittered point.
        seen, seen_here, seen_elsewhere: something depends on them at some point, at the own one, at
            a jittered one.
        bad_here, bad_elsewhere: not invariant at the own point, at a jittered one.
    """

    view: View
    evidence: Evidence
    good: Tensor
    seen_here: Tensor
    seen_elsewhere: Tensor
    bad_here: Tensor
    bad_elsewhere: Tensor

    @property
    def figures(self) -> Figures:
        def largest(sums: Sequence[Sums]) -> float:
            pairs = (each.statistic(self.view) for each in sums)
            values = torch.cat([torch.empty(0), *(statistic[shows] for statistic, shows in pairs)])
            return float(values.max()) if values.numel() else math.nan

        return Figures(
            largest(self.evidence.here),
            largest([self.evidence.limit]),
            largest(self.evidence.elsewhere),
            len(self.good),
            int((~self.seen).sum()),
            int(self.good.sum()),
        )

    @property
    def seen(self) -> Tensor:
        return self.seen_here | self.seen_elsewhere

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

    @property
    def share(self) -> float:
        return float(self.good.sum() / self.seen.sum().clamp(min=1))


def judge_units(view: View, evidence: Evidence, exact: float) -> UnitVerdicts:
    """The units of one view; `exact` is the statistic below which one is invariant."""

    statistic, seen_here = evidence.limit.statistic(view)
    seen_here = seen_here & (not evidence.only_through_eps)
    bad_here = seen_here & ~(statistic <= exact)
    seen_elsewhere, bad_elsewhere = torch.zeros_like(seen_here), torch.zeros_like(seen_here)
    for sums in evidence.elsewhere:
        statistic, shows = sums.statistic(view)
        seen_elsewhere |= shows
        bad_elsewhere |= shows & ~(statistic <= exact)
    good = seen_elsewhere & ~bad_here & ~bad_elsewhere
    return UnitVerdicts(view, evidence, good, seen_here, seen_elsewhere, bad_here, bad_elsewhere)


def fitting_views(shape: torch.Size, views: Sequence[View] | None) -> Iterator[View]:
    """The views that fit a weight, of those asked for; None tries all, from fine to coarse."""
    if views is not None:
        yield from (view for view in views if _fits(view, shape))
        return
    dims = default_dims(len(shape))
    yield View(0)
    yield from (View(dim) for dim in dims[1:] if shape[dim] > 1)
    for dim in dims:
        length = shape[dim]
        yield from (View(dim, count) for count in range(length // 2, 1, -1) if not length % count)
    yield View(None)


def _fits(view: View, shape: torch.Size) -> bool:
    try:
        view.size(torch.empty(shape, device="meta"))
    except ValueError:
        return False
    return True
