"""Optimizers that control the norm of a weight: on a sphere, or by projection of the step."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.manifolds import Sphere
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, Rule, chain
from spherenorm.views import ViewLike


@recipe
def sgdg(
    lr: Scalar = 0.2,
    momentum: Scalar = 0.9,
    nu: Scalar | None = 0.1,
    alpha: Scalar = 0.1,
    view: ViewLike = "channel",
) -> Chain:
    """SGD with momentum on the Grassmann manifold G(1, n), one point y per unit:

        h = clip(tangent part of g + 2 alpha Y (Y^T Y - I), nu),
        p <- momentum p + lr h,    y <- exp_y(-p), which transports p.

    The learning rate sits inside the momentum. Weights should start on the unit sphere
    (`Sphere(view).normalize`); biases, gains and the last layer belong in a Euclidean param_group.

    Start with lr = 0.2, momentum 0.9 (the default).

    Args:
        lr: radians per unit of gradient, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1).
        nu: the largest norm of a unit's gradient, in (0, inf); None does not clip.
        alpha: strength of the orthogonality regularization, in [0, inf); 0 leaves it out.
        view: splits a weight into its units.

    Example:
        >>> rule, weight = sgdg(lr=1.0, nu=None, alpha=0.0), torch.tensor([[1.0, 0.0]])
        >>> grad = torch.tensor([[0.0, -torch.pi / 2]])  # a turn by a right angle
        >>> rule.step(weight, grad, rule.init(weight))[0].round()
        tensor([[-0., 1.]])

    Source: Cho and Lee 2017, SGD-G.

    `spherenorm code sgdg` prints it as plain torch.
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
    """Adam on the Grassmann manifold G(1, n), one point y and one second moment v per unit:

        h = clip(tangent part of g + 2 alpha Y (Y^T Y - I), nu),
        m <- beta1 m + (1 - beta1) h,    v <- beta2 v + (1 - beta2) |h|^2,
        d = lr sqrt(1 - beta2^t) / (1 - beta1^t) m / sqrt(v + eps),    y <- exp_y(-d), transports m.

    Weights should start on the unit sphere (`Sphere(view).normalize`); biases, gains and the last
    layer belong in a Euclidean param_group.

    Start with lr = 0.05, betas (0.9, 0.99) (the default).

    Args:
        lr: the angle of a first step in radians, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to v, in [0, inf).
        nu: the largest norm of a unit's gradient, in (0, inf); None does not clip.
        alpha: strength of the orthogonality regularization, in [0, inf); 0 leaves it out.
        view: splits a weight into its units.

    Example:
        >>> rule, weight = adamg(lr=0.05, alpha=0.0), torch.tensor([[1.0, 0.0]])
        >>> moved, _ = rule.step(weight, torch.tensor([[0.0, 0.1]]), rule.init(weight))
        >>> sn.metrics.angular_update(weight, moved), moved.norm()
        (tensor([0.0500]), tensor(1.))

    Source: Cho and Lee 2017, Adam-G.

    `spherenorm code adamg` prints it as plain torch.
    """
    return chain(
        *_riemannian_gradient(nu, alpha, view),
        r.UnitMoments(*betas, eps=eps, view=view),
        r.StepSize(lr),
        manifold=Sphere(view),
    )


@recipe
def adamh(
    lr: Scalar = 0.02,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    view: ViewLike = "layer",
) -> Chain:
    """AdamH, Adam on the hyperball: |w| keeps its initial value, and a step turns w by about lr:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- |w_0| N(w - lr |w| N(u)),    N(x) = x / |x|.

    With <u, w> = 0 the turn is arctan(lr). A weight that starts at 0 is refused.

    Start with lr = 0.02, betas (0.9, 0.95) (the default).

    Args:
        lr: the length of a step as a multiple of |w|, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        view: splits a weight into the units that keep their norm.

    Example:
        >>> rule, weight = adamh(lr=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.eye(2).flip(0), rule.init(weight))
        >>> moved.norm() / weight.norm(), sn.metrics.angular_update(weight, moved)
        (tensor(1.), tensor([0.0997, 0.0997]))

    Source: Wen et al. 2026 (Hyperball), arXiv:2606.16899.

    `spherenorm code adamh` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr),
        r.FixedNorm(view),
    )


@recipe
def ngpt(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    view: ViewLike = "channel",
) -> Chain:
    """Adam whose units return to the unit sphere after every step, as nGPT normalizes them:

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- N(w - lr u),    N(x) = x / |x| in each unit.

    The first step moves a weight to the sphere that starts elsewhere. nGPT's views are "channel"
    for weights that read the residual stream (embeddings, queries, keys, values, the first matrix
    of an MLP) and "dim=1" for weights that write into it. Its scales and its architecture are up to
    the model.

    Start with lr = 0.003, betas (0.9, 0.95) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        view: splits a weight into the units of norm 1.

    Example:
        >>> rule, weight = ngpt(lr=0.1), 3 * torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.ones(2, 2), rule.init(weight))
        >>> moved.norm(dim=1)
        tensor([1.0000, 1.0000])

    Source: Loshchilov et al. 2025 (nGPT), Section 2.6.

    `spherenorm code ngpt` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.StepSize(lr),
        r.FixedNorm(view, 1.0),
    )


@recipe
def nora(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.0,
    view: ViewLike = "channel",
) -> Chain:
    """Nora: project the momentum of every row as AdamP does, and give it a step of one length:

        m <- momentum m + (1 - momentum) g,
        d = N(m - (<m, w> / <w, w>) w),    w <- w - lr (d + weight_decay w),    N(x) = x / |x|.

    Start with lr = 0.05, momentum 0.95 (measured).

    Args:
        lr: the length of a row's step, in [0, inf).
        momentum: decay rate of m, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        view: splits a weight into its rows.

    Example:
        >>> rule, weight = nora(lr=0.1), torch.eye(2)
        >>> grad = torch.tensor([[5.0, 1.0], [0.01, 7.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0]  # no step along w, one of lr across
        tensor([[ 1.0000, -0.1000],
                [-0.1000,  1.0000]])

    Source: arXiv:2605.03769.

    `spherenorm code nora` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(momentum),
        r.RadialProjection(view),
        r.NormalizedUpdate(view),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def orthograd(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    view: ViewLike = "layer",
) -> Chain:
    """OrthoGrad: AdamW of the gradient without its radial part, at the norm of the whole gradient:

        h = g - (<g, w> / <w, w>) w,    g <- |g| h / |h|,
        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.003, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        view: splits a weight into the units that are projected.

    Example:
        >>> rule, weight = orthograd(lr=0.1), torch.tensor([[1.0, 0.0]])
        >>> grad = torch.tensor([[5.0, 1.0]])  # the 5, along w, does nothing
        >>> rule.step(weight, grad, rule.init(weight))[0]
        tensor([[ 1.0000, -0.1000]])

    Source: Prieto et al. 2025 (grokking at the edge of numerical stability), arXiv:2501.04697.

    `spherenorm code orthograd` prints it as plain torch.
    """
    return chain(
        r.KeepNorm(r.RadialProjection(view), view),
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def _riemannian_gradient(nu: Scalar | None, alpha: Scalar, view: ViewLike) -> list[Rule]:
    """Return the rules that regularize the gradient, project it onto the tangent space, clip it."""
    clip = [] if nu is None else [r.UnitClip(nu, view)]
    return [r.OrthogonalityRegularization(alpha, view), r.RadialProjection(view), *clip]
