"""`Invariance`: the entries of a weight that a test found scale-invariant, and what follows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spherenorm.numerics import Scalar, cast_like, readable_without_sync, safe_divide
from spherenorm.views import View

Per = Literal["tensor", "unit"]
"""A scale-invariance test decides for a whole weight tensor, or for each unit by itself."""
TensorFn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Invariance:
    """The entries of a weight that were found scale-invariant, view by view.

    Attributes:
        views: the views that were tested, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight. At most one view
            claims an entry.
        squared_norms: for each view, <w, w> of its units.

    Example:
        >>> weight, grad = torch.eye(2), torch.eye(2).flip(0)
        >>> update, _ = sn.rules.ScaleInvarianceTest().update(Update(weight, grad, grad), {})
        >>> [bool(flag) for flag in update.invariance.flags]
        [True, False]
    """

    views: tuple[View, ...] = ()
    flags: tuple[Tensor, ...] = ()
    squared_norms: tuple[Tensor, ...] = ()

    @classmethod
    def from_passing_units(
        cls,
        views: Sequence[View],
        passes: Sequence[Tensor],
        no_evidence: Sequence[Tensor],
        squared_norms: Sequence[Tensor],
        per: Per,
        over: int | None = None,
    ) -> Invariance:
        """The decision of a test. A view gets its turn only where no unit passed an earlier one.

        Args:
            views: the views that were tested, in order of precedence.
            passes: for each view, the units that pass; it broadcasts against the weight.
            no_evidence: for each view, the units that are no evidence either way.
            squared_norms: for each view, <w, w> of its units.
            per: "tensor" asks that all units of a view pass, those without evidence aside, and
                one at least; "unit" lets each unit decide for itself.
            over: the dimension along which the units of one weight lie, where the tensors hold
                those of several weights; None: all dimensions.
        """
        flags: list[Tensor] = []
        for passing, silent in zip(passes, no_evidence, strict=True):
            flag = passing
            if per == "tensor":
                flag = all_units(passing | silent, over) & any_unit(passing, over)
            for earlier in flags:
                flag = flag & ~any_unit(earlier, over)
            flags.append(flag)
        return cls(tuple(views), tuple(flags), tuple(squared_norms))

    def remove_radial_part(self, weight: Tensor, x: Tensor, removed: TensorFn) -> Tensor:
        """x - removed(<w, x> / <w, w>) w in each unit that was found invariant, x elsewhere."""
        claims = _claims(self)
        if not claims:
            return x
        along = weight * x
        coefficient: Scalar = 0.0
        for view, flag, squared_norm in claims:
            share = safe_divide(view.unit_sums(along), squared_norm)
            coefficient = share if flag is None else torch.where(flag, share, coefficient)
        assert isinstance(coefficient, Tensor)
        projected = torch.addcmul(x, -removed(coefficient), weight)
        flags = [flag for _, flag, _ in claims if flag is not None]
        # Chosen, not multiplied by 0: what is not invariant is left alone, whatever the weight.
        found = functools.reduce(torch.logical_or, flags) if flags else None
        return projected if found is None else torch.where(found, projected, x)

    def select(self, invariant: Scalar, other: Scalar, weight: Tensor) -> Scalar:
        """`invariant` where some view claims the entries of `weight`, `other` elsewhere.

        The result broadcasts against the weight.
        """
        chosen = other
        for _, flag, _ in _claims(self):
            if flag is None:
                return invariant
            # Of two Python numbers `where` would make a float32.
            one = torch.ones_like(flag, dtype=weight.dtype)
            chosen = torch.where(
                flag, cast_like(invariant, one) * one, cast_like(chosen, one) * one
            )
        return chosen


def _claims(found: Invariance) -> list[tuple[View, Tensor | None, Tensor]]:
    """View, flag and squared norms of each view that may claim entries.

    A decision on a whole weight is read where it can be, so that nothing is computed in vain: a
    flag of None claims the weight.
    """
    claims: list[tuple[View, Tensor | None, Tensor]] = []
    for view, flag, norm in zip(found.views, found.flags, found.squared_norms, strict=True):
        if flag.ndim or not readable_without_sync(flag):
            claims.append((view, flag, norm))
        elif flag:
            return [(view, None, norm)]
    return claims


def all_units(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for all units of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.all() if over is None else x.all(over, keepdim=True)


def any_unit(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for a unit of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.any() if over is None else x.any(over, keepdim=True)


def total_of_units(x: Tensor, over: int | None) -> Tensor:
    """The sum of `x` over the units of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.sum() if over is None else x.sum(over, keepdim=True)
