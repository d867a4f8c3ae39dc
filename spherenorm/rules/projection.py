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

    <w, q> = 0 up to rounding, at any scale of the weight at which |w|^2 neither overflows nor
    underflows; a zero unit keeps its direction. `outward` and `inward` keep a share of the radial
    part.

    Known instances: AdamP and SGDP remove the radial part of weights that a test finds invariant;
    Nora removes it from every row; OrthoGrad removes it from the gradient, inside `KeepNorm`; the
    radial brake keeps half of an outward part and all of an inward part.

    Args:
        view: project all units of this view. None projects the units that a `ScaleInvarianceTest`
            earlier in the chain found invariant, and leaves the others alone (Eq. 12).
        outward, inward: the share of the radial part to keep, in [0, 1]: where it lengthens the
            weight (<w, d> < 0), and where it shortens it.

    Raises:
        ValueError: on the first step, if `view` is None and no test runs before this rule.

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
            # A unit keeps its direction if <w, w> has overflowed, as a zero unit does.
            radial = finite_or(self.view.radial_coefficient(weight, direction), 0)
            projected = torch.addcmul(direction, -self._removed_part(radial), weight)
            if self.view.size(weight) == 1 and self._removes_all:
                # A direction of one entry is radial as a whole. Rounding would leave a rest of it,
                # which a later rule might normalize.
                projected = torch.where(weight == 0, direction, 0.0)
        elif update.invariance is not None:
            projected = update.invariance.remove_radial_part(weight, direction, self._removed_part)
        else:
            raise ValueError(
                "RadialProjection() needs a ScaleInvarianceTest before it in the chain, or a view"
            )
        if projected is direction:
            return update, {}
        return update.replace(direction=projected), {}

    @property
    def _removes_all(self) -> bool:
        return is_zero(self.outward) and is_zero(self.inward)

    def _removed_part(self, radial: Tensor) -> Tensor:
        """Return the part of the radial coefficient <w, d> / <w, w> to remove."""
        if self._removes_all:
            return radial
        outward = (1 - cast_like(self.outward, radial)) * radial
        inward = (1 - cast_like(self.inward, radial)) * radial
        return torch.where(radial < 0, outward, inward)


@dataclass(frozen=True)
class Centralization(Rule):
    """Remove the mean of the direction's entries in each unit: d - mean(d).

    Weights of fewer than two dimensions keep their direction.

    Args:
        view: splits the weight into its units.

    Example:
        >>> rule = Centralization()
        >>> rule.step(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), {})[0]
        tensor([[ 1., -1.]])

    Source: Yong et al. 2020 (gradient centralization), Eq. 1.
    """

    view: ViewLike = view("channel")

    vector_policy = "skip"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        if direction.ndim < 2:
            return update, {}
        mean = self.view.unit_sums(direction) / max(self.view.size(direction), 1)
        return update.replace(direction=direction - mean), {}
