"""Optimizers whose weights have a fixed norm, or lie on a manifold of matrices."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.recipes.matrix import gain_adam, orthogonal_momentum
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.rules.orthogonalize import Coefficients
from spherenorm.views import ViewLike


@recipe
def fromage(lr: Scalar = 0.01, view: ViewLike = "layer") -> Chain:
    """Fromage: steps relative to the weight, and a factor that makes up for their length.

        w <- (w - lr |w| g / |g|) / sqrt(1 + lr^2).

    |w| is constant where <w, g> = 0. A weight of 0 steps by lr g.

    Start with lr = 0.02 (measured).

    Args:
        lr: the length of a step as a multiple of |w|, in [0, inf).
        view: splits a weight into the units whose norms are compared.

    Example:
        >>> rule, weight = fromage(lr=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.eye(2).flip(0), rule.init(weight))
        >>> moved.norm() / weight.norm()
        tensor(1.)

    Source: Bernstein et al. 2020, arXiv:2002.03432, Algorithm 1.

    `spherenorm code fromage` prints it as plain torch.
    """
    return chain(
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr),
        r.Retraction(r.StepSize((1 + lr**2) ** -0.5)),
    )


@recipe
def nero(lr: Scalar = 0.01, beta: Scalar = 0.999, view: ViewLike = "channel") -> Chain:
    """Nero: neurons of mean 0 and norm 1, and steps divided by an average length per neuron.

        v <- beta v + (1 - beta) |g|^2,    w <- w - lr |w| g / sqrt(v / (1 - beta^t)),
        w <- w - mean(w),    w <- w / |w|    in each neuron.

    The first step moves a weight there. For matrices.

    Start with lr = 0.03 (measured).

    Args:
        lr: learning rate, in [0, inf).
        beta: decay rate of v, in [0, 1).
        view: splits a weight into its neurons.

    Example:
        >>> rule, weight = nero(lr=0.1), torch.tensor([[3.0, 1.0]])
        >>> rule.step(weight, torch.zeros(1, 2), rule.init(weight))[0]
        tensor([[ 0.7071, -0.7071]])

    Source: Liu et al. 2021, arXiv:2102.07227, Algorithm 1; jxbz/nero.

    `spherenorm code nero` prints it as plain torch.
    """
    return chain(
        r.NormalizedUpdate(view, "weight", beta),
        r.StepSize(lr),
        r.Retraction(r.Centralization(view)),
        r.FixedNorm(view, 1.0),
    )


@recipe
def layca(lr: Scalar = 3e-3, momentum: Scalar = 0.0, view: ViewLike = "layer") -> Chain:
    """Layca: SGD whose steps turn each layer by the same angle, arctan(lr).

        u <- momentum u + g,    s = u - w <u, w> / <w, w>,
        w <- |w_0| N(w - lr |w| N(s)),    N(x) = x / |x|.

    Other optimizers can compute u as well: this is a hyperball whose steps are tangent.

    Start with lr = 0.03, momentum 0 (measured).

    Args:
        lr: the tangent of the angle of a step, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1).
        view: splits a weight into the units that turn.

    Example:
        >>> rule, weight = layca(lr=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.ones(2, 2), rule.init(weight))
        >>> sn.metrics.angular_update(weight, moved, "layer")
        tensor([0.0997])

    Source: Carbonnelle and De Vleeschouwer 2019, arXiv:1806.01603, Algorithm 1.

    `spherenorm code layca` prints it as plain torch.
    """
    return chain(
        r.HeavyBall(momentum),
        r.RadialProjection(view),
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr),
        r.FixedNorm(view),
    )


@recipe
def hyperspherical(lr: Scalar = 0.1, view: ViewLike = "channel") -> Chain:
    """Hyperspherical descent: steepest descent on the unit sphere with steps of one length.

        a = N(g - w <w, g>),    w <- N(w - lr a),    N(x) = x / |x|.

    The first step moves a weight to the sphere that starts elsewhere.

    Start with lr = 0.03 (measured).

    Args:
        lr: the tangent of the angle of a step, in [0, inf).
        view: splits a weight into the units of norm 1.

    Example:
        >>> rule, weight = hyperspherical(lr=1.0), torch.eye(2)
        >>> rule.step(weight, torch.ones(2, 2), rule.init(weight))[0]  # by 45 degrees
        tensor([[ 0.7071, -0.7071],
                [-0.7071,  0.7071]])

    Source: Thinking Machines Lab 2025 (Modular Manifolds); thinking-machines-lab/manifolds.

    `spherenorm code hyperspherical` prints it as plain torch.
    """
    return chain(
        r.RadialProjection(view),
        r.NormalizedUpdate(view),
        r.StepSize(lr),
        r.FixedNorm(view, 1.0),
    )


@recipe
def oblique_sgd(lr: Scalar = 1e-3, momentum: Scalar = 0.9, view: ViewLike = "channel") -> Chain:
    """SGD on the oblique manifold: matrices whose rows, or columns, have norm 1.

        m <- momentum m + g,    w <- N(w - lr (m - w <w, m>)),    N(x) = x / |x|.

    The momentum is not transported, and need not be tangent; `sgdg` transports it.

    Start with lr = 0.1, momentum 0.9 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the momentum, in [0, 1).
        view: "channel" for rows, "dim=1" for columns.

    Example:
        >>> rule, weight = oblique_sgd(lr=1.0), torch.eye(2)
        >>> rule.step(weight, torch.ones(2, 2), rule.init(weight))[0]
        tensor([[ 0.7071, -0.7071],
                [-0.7071,  0.7071]])

    Source: NVIDIA-NeMo/Emerging-Optimizers, ObliqueSGD, whose projection takes units of norm 1 for
    granted.

    `spherenorm code oblique_sgd` prints it as plain torch.
    """
    return chain(
        r.HeavyBall(momentum),
        r.RadialProjection(view),
        r.StepSize(lr),
        r.FixedNorm(view, 1.0),
    )


@recipe
def muonsphere(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.9,
    radius: Scalar = 1.0,
    coefficients: Coefficients = "polar_express",
    precision: str = "weight",
) -> Chain:
    """MuonSphere, Muon on the spectral sphere: each step starts where |w|_2 is R.

        w <- R w / |w|_2 - lr R U V^T,    R = radius sqrt(m / n),    U S V^T the momentum.

    The Spectral Sphere Optimizer also seeks the step that keeps |w|_2 to first order; here the next
    step takes w back.

    Start with lr = 0.05, momentum 0.9 (measured).

    Args:
        lr: the length of a step on the sphere of radius 1, in [0, inf).
        momentum: decay rate of an average, which looks ahead by one step, in [0, 1).
        radius: the factor of sqrt(m / n) in R, in (0, inf).
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = muonsphere(lr=0.1)
        >>> weight, grad = 2 * torch.eye(2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 1.0000, -0.1000],
                [ 0.1000,  1.0000]])

    Source: arXiv:2601.08393 (SSO, of which it is the case lambda = 0).

    `spherenorm code muonsphere` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov=True),
        r.Orthogonalize(coefficients, scale="spectral", precision=precision),
        r.StepSize(radius),
        r.StepSize(lr),
        r.FixedSpectralNorm(radius),
    )


