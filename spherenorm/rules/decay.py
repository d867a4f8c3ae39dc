"""Weight decay, coupled and decoupled, and its counterpart on the sphere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real

from torch import Tensor

from spherenorm.numerics import is_zero, plus_scaled
from spherenorm.rule import Rule, Scalar, State, hyper
from spherenorm.update import Update
from spherenorm.views import ViewLike, as_view

__all__ = ["CoupledDecay", "DecoupledDecay", "OrthogonalityRegularization"]


@dataclass(frozen=True)
class CoupledDecay(Rule):
    """L2 regularization: the gradient of (lambda / 2) |w|^2 joins the direction, d + lambda w.

    Put first, it passes through momentum and preconditioner like the loss's own gradient.
    """

    weight_decay: Scalar = hyper("[0, inf)")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.weight_decay):
            return update, {}
        return replace(
            update, direction=plus_scaled(update.direction, self.weight_decay, update.weight)
        ), {}


@dataclass(frozen=True)
class DecoupledDecay(Rule):
    """Decay that bypasses momentum and preconditioner: d + lambda w, put right before the step size.

    With `invariant_ratio` = r, weights that an earlier `ScaleInvarianceTest` found invariant decay by r lambda, since
    their norm no longer grows by momentum (the paper's implementation uses r = 0.1).
    Source: Loshchilov and Hutter 2019.

    Raises:
        ValueError: on the first step, when a ratio is given and no test came before.
    """

    weight_decay: Scalar = hyper("[0, inf)")
    invariant_ratio: Scalar | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.invariant_ratio
        if (
            ratio is not None
            and not isinstance(ratio, Tensor)
            and not (isinstance(ratio, Real) and 0 <= ratio < float("inf"))
        ):
            raise ValueError(f"DecoupledDecay: invariant_ratio must be in [0, ∞), got {ratio!r}")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.weight_decay):
            return update, {}
        decay: Scalar = self.weight_decay
        if self.invariant_ratio is not None:
            if update.invariance is None:
                raise ValueError(
                    "DecoupledDecay(invariant_ratio=...) needs a ScaleInvarianceTest before it in the chain"
                )
            decay = update.invariance.select(decay * self.invariant_ratio, decay, update.weight)
        return replace(update, direction=plus_scaled(update.direction, decay, update.weight)), {}


@dataclass(frozen=True)
class OrthogonalityRegularization(Rule):
    """Weight decay for the Grassmann manifold: the gradient of (alpha / 2) |Y^T Y - I|_F^2 joins the direction.

    Y holds the units of a layer as columns, so the gradient is 2 alpha Y (Y^T Y - I): it turns them apart. Put before the
    tangent projection and the clip. Weights of fewer than two dimensions are left alone.
    Source: Cho and Lee 2017.
    """

    alpha: Scalar = hyper("[0, inf)")
    view: ViewLike = "channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        as_view(self.view)

    def init(self, weight: Tensor) -> State:
        if weight.ndim >= 2:
            as_view(self.view).size(weight)  # which refuses a weight without such units
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.alpha) or update.weight.ndim < 2 or not update.weight.numel():
            return update, {}
        view = as_view(self.view)
        rows = view.rows(update.weight)
        # Multiplied out: an identity matrix would have to be sharded as the weight is.
        gradient = 2 * (rows @ rows.T @ rows - rows)
        gradient = view.from_rows(gradient, update.weight)
        return replace(update, direction=plus_scaled(update.direction, self.alpha, gradient)), {}
