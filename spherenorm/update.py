"""`Update`: what flows through a chain of rules for one weight tensor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.numerics import Scalar, ratio
from spherenorm.views import View

__all__ = ["Invariance", "Scalar", "Update"]


@dataclass(frozen=True)
class Invariance:
    """Which entries of a weight were found scale-invariant, view by view.

    Attributes:
        views: the views that were tested, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight. At most one view claims an entry.
        squared_norms: for each view, <w, w> of its units.
    """

    views: tuple[View, ...] = ()
    flags: tuple[Tensor, ...] = ()
    squared_norms: tuple[Tensor, ...] = ()

    @classmethod
    def decided(
        cls,
        views: Sequence[View],
        passes: Sequence[Tensor],
        no_evidence: Sequence[Tensor],
        squared_norms: Sequence[Tensor],
        per: str,
    ) -> Invariance:
        """What a test says: for each view, which units pass and which have nothing to say.

        Per "tensor", all units of a view that have something to say must pass, and one has to; per "unit" each decides for
        itself. A view gets its turn only where no unit passed an earlier one.
        """
        flags: list[Tensor] = []
        for passing, silent in zip(passes, no_evidence, strict=True):
            flag = (passing | silent).all() & passing.any() if per == "tensor" else passing
            for earlier in flags:
                flag = flag & ~earlier.any()
            flags.append(flag)
        return cls(tuple(views), tuple(flags), tuple(squared_norms))

    def without_radial_part(self, weight: Tensor, x: Tensor) -> Tensor:
        """x - (<w, x> / <w, w>) w in each unit that was found invariant, x itself elsewhere."""
        if not self.views:
            return x
        along = weight * x
        coefficient: Scalar = 0.0
        for view, flag, squared_norm in zip(
            self.views, self.flags, self.squared_norms, strict=True
        ):
            coefficient = torch.where(flag, ratio(view.total(along), squared_norm), coefficient)
        assert isinstance(coefficient, Tensor)
        found = functools.reduce(torch.logical_or, self.flags)
        # Chosen, not multiplied by 0: what is not invariant is left alone, whatever the weight.
        return torch.where(found, torch.addcmul(x, -coefficient, weight), x)

    def select(self, invariant: Scalar, other: Scalar, weight: Tensor) -> Scalar:
        """`invariant` where some view claims the entries of `weight`, `other` elsewhere; broadcasts against it."""
        chosen = other
        for flag in self.flags:
            # Of two Python numbers `where` would make a float32.
            one = torch.ones_like(flag, dtype=weight.dtype)
            chosen = torch.where(flag, invariant * one, chosen * one)
        return chosen


@dataclass(frozen=True)
class Update:
    """One step of one weight tensor, under construction.

    Attributes:
        weight: the weight before the step.
        grad: the raw gradient; no rule changes it.
        direction: the step so far; under Euclidean geometry the weight moves by minus this.
        invariance: set by a scale-invariance test, read by projection and decay; None before any test.
    """

    weight: Tensor
    grad: Tensor
    direction: Tensor
    invariance: Invariance | None = None
