"""SGD and its variants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm.numerics import Scalar, is_zero
from spherenorm.registry import recipe
from spherenorm.rule import Chain, Rule, chain
from spherenorm.rules.invariance import Per
from spherenorm.views import ViewLike

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

        g <- g + weight_decay w,    p <- momentum p + (1 - dampening) g,    w <- w - lr p.

    The first gradient enters p without dampening. Torch refuses `nesterov` with a momentum of 0 or
    with dampening; here both are allowed, since a schedule may switch momentum on.

    Start with lr = 0.1, momentum 0.9 (measured, and usual for ResNets).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1); the Python number 0 needs no buffer.
        dampening: share of the gradient that does not enter the momentum, in [0, 1].
        weight_decay: factor of the L2 term weight_decay w in the gradient, in [0, inf).
        nesterov: step by g + momentum p instead of p.

    Example:
        >>> rule, weight = sgd(lr=0.1, momentum=0.9), torch.ones(2)
        >>> rule.step(weight, weight, rule.init(weight))
        (tensor([0.9000, 0.9000]), {'momentum_buffer': tensor([1., 1.])})

    Source: Heo et al. 2021 (AdamP), Section 2.4.

    `spherenorm code sgd` prints it as plain torch.
    """
    return chain(
        r.CoupledDecay(weight_decay),
        *torch_momentum(momentum, dampening, nesterov),
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
    """SGD with momentum and decoupled weight decay:

        p <- momentum p + (1 - dampening) g,    w <- w - lr (p + weight_decay w).

    The first gradient enters p without dampening. The decay is multiplied by the learning rate, as
    in torch.optim.AdamW; the printed SGDW multiplies it only by the schedule.

    Start with lr = 0.1, momentum 0.9 (usual for ResNets).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1); the Python number 0 needs no buffer.
        dampening: share of the gradient that does not enter the momentum, in [0, 1].
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: step by g + momentum p instead of p.

    Example:
        >>> weight, no_grad = torch.ones(2), torch.zeros(2)
        >>> sgdw(lr=0.1, weight_decay=0.5).step(weight, no_grad, {})[0]
        tensor([0.9500, 0.9500])

    Source: Loshchilov and Hutter 2019, Algorithm 1.

    `spherenorm code sgdw` prints it as plain torch.
    """
    return chain(
        *torch_momentum(momentum, dampening, nesterov),
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
    """SGDP: SGD with momentum whose step loses its radial part where the weight is scale-invariant:

        p <- momentum p + (1 - dampening) g,
        q = p - (<w, p> / <w, w>) w if |cos(w, g)| < delta / sqrt(dim(w)), else p,
        w <- w - lr (q + wd_ratio weight_decay / (1 - momentum) w),    wd_ratio only where q is
                                                                       projected.

    The test looks at channels first, and then at the layer. The decay is the release's.

    Start with lr = 0.1, momentum 0.9 (the `adamp` package's).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1).
        dampening: share of the gradient that does not enter the momentum, in [0, 1].
        weight_decay: factor of the decay, in [0, inf).
        nesterov: take g + momentum p for p in q.
        eps: accepted for compatibility with the `adamp` package; the projection here is exact.
        delta: threshold of the test for scale invariance, in (0, inf).
        wd_ratio: factor of the decay of scale-invariant weights, in [0, inf).
        views: the views that the test tries, in order; the first that passes wins.
        per: "tensor" decides for a weight as a whole, "unit" for each of its units.
        project_buffer: store the projected momentum, as the release does without Nesterov
            momentum (its projection works in place on its buffer). Algorithm 1, and the release
            with Nesterov, store the unprojected one.

    Raises:
        ValueError: `project_buffer` goes with `nesterov`; a hyper-parameter is outside its
            interval.

    Example:
        >>> weight, grad = torch.eye(2), torch.eye(2).flip(0)  # <w, g> = 0 in each row
        >>> sgdp(lr=0.1, momentum=0.9).step(weight, grad, {"momentum": weight})[0]
        tensor([[ 1.0000, -0.1000],
                [-0.1000,  1.0000]])
        >>> sgd(lr=0.1, momentum=0.9).step(weight, grad, {"momentum_buffer": weight})[0]
        tensor([[ 0.9100, -0.1000],
                [-0.1000,  0.9100]])

    Source: Heo et al. 2021 (AdamP), Algorithm 1; the `adamp` package.

    `spherenorm code sgdp` prints it as plain torch.
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
def lars(
    lr: Scalar = 1.0,
    momentum: Scalar = 0.9,
    weight_decay: Scalar = 1e-4,
    trust: Scalar = 1e-3,
    view: ViewLike = "layer",
) -> Chain:
    """LARS: SGD with momentum whose gradient is scaled to a share of the weight's norm:

        d = g + weight_decay w,    p <- momentum p + lr trust |w| d / |d|,    w <- w - p.

    Start with lr = 3, momentum 0.9 (measured).

    Args:
        lr: learning rate, in [0, inf); inside the momentum, as printed.
        momentum: decay rate of the momentum, in [0, 1).
        weight_decay: factor of w in d, in [0, inf).
        trust: the share of the norm, in [0, inf).
        view: splits a weight into the units whose norms are compared.

    Example:
        >>> rule, weight = lars(lr=1.0, trust=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.ones(2, 2), rule.init(weight))
        >>> (moved - weight).norm() / weight.norm()
        tensor(0.1000)

    Source: You et al. 2017, Algorithm 1, with the norm of the sum of gradient and decay for the
    sum of their norms, as implementations have it.

    `spherenorm code lars` prints it as plain torch.
    """
    return chain(
        r.CoupledDecay(weight_decay),
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr * trust),
        r.HeavyBall(momentum),
    )


def torch_momentum(momentum: Scalar, dampening: Scalar = 0.0, nesterov: bool = False) -> list[Rule]:
    """Return the momentum of torch.optim, which at momentum 0 has no buffer and no dampening."""
    if is_zero(momentum):
        return []
    if isinstance(momentum, Tensor) and not is_zero(dampening):
        # torch.where makes a float32 of two Python numbers; the sum has the dtype of the momentum.
        dampening = torch.where(momentum == 0, 0, dampening + 0 * momentum)
    return [
        r.HeavyBall(momentum, dampening, nesterov, undamped_start=True, buffer="momentum_buffer")
    ]