@recipe
def spel(lr: Scalar = 0.1, momentum: Scalar = 0.0, precision: str = "weight") -> Chain:
    """Spectral descent on the Stiefel manifold, W^T W = I: Muon whose weights are orthogonal.

        W <- msign(W - lr msign(D)),    D the tangent part of the gradient, or of its average.

    Weights should start there (`torch.nn.init.orthogonal_`); the first step brings others there.

    Start with lr = 0.05, momentum 0 (measured).

    Args:
        lr: learning rate, in [0, inf); no vector turns by more than about lr.
        momentum: decay rate of the average, in [0, 1).
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = spel(lr=0.1)
        >>> weight, grad = torch.eye(2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 1.0000, -0.1000],
                [ 0.1000,  1.0000]])

    Source: arXiv:2601.21487 (SPEL); Bernstein 2025 (manifold Muon) solves for the steepest D.

    `spherenorm code spel` prints it as plain torch.
    """
    polar = r.Orthogonalize("plain", precision=precision)
    return chain(
        r.ExponentialAverage(momentum),
        r.StiefelProjection(),
        polar,
        r.StepSize(lr),
        r.Retraction(polar),
    )


@recipe
def angularmuown(
    lr: Scalar = 0.01,
    momentum: Scalar = 0.95,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    gain_ratio: Scalar = 1.0,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """AngularMuown: Muown whose directions are rows of norm 1, so that a row turns by about lr.

        D = RadialProjection(dL/dV),    M <- momentum M + D,
        V <- N(V - lr sqrt(max(1, m / n)) NS(D + momentum M)),    N(x) = x / |x| in each row,
        g by Adam with the rate gain_ratio lr,    w = g v in each row.

    NS is the Newton-Schulz iteration. The gains g are states of the optimizer; the model holds w.
    In the paper lr of the directions falls slowly, which is up to a scheduler. Call
    `optimizer.reset_averages()` after writing into the parameters, whose norms are the gains.

    Start with lr = 0.04, momentum 0.95 (the paper's).

    Args:
        lr: learning rate of the directions, in [0, inf); 0.04 is advised.
        momentum: factor of the past M, in [0, 1).
        betas: decay rates of the gains' Adam, each in [0, 1).
        gain_ratio: learning rate of the gains as a multiple of lr, in [0, inf).
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = angularmuown(lr=0.1)
        >>> weight, grad = torch.eye(2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 0.9900, -0.1100],
                [ 0.0700,  1.0000]])

    Source: arXiv:2606.23637.

    `spherenorm code angularmuown` prints it as plain torch.
    """
    direction = chain(
        r.RadialProjection("channel"),
        r.HeavyBall(momentum, nesterov=True),
        r.Orthogonalize(coefficients, scale="original", precision=precision),
        r.StepSize(lr),
        r.FixedNorm("channel", 1.0),
    )
    return chain(r.GainAndDirection(direction, gain_adam(lr * gain_ratio, betas)))
