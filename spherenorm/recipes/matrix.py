"""Optimizers that orthogonalize the step of a matrix."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, Rule, chain
from spherenorm.rules.orthogonalize import Coefficients
from spherenorm.views import ViewLike


@recipe
def muon(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.1,
    nesterov: bool = True,
    coefficients: Coefficients = "original",
    scale: str = "original",
    precision: str = "weight",
    view: ViewLike = "layer",
) -> Chain:
    """Muon: step along the orthogonal factor of the momentum, as torch.optim.Muon:

        M <- momentum M + (1 - momentum) G,    O = NS((1 - momentum) G + momentum M),
        W <- W - lr (scale O + weight_decay W).

    NS is the Newton-Schulz iteration. It takes matrices, convolutions and stacks of matrices;
    `spherenorm.param_groups` gives biases and gains another recipe. Torch iterates in bfloat16.

    Start with lr = 0.02, momentum 0.95 (Jordan et al. 2024, for hidden matrices).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: orthogonalize (1 - momentum) G + momentum M; False takes M.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        scale: factor by the shape of the matrix: "original" is sqrt(max(1, m / n)),
            "match_rms_adamw" 0.2 sqrt(max(m, n)), "spectral" sqrt(m / n); or "aspect" or
            "none".
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".
        view: splits a weight into matrices: "layer", or "channel" for a stack of them.

    Example:
        >>> rule = muon(lr=0.1, coefficients="polar_express")
        >>> weight, grad = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Jordan et al. 2024; Liu et al. 2025 (Moonlight).

    `spherenorm code muon` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov),
        r.Orthogonalize(coefficients, scale=scale, precision=precision, view=view),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def muonh(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.95,
    nesterov: bool = True,
    coefficients: Coefficients = "original",
    precision: str = "weight",
    view: ViewLike = "layer",
) -> Chain:
    """MuonH, Muon on the hyperball: |W| keeps its initial value, and a step turns W by about lr:

        M <- momentum M + (1 - momentum) G,    O = NS((1 - momentum) G + momentum M),
        W <- |W_0| N(W - lr |W| N(O)),    N(X) = X / |X|,    NS a Newton-Schulz iteration.

    Start with lr = 0.02, momentum 0.95 (the default).

    Args:
        lr: the length of a step as a multiple of |W|, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        nesterov: orthogonalize (1 - momentum) G + momentum M; False takes M.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".
        view: splits a weight into the units that keep their norm; each is also one matrix.

    Example:
        >>> rule, weight = muonh(lr=0.1), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.eye(2).flip(0), rule.init(weight))
        >>> moved.norm() / weight.norm()
        tensor(1.)

    Source: Wen et al. 2026 (Hyperball), arXiv:2606.16899.

    `spherenorm code muonh` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov),
        r.Orthogonalize(coefficients, precision=precision, view=view),
        r.NormalizedUpdate(view, "weight"),
        r.StepSize(lr),
        r.FixedNorm(view),
    )


@recipe
def normuon(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.95,
    beta2: Scalar = 0.95,
    weight_decay: Scalar = 0.1,
    coefficients: Coefficients = "original",
    scale: str = "original",
    precision: str = "weight",
) -> Chain:
    """NorMuon: Muon whose rows are divided by a running root mean square, at the same norm:

        M <- momentum M + (1 - momentum) G,    O = NS((1 - momentum) G + momentum M),
        v <- beta2 v + (1 - beta2) |O_i|^2 in each row i,    U_i = O_i / sqrt(v / (1 - beta2^t)),
        W <- W - lr (scale |O| U / |U| + weight_decay W),    NS a Newton-Schulz iteration.

    Start with lr = 0.02, momentum 0.95 (usual for hidden matrices).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        beta2: decay rate of v, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        scale: factor by the shape of the matrix: "original" is sqrt(max(1, m / n)),
            "match_rms_adamw" 0.2 sqrt(max(m, n)), "spectral" sqrt(m / n); or "aspect" or
            "none".
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule, weight = normuon(lr=0.1, weight_decay=0.0), torch.zeros(2, 3)
        >>> grad = torch.tensor([[1.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].norm(dim=1)
        tensor([0.0868, 0.0868])

    Source: Li et al. 2025, arXiv:2510.05491, as released; Algorithm 1 has another length.

    `spherenorm code normuon` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov=True),
        r.Orthogonalize(coefficients, scale=scale, precision=precision),
        r.KeepNorm(r.NormalizedUpdate("channel", beta=beta2)),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def scion(
    lr: Scalar = 2**-12,
    momentum: Scalar = 0.9,
    radius: Scalar = 50.0,
    weight_decay: Scalar = 1.0,
    coefficients: Coefficients = "original",
    precision: str = "weight",
    view: ViewLike = "layer",
) -> Chain:
    """Scion with the spectral norm: a step of Frank and Wolfe towards a point of a ball:

        w <- (1 - lr weight_decay) w - lr radius sqrt(m / n) U V^T,    U S V^T the momentum.

    At a weight decay of 1, a convex combination of two points of the ball stays in it.

    Start with lr = 0.0005, momentum 0.9 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average, in [0, 1).
        radius: radius of the ball in the norm sqrt(n / m) |w|_2, in [0, inf).
        weight_decay: coefficient of the decay, in [0, inf); 1 is the constrained form, and 0
            steepest descent.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".
        view: splits a weight into matrices: "layer", or "channel" for a stack of them.

    Example:
        >>> rule, weight = scion(lr=1.0, coefficients="polar_express"), torch.eye(2)
        >>> moved, _ = rule.step(weight, -torch.eye(2), rule.init(weight))
        >>> moved.round()  # at the edge of the ball of radius 50
        tensor([[50.,  0.],
                [ 0., 50.]])

    Source: Pethick et al. 2025, arXiv:2502.07529, Algorithms 1 and 2.

    `spherenorm code scion` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(momentum),
        r.Orthogonalize(coefficients, scale="spectral", precision=precision, view=view),
        r.StepSize(radius),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def muown(
    lr: Scalar = 0.01,
    momentum: Scalar = 0.95,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    weight_decay: Scalar = 0.0,
    gain_ratio: Scalar = 1.0,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """Muown: Muon steps the directions of rows and Adam their norms, w = g v / |v| in each row:

        D = RadialProjection(dL/dV),    M <- momentum M + (1 - momentum) D,
        V <- V - lr sqrt(max(1, m / n)) NS(M),    g by Adam with the rate gain_ratio lr.

    NS is the Newton-Schulz iteration. The gains g and the norms |v| are states of the optimizer;
    the model holds w. A row turns by about lr / |v|. Call `optimizer.reset_averages()` after
    writing into the parameters, whose norms are the gains.

    Start with lr = 0.01, momentum 0.95 (the default).

    Args:
        lr: learning rate of the directions, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        betas: decay rates of the gains' Adam, each in [0, 1).
        weight_decay: decoupled decay of the gains, in [0, inf).
        gain_ratio: learning rate of the gains as a multiple of lr, in [0, inf).
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = muown(lr=0.1)
        >>> weight, grad = torch.eye(2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 0.9900, -0.1100],
                [ 0.0700,  1.0000]])

    Source: arXiv:2605.10797.

    `spherenorm code muown` prints it as plain torch.
    """
    direction = chain(
        r.RadialProjection("channel"),
        r.ExponentialAverage(momentum),
        r.Orthogonalize(coefficients, scale="original", precision=precision),
        r.StepSize(lr),
    )
    gain = gain_adam(lr * gain_ratio, betas, weight_decay=weight_decay)
    return chain(r.GainAndDirection(direction, gain, free_norm=True))


@recipe
def mdmuon(
    lr: Scalar = 0.01,
    momentum: Scalar = 0.95,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    gain_ratio: Scalar = 0.1,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """Magnitude and direction decoupled, with Muon: W = diag(a) V diag(b), where |V| is constant:

        M <- momentum M + (1 - momentum) dL/dV,    O = NS((1 - momentum) dL/dV + momentum M),
        V <- |V_0| N(V - lr sqrt(max(m, n) / min(m, n)) O),    N(X) = X / |X|,
        a and b by Adam with the rate gain_ratio lr.

    NS is the Newton-Schulz iteration. The gains a and b start at 1 and stay positive.

    Start with lr = 0.05, momentum 0.95 (measured).

    Args:
        lr: learning rate of V, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        betas: decay rates of the gains' Adam, each in [0, 1).
        gain_ratio: learning rate of the gains as a multiple of lr, in [0, inf).
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = mdmuon(lr=0.1)
        >>> weight, grad = torch.eye(2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=2)
        tensor([[ 1.0000, -0.1100],
                [ 0.0700,  1.0000]])

    Source: Hägele et al. 2026, arXiv:2606.25971.

    `spherenorm code mdmuon` prints it as plain torch.
    """
    direction = chain(
        orthogonal_momentum(momentum, nesterov=True),
        r.Orthogonalize(coefficients, scale="aspect", precision=precision),
        r.StepSize(lr),
        r.FixedNorm("layer"),
    )
    rows, columns = (gain_adam(lr * gain_ratio, betas, name) for name in ("gain", "column_gain"))
    inner = r.GainAndDirection(direction, columns, "dim=1", "one", buffer="column_gain")
    return chain(r.GainAndDirection(inner, rows, "channel", "one"))


def gain_adam(
    lr: Scalar, betas: tuple[Scalar, Scalar], name: str = "gain", weight_decay: Scalar = 0.0
) -> Rule:
    """Return AdamW for gains; `name` is a prefix for the keys of its states."""
    adam = r.AdaptiveMoments(*betas, eps=1e-8, name=name)
    return chain(adam, r.DecoupledDecay(weight_decay), r.StepSize(lr))


def orthogonal_momentum(momentum: Scalar, nesterov: bool) -> Rule:
    """Return Muon's momentum: an average, with `nesterov` after a second step of one gradient."""
    direction_decay = momentum**2 if nesterov else momentum
    return r.InterpolatedAverage(direction_decay, momentum, buffer="momentum_buffer")
