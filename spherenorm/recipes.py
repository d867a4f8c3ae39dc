"""The optimizers of the paper and its baselines: each a chain that reads like its algorithm.

A recipe is a function from hyper-parameters to a rule. Names and defaults of the hyper-parameters are those of
torch.optim and of the `adamp` package; views and `per` are explained in `spherenorm.rules.ScaleInvarianceTest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm.chain import Chain, chain
from spherenorm.geometry import Sphere
from spherenorm.numerics import Scalar, is_zero
from spherenorm.registry import recipe
from spherenorm.rule import Rule
from spherenorm.views import ViewLike

__all__ = ["adam", "adamg", "adamp", "adamw", "rmsprop", "sgd", "sgdg", "sgdp", "sgdw"]

Views = Sequence[ViewLike]
Per = Literal["tensor", "unit"]
CHANNEL_THEN_LAYER = ("channel", "layer")


@recipe
def sgd(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
) -> Chain:
    """Stochastic gradient descent with momentum and L2 regularization, as torch.optim.SGD (paper, Section 2.4).

    `nesterov` goes with a momentum of 0 too, where there is nothing to look ahead with (a schedule may switch momentum on),
    and with dampening; torch.optim.SGD refuses both.
    """
    return chain(
        r.CoupledDecay(weight_decay),
        *_torch_momentum(momentum, dampening, nesterov),
        r.StepSize(lr),
    )


@recipe
def sgdw(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
) -> Chain:
    """SGD with decoupled weight decay: w loses lr * weight_decay * w per step (Loshchilov and Hutter 2019, Algorithm 1).

    The decay is multiplied by the learning rate, as in torch.optim.AdamW; their printed SGDW multiplies it by the schedule only.
    """
    return chain(
        *_torch_momentum(momentum, dampening, nesterov),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def sgdp(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
    eps: Scalar = 1e-8,
    delta: Scalar = 0.1,
    wd_ratio: Scalar = 0.1,
    views: Views = CHANNEL_THEN_LAYER,
    per: Per = "tensor",
    project_buffer: bool = False,
) -> Chain:
    """SGDP (paper, Algorithm 1), with the release's decoupled decay lr * weight_decay / (1 - momentum).

    Args:
        eps: accepted for the `adamp` package's sake and not used: the projection here is exact.
        project_buffer: as the release does without Nesterov momentum, remember the projected momentum (its projection
            works in place on its buffer). Algorithm 1, and the release with Nesterov, remember the unprojected one.
    """
    test = r.ScaleInvarianceTest(delta, views, per)
    if project_buffer and nesterov:
        raise ValueError(
            "sgdp: project_buffer=True goes with nesterov=False; with Nesterov momentum the release does not project its buffer"
        )
    projected: Rule
    if project_buffer:
        projected = r.FeedbackMomentum(chain(test, r.RadialProjection()), momentum, dampening)
    else:
        projected = chain(r.HeavyBall(momentum, dampening, nesterov), test, r.RadialProjection())
    return chain(
        projected,
        r.DecoupledDecay(weight_decay / (1 - momentum), invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


@recipe
def adam(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adam with L2 regularization, as torch.optim.Adam (Kingma and Ba 2015, Algorithm 1)."""
    return chain(
        r.CoupledDecay(weight_decay),
        r.AdaptiveMoments(*betas, eps=eps),
        r.StepSize(lr),
    )


@recipe
def adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
) -> Chain:
    """Adam with decoupled weight decay, as torch.optim.AdamW (Loshchilov and Hutter 2019, Algorithm 2)."""
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def adamp(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    delta: Scalar = 0.1,
    wd_ratio: Scalar = 0.1,
    nesterov: bool = False,
    views: Views = CHANNEL_THEN_LAYER,
    per: Per = "tensor",
) -> Chain:
    """AdamP (paper, Algorithm 2), with the bias correction and the decoupled decay of the release."""
    return chain(
        r.AdaptiveMoments(*betas, eps=eps, nesterov=nesterov),
        r.ScaleInvarianceTest(delta, views, per),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


@recipe
def rmsprop(
    lr: Scalar = 1e-2,
    alpha: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: Scalar = 0.0,
    centered: bool = False,
) -> Chain:
    """RMSprop with momentum on the preconditioned gradient, as torch.optim.RMSprop (Tieleman and Hinton 2012)."""
    return chain(
        r.CoupledDecay(weight_decay),
        r.RootMeanSquare(alpha, eps, centered),
        *_torch_momentum(momentum),
        r.StepSize(lr),
    )


@recipe
def sgdg(
    lr: Scalar = 0.2,
    momentum: Scalar = 0.9,
    nu: Scalar | None = 0.1,
    alpha: Scalar = 0.1,
    view: ViewLike = "channel",
) -> Chain:
    """SGD with momentum on the Grassmann manifold G(1, n), one point per unit (Cho and Lee 2017, SGD-G).

    The learning rate sits inside the momentum. Weights should start on the unit sphere (`Sphere(view).normalize`); biases,
    gains and the last layer belong in a Euclidean param_group.

    Args:
        lr: radians per unit of gradient.
        nu: the longest gradient of a unit; None does not clip.
        alpha: the orthogonality regularization; 0 leaves it out.
    """
    return chain(
        *_riemannian_gradient(nu, alpha, view),
        r.StepSize(lr),
        r.HeavyBall(momentum),
        geometry=Sphere(view),
    )


@recipe
def adamg(
    lr: Scalar = 0.05,
    betas: tuple[Scalar, Scalar] = (0.9, 0.99),
    eps: Scalar = 1e-8,
    nu: Scalar | None = 0.1,
    alpha: Scalar = 0.1,
    view: ViewLike = "channel",
) -> Chain:
    """Adam on the Grassmann manifold G(1, n), one second moment per unit (Cho and Lee 2017, Adam-G). See `sgdg`."""
    return chain(
        *_riemannian_gradient(nu, alpha, view),
        r.UnitMoments(*betas, eps=eps, view=view),
        r.StepSize(lr),
        geometry=Sphere(view),
    )


def _torch_momentum(
    momentum: Scalar, dampening: Scalar = 0.0, nesterov: bool = False
) -> list[Rule]:
    """At momentum 0, torch.optim keeps no buffer and ignores the dampening."""
    if is_zero(momentum):
        return []
    if isinstance(momentum, Tensor) and not is_zero(dampening):
        # (of two Python numbers, or one and a truth value, torch would make a float32)
        dampening = torch.where(momentum == 0, momentum, dampening + 0 * momentum)
    return [
        r.HeavyBall(momentum, dampening, nesterov, undamped_start=True, buffer="momentum_buffer")
    ]


def _riemannian_gradient(nu: Scalar | None, alpha: Scalar, view: ViewLike) -> list[Rule]:
    """Regularize, project onto the tangent space, clip."""
    clip = [] if nu is None else [r.UnitClip(nu, view)]
    return [r.OrthogonalityRegularization(alpha, view), r.RadialProjection(view), *clip]
