"""Projections of the direction: remove its radial part, or its mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper, view
from spherenorm.numerics import Scalar, cast_like, finite_or, is_zero
from spherenorm.rule import Rule, State, Update
from spherenorm.views import ViewLike


@dataclass(frozen=True)
class RadialProjection(Rule):
    """Remove the radial part of the direction: q = d - (<w, d> / <w, w>) w for each unit.

    <w, q> = 0 to rounding at any scale of the weight at which |w|^2 neither overflows nor
    underflows; a zero unit keeps its direction. A share of the radial part may stay: of one that
    lengthens the weight (<w, d> < 0), and of one that shortens it.

    Known instances: AdamP and SGDP remove all of it behind a test; Nora without one, row by row;
    OrthoGrad from the gradient, within `Graft`; the radial brake keeps half of an outward and
    all of an inward part.

    Args:
        view: project all units of this view. None projects the units that a `ScaleInvarianceTest`
            earlier in the chain found invariant, and leaves the others alone (Eq. 12).
        outward, inward: the share that stays of a radial part that lengthens the weight, and of one
            that shortens it, in [0, 1].

    Raises:
        ValueError: on the first step, when `view` is None and no test came before.

    Example:
        >>> rule = RadialProjection("layer")
        >>> rule.step(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0]), {})[0]
        tensor([ 2., -1.])

    Source: Heo et al. 2021 (AdamP), Eq. 11 and 12.
    """

    view: ViewLike = view(None)
    outward: Scalar = hyper("[0, 1]", 0.0)
    inward: Scalar = hyper("[0, 1]", 0.0)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, direction = update.weight, update.direction
        if self.view is not None:
            # (a weight of which <w, w> has overflowed keeps its direction, as one of 0 does)
            radial = finite_or(self.view.radial_coefficient(weight, direction), 0)
            radial = self._removed(radial)
            projected = torch.addcmul(direction, -radial, weight)
            if self.view.size(weight) == 1 and self._removes_all:
                # All of it is radial; a rule behind would normalize what rounding leaves.
                projected = torch.where(weight == 0, direction, 0.0)
        elif update.invariance is not None:
            projected = update.invariance.remove_radial_part(weight, direction, self._removed)
        else:
            before = "a ScaleInvarianceTest before it in the chain, or a view"
            raise ValueError(f"RadialProjection() needs {before}")
        return update if projected is direction else update.replace(direction=projected), {}

    @property
    def _removes_all(self) -> bool:
        return is_zero(self.outward) and is_zero(self.inward)

    def _removed(self, radial: Tensor) -> Tensor:
        """The part of <w, d> / <w, w> that goes."""
        if self._removes_all:
            return radial
        outward = (1 - cast_like(self.outward, radial)) * radial
        return torch.where(radial < 0, outward, (1 - cast_like(self.inward, radial)) * radial)


@dataclass(frozen=True)
class Centralization(Rule):
    """Remove the mean of the direction's entries in each unit: d - mean(d).

    Weights of fewer than two dimensions are left alone.

    Args:
        view: splits the weight into its units.

    Example:
        >>> rule = Centralization()
        >>> rule.step(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), {})[0]
        tensor([[ 1., -1.]])

    Source: Yong et al. 2020 (gradient centralization), Eq. 1.
    """

    view: ViewLike = view("channel")

    vectors = "skip"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        if direction.ndim < 2:
            return update, {}
        mean = self.view.total(direction) / max(self.view.size(direction), 1)
        return update.replace(direction=direction - mean), {}
