"""The paper's contribution: the test for scale invariance, and the projection of the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import (
    choice,
    hyper,
    view,
    views,
)
from spherenorm.invariance import Invariance, Per
from spherenorm.numerics import Scalar, cast_like, finite_or, is_finite, is_zero
from spherenorm.rule import Rule, State, Update
from spherenorm.rules.invariance import InvarianceTest, UnitSums
from spherenorm.views import ViewLike


@dataclass(frozen=True)
class ScaleInvarianceTest(InvarianceTest):
    """Annotate the update with the units of the weight that its gradient shows to be invariant:

        |<w_u, g_u>| / (|w_u| |g_u|) < delta / sqrt(dim(w_u)).

    The raw gradient g is tested, not the direction. Views are tried in order and the first that
    passes wins: a weight of which every channel passes is channel-wise invariant (BatchNorm), else
    one that passes as a whole is layer-wise invariant (LayerNorm). Weights of fewer than two
    dimensions (biases, gains) are never flagged.

    A unit whose gradient or weight is 0 has no direction to compare and is no evidence either way;
    a weight with no evidence at all is not flagged. (The release takes its cosine as 0, hence as
    invariant.) A unit whose <g, g> or <w, w> overflows does not pass. (In the release a radial
    gradient of 1e19 does.)

    L2 regularization in the loss adds a radial part to g and hides invariance; `CoupledDecay` does
    not, since it adds to the direction.

    Args:
        delta: the threshold, in (0, inf); the paper suggests 0.1.
        views: the views to try, in order.
        per: "tensor", as released, asks that all units of a view pass. "unit", as the equation
            reads, lets each channel decide for itself and tries the next view only where no unit
            passed.

    Example:
        >>> update = Update(torch.eye(2), torch.eye(2).flip(0), torch.zeros(2, 2))
        >>> ScaleInvarianceTest().update(update, {})[0].invariance.flags
        (tensor(True), tensor(False))

    Source: Heo et al. 2021 (AdamP), Eq. 12.
    """

    delta: Scalar = hyper("(0, inf)", 0.1)
    views: Sequence[ViewLike] = views("channel", "layer")
    per: Per = choice("tensor", "unit")

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        passes, silent = [], []
        for unit in sums:
            both = unit.squared_norm.sqrt() * unit.squared_grad.sqrt()
            bound = self.delta / math.sqrt(unit.size) * both
            # (a sum that has overflowed says nothing of the cosine)
            passes.append((unit.product.abs() < bound) & is_finite(bound))
            silent.append(bound == 0)
        norms = [unit.squared_norm for unit in sums]
        over = sums[0].over if sums else None
        return Invariance.from_passing_units(self.views, passes, silent, norms, self.per, over), {}


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
        mean = self.view.unit_sums(direction) / max(self.view.size(direction), 1)
        return update.replace(direction=direction - mean), {}
