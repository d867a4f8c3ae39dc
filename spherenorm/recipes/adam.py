"""Adam, its variants, and other optimizers that treat each entry separately."""

from __future__ import annotations

from torch import Tensor

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.recipes.sgd import CHANNEL_THEN_LAYER, Views, torch_momentum
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.rules.invariance import Per
from spherenorm.views import ViewLike


@recipe
def adam(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adam with L2 regularization, as torch.optim.Adam:

        g <- g + weight_decay w,
        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr u.

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of the L2 term weight_decay w in the gradient, in [0, inf).

    Example:
        >>> rule, weight = adam(lr=0.1), torch.ones(2)
        >>> moved, state = rule.step(weight, torch.tensor([3.0, -0.01]), rule.init(weight))
        >>> moved
        tensor([0.9000, 1.1000])
        >>> list(state)
        ['step', 'exp_avg', 'exp_avg_sq']

    Source: Kingma and Ba 2015, Algorithm 1.

    `spherenorm code adam` prints it as plain torch.
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
    """Adam with decoupled weight decay, as torch.optim.AdamW:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = adamw(lr=0.1, weight_decay=0.5), torch.ones(2)
        >>> rule.step(weight, torch.zeros(2), rule.init(weight))[0]
        tensor([0.9500, 0.9500])

    Source: Loshchilov and Hutter 2019, Algorithm 2.

    `spherenorm code adamw` prints it as plain torch.
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
    """AdamP: Adam whose step loses its radial part where the weight is scale-invariant:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        q = u - (<w, u> / <w, w>) w if |cos(w, g)| < delta / sqrt(dim(w)), else u,
        w <- w - lr (q + wd_ratio weight_decay w),    wd_ratio only where q is projected.

    The test looks at channels first, and then at the layer. Bias correction and decoupled decay are
    those of the release.

    Start with lr = 0.001, betas (0.9, 0.999) (the `adamp` package's).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        delta: threshold of the test for scale invariance, in (0, inf).
        wd_ratio: factor of the decay of scale-invariant weights, in [0, inf).
        nesterov: take beta1 m + (1 - beta1) g for m, as the release does.
        views: the views that the test tries, in order; the first that passes wins.
        per: "tensor" decides for a weight as a whole, "unit" for each of its units.

    Example:
        >>> rule, weight = adamp(lr=0.1), torch.eye(2)
        >>> state = {**rule.init(weight), "exp_avg": torch.eye(2), "exp_avg_sq": torch.ones(2, 2)}
        >>> moved, _ = rule.step(weight, torch.eye(2).flip(0), state)  # <w, g> = 0 in each row
        >>> moved.diag()  # the momentum along w is projected away
        tensor([1., 1.])

    Source: Heo et al. 2021 (AdamP), Algorithm 2; the `adamp` package.

    `spherenorm code adamp` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps, nesterov=nesterov),
        r.ScaleInvarianceTest(delta, views, per),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


@recipe
def adamc(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    max_lr: Scalar | None = None,
) -> Chain:
    """AdamW for normalized layers, with a decay that is corrected for the learning-rate schedule:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr u - weight_decay (lr^2 / max_lr) w.

    So |g| / |w| keeps its equilibrium while lr falls; AdamW's grows. Layers without a normalization
    behind them, such as the head, belong in a param_group of `adamw`.

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of the decay, in [0, inf).
        max_lr: the largest learning rate of the schedule, in (0, inf). None stands for lr, with
            which this is AdamW, so that a schedule needs the number. (OneCycleLR sets it.)

    Raises:
        ValueError: `max_lr` is smaller than `lr`, or 0.

    Example:
        >>> weight, no_grad = torch.ones(1), torch.zeros(1)
        >>> rule = adamc(lr=0.1, weight_decay=0.5, max_lr=0.2)
        >>> 1 - rule.step(weight, no_grad, rule.init(weight))[0]  # 0.5 0.1^2 / 0.2
        tensor([0.0250])

    Source: Defazio 2025 (AdamC), Algorithm 1.

    `spherenorm code adamc` prints it as plain torch.
    """
    relative_lr: Scalar = 1.0 if max_lr is None else lr / _check_max_lr(max_lr, lr)
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay * relative_lr),
        r.StepSize(lr),
    )


