"""The optimizers of the paper and its baselines: each a chain that reads like its algorithm.

A recipe is a function from hyper-parameters to a rule:

    >>> rule = sgdp(lr=0.1, momentum=0.9)
    >>> rule.state_names
    ('momentum',)

Names and defaults of the hyper-parameters are those of torch.optim and of the `adamp` package. A
number outside its interval, such as a momentum of 1, is refused by the rule that takes it. Views
and `per` are explained in `spherenorm.rules.ScaleInvarianceTest`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm._chain import Chain, chain
from spherenorm._manifold import Sphere
from spherenorm._numerics import Scalar, is_zero
from spherenorm._registry import recipe
from spherenorm._rule import Rule
from spherenorm._update import Per
from spherenorm._views import ViewLike

__all__ = ["adam", "adamg", "adamp", "adamw", "rmsprop", "sgd", "sgdg", "sgdp", "sgdw"]

Views = Sequence[ViewLike]
CHANNEL_THEN_LAYER = ("channel", "layer")


@recipe
def sgd(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
) -> Chain:
    """Stochastic gradient descent with momentum and L2 regularization, as torch.optim.SGD:

        p <- momentum p + (1 - dampening) (g + weight_decay w)
        w <- w - lr p

    The first gradient enters p whole. Torch refuses `nesterov` with a momentum of 0 or with
    dampening; here both are allowed, since a schedule may switch momentum on.

    Args:
        lr: in [0, inf).
        momentum: in [0, 1); at the Python number 0 there is no buffer.
        dampening: in [0, 1].
        weight_decay: in [0, inf).
        nesterov: w loses lr (g + momentum p) instead.

    Source: Heo et al. 2021 (AdamP), Section 2.4.
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
    """SGD with decoupled weight decay: w loses lr weight_decay w per step.

    The decay is multiplied by the learning rate, as in torch.optim.AdamW; the printed SGDW
    multiplies it by the schedule only.

    Args:
        lr, momentum, dampening, nesterov: as for `sgd`.
        weight_decay: in [0, inf).

    Source: Loshchilov and Hutter 2019, Algorithm 1.
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
    """SGDP: SGD with momentum whose step loses its radial part where the weight is scale-invariant.

    The decay is the release's, lr weight_decay / (1 - momentum) per step.

    Args:
        lr, momentum, dampening, nesterov: as for `sgd`.
        weight_decay: in [0, inf).
        eps: accepted for the `adamp` package's sake and not used: the projection here is exact.
        delta, views, per: of the test for scale invariance; see `rules.ScaleInvarianceTest`.
        wd_ratio: multiplies the decay of scale-invariant weights, in [0, inf).
        project_buffer: remember the projected momentum, as the release does without Nesterov
            momentum (its projection works in place on its buffer). Algorithm 1, and the release
            with Nesterov, remember the unprojected one.

    Raises:
        ValueError: `project_buffer` goes with `nesterov`; a hyper-parameter is outside its
            interval.

    Source: Heo et al. 2021 (AdamP), Algorithm 1; the `adamp` package.
    """
    test = r.ScaleInvarianceTest(delta, views, per)
    if project_buffer and nesterov:
        raise ValueError(
            "sgdp: project_buffer=True goes with nesterov=False; "
            "with Nesterov momentum the release does not project its buffer"
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
    """Adam with L2 regularization, as torch.optim.Adam.

    Args:
        lr: in [0, inf).
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment, in [0, inf).
        weight_decay: in [0, inf).

    Source: Kingma and Ba 2015, Algorithm 1.
    """
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
    """Adam with decoupled weight decay, as torch.optim.AdamW: w loses lr weight_decay w per step.

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: in [0, inf).

    Source: Loshchilov and Hutter 2019, Algorithm 2.
    """
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
    """AdamP: Adam whose step loses its radial part where the weight is scale-invariant.

    Bias correction and decoupled decay are those of the release.

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: in [0, inf).
        delta, views, per: of the test for scale invariance; see `rules.ScaleInvarianceTest`.
        wd_ratio: multiplies the decay of scale-invariant weights, in [0, inf).
        nesterov: look ahead by one averaged step; see `rules.AdaptiveMoments`.

    Source: Heo et al. 2021 (AdamP), Algorithm 2; the `adamp` package.
    """
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
    """RMSprop with momentum on the preconditioned gradient, as torch.optim.RMSprop.

    Args:
        lr: in [0, inf).
        alpha: decay rate of the second moment, in [0, 1).
        eps: added to the root of the second moment, in [0, inf).
        weight_decay: of an L2 regularization, in [0, inf).
        momentum: in [0, 1).
        centered: reduce the second moment by the square of the first.

    Source: Tieleman and Hinton 2012, lecture 6.5.
    """
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
    """SGD with momentum on the Grassmann manifold G(1, n), one point per unit.

    The learning rate sits inside the momentum. Weights should start on the unit sphere
    (`Sphere(view).normalize`); biases, gains and the last layer belong in a Euclidean param_group.

    Args:
        lr: radians per unit of gradient, in [0, inf).
        momentum: in [0, 1).
        nu: the longest gradient of a unit, in (0, inf); None does not clip.
        alpha: the orthogonality regularization, in [0, inf); 0 leaves it out.
        view: splits a weight into its units.

    Source: Cho and Lee 2017, SGD-G.
    """
    return chain(
        *_riemannian_gradient(nu, alpha, view),
        r.StepSize(lr),
        r.HeavyBall(momentum),
        manifold=Sphere(view),
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
    """Adam on the Grassmann manifold G(1, n), one second moment per unit; see `sgdg`.

    Args:
        lr: the angle of a first step in radians, in [0, inf).
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the second moment, in [0, inf).
        nu, alpha, view: as for `sgdg`.

    Source: Cho and Lee 2017, Adam-G.
    """
    return chain(
        *_riemannian_gradient(nu, alpha, view),
        r.UnitMoments(*betas, eps=eps, view=view),
        r.StepSize(lr),
        manifold=Sphere(view),
    )


def _torch_momentum(
    momentum: Scalar, dampening: Scalar = 0.0, nesterov: bool = False
) -> list[Rule]:
    """At momentum 0, torch.optim keeps no buffer and ignores the dampening."""
    if is_zero(momentum):
        return []
    if isinstance(momentum, Tensor) and not is_zero(dampening):
        # (of two Python numbers, or one and a truth value, torch would make a float32)
        dampening = torch.where(momentum == 0, 0, dampening + 0 * momentum)
    return [
        r.HeavyBall(momentum, dampening, nesterov, undamped_start=True, buffer="momentum_buffer")
    ]


def _riemannian_gradient(nu: Scalar | None, alpha: Scalar, view: ViewLike) -> list[Rule]:
    """Regularize, project onto the tangent space, clip."""
    clip = [] if nu is None else [r.UnitClip(nu, view)]
    return [r.OrthogonalityRegularization(alpha, view), r.RadialProjection(view), *clip]
