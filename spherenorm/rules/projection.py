"""The paper's contribution: test whether a weight is scale-invariant, and remove the radial part of its update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from spherenorm.rule import Rule, Scalar, State, hyper
from spherenorm.update import Invariance, Update
from spherenorm.views import ViewLike, as_view

__all__ = ["RadialProjection", "ScaleInvarianceTest"]


@dataclass(frozen=True)
class ScaleInvarianceTest(Rule):
    """Annotate the update with the units u for which |<w_u, g_u>| / (|w_u| |g_u|) < delta / sqrt(dim(w_u)) (paper, Eq. 12).

    The raw gradient g is tested, not the direction. Views are tried in order and the first that passes wins: a weight
    that every channel of passes is channel-wise invariant (BatchNorm), else one that passes as a whole is layer-wise
    invariant (LayerNorm). Weights of fewer than two dimensions (biases, gains) are never flagged.

    A unit whose gradient or weight is 0 has no direction to compare and is no evidence either way; a weight with no
    evidence at all is not flagged. (The release takes its cosine as 0, hence as invariant.)

    Args:
        delta: the threshold; the paper suggests 0.1.
        views: which views to try.
        per: "tensor", as released, asks that all units of a view pass; "unit", as Eq. 12 reads, lets each channel
            decide for itself and tries the next view only where no unit passed.
    """

    delta: Scalar = hyper("(0, inf)", 0.1)
    views: Sequence[ViewLike] = ("channel", "layer")
    per: Literal["tensor", "unit"] = "tensor"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.views, str):
            raise TypeError(
                f"ScaleInvarianceTest: views must be a sequence of views, got {self.views!r}"
            )
        object.__setattr__(self, "views", tuple(self.views))
        for view in self.views:
            as_view(view)
        if self.per not in ("tensor", "unit"):
            raise ValueError(
                f'ScaleInvarianceTest: per must be "tensor" or "unit", got {self.per!r}'
            )

    def init(self, weight: Tensor) -> State:
        for view in self.views if weight.ndim >= 2 else ():
            as_view(view).size(weight)  # which refuses a weight without such units
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, grad = update.weight, update.grad
        if weight.ndim < 2:
            return replace(update, invariance=Invariance()), {}
        views = tuple(as_view(view) for view in self.views)
        squared_weight, squared_grad, product = weight * weight, grad * grad, weight * grad
        squared_norms = [view.total(squared_weight) for view in views]
        passes, no_evidence = [], []
        for view, squared_norm in zip(views, squared_norms, strict=True):
            bound = (
                self.delta
                / math.sqrt(max(view.size(weight), 1))
                * (squared_norm.sqrt() * view.total(squared_grad).sqrt())
            )
            passes.append(view.total(product).abs() < bound)
            no_evidence.append(bound == 0)
        return replace(
            update,
            invariance=Invariance.decided(views, passes, no_evidence, squared_norms, self.per),
        ), {}


@dataclass(frozen=True)
class RadialProjection(Rule):
    """Remove the radial part of the direction: q = d - (<w, d> / <w, w>) w for each unit (paper, Eq. 11).

    <w, q> = 0 to rounding at any scale of the weight at which |w|^2 neither overflows nor underflows; a zero unit keeps its
    direction.

    Args:
        view: project all units of this view. None projects the units that a `ScaleInvarianceTest` earlier in the chain
            found invariant, and leaves the others alone (paper, Eq. 12).

    Raises:
        ValueError: on the first step, when `view` is None and no test came before.
    """

    view: ViewLike | None = None

    def __post_init__(self) -> None:
        if self.view is not None:
            as_view(self.view)

    def init(self, weight: Tensor) -> State:
        if self.view is not None:
            as_view(self.view).size(weight)
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, direction = update.weight, update.direction
        if self.view is not None:
            radial = as_view(self.view).radial_coefficient(weight, direction)
            projected = torch.addcmul(direction, -radial, weight)
        elif update.invariance is not None:
            projected = update.invariance.without_radial_part(weight, direction)
        else:
            raise ValueError(
                "RadialProjection() needs a ScaleInvarianceTest before it in the chain, or a view"
            )
        return replace(update, direction=projected), {}