@recipe
def lamb(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
    view: ViewLike = "layer",
) -> Chain:
    """LAMB: AdamW whose step, decay included, has lr times the norm of the weight:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        s = u + weight_decay w,    w <- w - lr |w| s / |s|.

    Start with lr = 0.01, betas (0.9, 0.999) (measured).

    Args:
        lr: |w' - w| / |w|, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of w in s, in [0, inf).
        view: splits a weight into the units whose norms are compared.

    Example:
        >>> rule, weight = lamb(lr=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.ones(2, 2), rule.init(weight))
        >>> (moved - weight).norm() / weight.norm()
        tensor(0.1000)

    Source: You et al. 2020, Algorithm 2.

    `spherenorm code lamb` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr),
    )


@recipe
def lion(
    lr: Scalar = 1e-4, betas: tuple[Scalar, Scalar] = (0.9, 0.99), weight_decay: Scalar = 0.0
) -> Chain:
    """Lion: the sign of an average of gradients, with decoupled decay:

        u = sign(beta1 m + (1 - beta1) g),    m <- beta2 m + (1 - beta2) g,
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.99) (measured; large models take a tenth).

    Args:
        lr: the step of each entry, in [0, inf).
        betas: beta1 and beta2, each in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = lion(lr=0.1), torch.zeros(3)
        >>> rule.step(weight, torch.tensor([3.0, -0.01, 0.0]), rule.init(weight))[0]
        tensor([-0.1000,  0.1000,  0.0000])

    Source: Chen et al. 2023, Algorithm 2.

    `spherenorm code lion` prints it as plain torch.
    """
    return chain(
        r.InterpolatedAverage(*betas),
        r.Sign(),
        r.DecoupledDecay(weight_decay),
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
    """RMSprop with momentum on the preconditioned gradient, as torch.optim.RMSprop:

        g <- g + weight_decay w,    v <- alpha v + (1 - alpha) g^2,
        p <- momentum p + g / (sqrt(v) + eps),    w <- w - lr p.

    Start with lr = 0.001, momentum 0.9 (measured).

    Args:
        lr: learning rate, in [0, inf).
        alpha: decay rate of v, in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of the L2 term weight_decay w in the gradient, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1); 0 needs no state.
        centered: subtract the square of the average gradient from v.

    Example:
        >>> rule, weight = rmsprop(lr=0.1, alpha=0.75), torch.zeros(2)
        >>> grad = torch.tensor([3.0, -0.01])
        >>> rule.step(weight, grad, rule.init(weight))[0]  # lr g / sqrt(g^2 / 4)
        tensor([-0.2000,  0.2000])

    Source: Tieleman and Hinton 2012, lecture 6.5.

    `spherenorm code rmsprop` prints it as plain torch.
    """
    return chain(
        r.CoupledDecay(weight_decay),
        r.RootMeanSquare(alpha, eps, centered),
        *torch_momentum(momentum),
        r.StepSize(lr),
    )


def _check_max_lr(max_lr: Scalar, lr: Scalar) -> Scalar:
    """Return `max_lr`, after a check that it is at least `lr` if both are Python numbers.

    Raises:
        ValueError: `max_lr` is smaller than `lr`, or 0.
    """
    if isinstance(lr, Tensor) or isinstance(max_lr, Tensor) or 0 < max_lr >= lr:
        return max_lr
    raise ValueError(
        "adamc: max_lr must be the largest learning rate of a schedule, "
        f"got max_lr={max_lr!r} and lr={lr!r}"
    )
