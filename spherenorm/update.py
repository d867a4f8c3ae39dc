"""`Update`: what flows through a chain of rules for one weight tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.views import View, ratio

__all__ = ["Invariance", "Scalar", "Update"]

Scalar = float | Tensor
"""A hyper-parameter: a Python number, or a 0-dim tensor (batched under vmap, a symbol under a tracer)."""


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

    def radial_coefficient(self, weight: Tensor, x: Tensor) -> Tensor | None:
        """<w, x> / <w, w> in each unit that was found invariant, 0 elsewhere; broadcasts against the weight. None without views."""
        if not self.views:
            return None
        along = weight * x
        coefficient: Scalar = 0.0
        for view, flag, squared_norm in zip(self.views, self.flags, self.squared_norms, strict=True):
            found = ratio(view.total(along), squared_norm)
            coefficient = torch.where(flag, found, coefficient)
        assert isinstance(coefficient, Tensor)
        return coefficient

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
