"""`Update`: what flows through a chain of rules for one weight tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.views import View

__all__ = ["Invariance", "Update"]


@dataclass(frozen=True)
class Invariance:
    """Which entries of a weight were found scale-invariant, view by view.

    Attributes:
        views: the views that were tested, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight. At most one view claims an entry.
    """

    views: tuple[View, ...] = ()
    flags: tuple[Tensor, ...] = ()

    def radial_part(self, weight: Tensor, x: Tensor) -> Tensor:
        """The part of `x` along `weight`, in each unit that was found invariant; 0 elsewhere."""
        coefficient: Tensor | float = 0.0
        for view, flag in zip(self.views, self.flags, strict=True):
            coefficient = torch.where(flag, view.radial_coefficient(weight, x), coefficient)
        return coefficient * weight

    def select(self, invariant: Tensor, other: Tensor) -> Tensor:
        """`invariant` where some view claims the entry, `other` elsewhere; both shaped as the weight."""
        for flag in self.flags:
            # Of two Python numbers `where` would make a float32.
            other = torch.where(flag, invariant, other)
        return other


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
