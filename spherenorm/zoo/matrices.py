"""Muon's relatives, for matrices; biases and gains need another recipe."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm import rules as r
from spherenorm.fields import Interval, check_number, hyper, view
from spherenorm.numerics import (
    Scalar,
    cast_like,
    safe_divide,
)
from spherenorm.recipes.matrix import muonh, orthogonal_momentum
from spherenorm.registry import recipe
from spherenorm.rule import STEP_KEY, Chain, Rule, State, Update, chain
from spherenorm.rules.orthogonalize import ADAMW_STEP_RMS, Coefficients
from spherenorm.views import View, ViewLike

POSITIVE = Interval.parse("(0, inf)")
ROWS = View(0)
REFERENCE_DEPTH = 8
"""The number of layers for which the `lr` of `hyperp` is best."""
REFERENCE_TOKENS = 9.5e9
"""The number of tokens of a run for which the `lr` of `hyperp` is best."""
REFERENCE_BATCH_TOKENS = 2**21
"""The number of tokens of a batch for which the `lr` of `hyperp` is best."""
TOKENS_EXPONENT = -0.32
"""The exponent with which the best rate falls with the tokens of a run."""


@recipe
def muoneq(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.1,
    nesterov: bool = False,
    coefficients: Coefficients = "original",
    precision: str = "weight",
    view: ViewLike = "channel",
) -> Chain:
    """MuonEq: Muon of a momentum whose rows have equal length, which orthogonalizes faster.

        M <- momentum M + (1 - momentum) G,    O = NS(diag(M M^T)^(-1/2) M),
        W <- W - lr (0.2 sqrt(max(m, n)) O + weight_decay W),    NS a Newton-Schulz iteration.

    Start with lr = 0.02, momentum 0.95 (usual for hidden matrices).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: take (1 - momentum) G + momentum M for M in O.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".
        view: "channel" equilibrates rows (R, the paper's default), "dim=1" columns (C).

    Example:
        >>> rule = muoneq(lr=0.1, coefficients="plain")
        >>> weight, grad = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=3)  # 0.02 sqrt(2)
        tensor([[ 0.0000, -0.0280],
                [ 0.0280,  0.0000]])

    Source: Chang et al. 2026, arXiv:2603.28254.

    `spherenorm code muoneq` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov),
        r.NormalizedUpdate(view),
        r.Orthogonalize(coefficients, scale="match_rms_adamw", precision=precision),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def muon2(
    lr: Scalar = 0.02,
    betas: tuple[Scalar, Scalar] = (0.95, 0.95),
    eps: Scalar = 1e-10,
    weight_decay: Scalar = 0.0,
    nesterov: bool = True,
    coefficients: Coefficients = "original",
    scale: str = "original",
    precision: str = "weight",
) -> Chain:
    """Muon^2: Muon of a momentum that is divided by Adam's second moment.

        M <- beta1 M + (1 - beta1) G,    V <- beta2 V + (1 - beta2) G^2,
        O = NS(M / (sqrt(V) + eps)),    W <- W - lr (scale O + weight_decay W),

    without bias correction; NS is the Newton-Schulz iteration.

    Start with lr = 0.02, betas (0.95, 0.95) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of M and V, each in [0, 1).
        eps: added to the root of V, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: take (1 - beta1) G + beta1 M for M, as in modded-nanogpt.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        scale: factor by the shape of the matrix: "original" is sqrt(max(1, m / n)),
            "match_rms_adamw" 0.2 sqrt(max(m, n)), "spectral" sqrt(m / n); or "aspect" or
            "none". The paper's scale is "spectral".
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = muon2(lr=0.1, coefficients="plain")
        >>> weight, grad = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=3)
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Liu et al. 2026, arXiv:2604.09967; modded-nanogpt, track 3.

    `spherenorm code muon2` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps, nesterov=nesterov, bias_correction=False),
        r.Orthogonalize(coefficients, scale=scale, precision=precision),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class RmsLength(Rule):
    """Give the direction of each unit a root mean square of r: r sqrt(size) d / |d|.

    Args:
        rms: r, in (0, inf); 0.2 is about that of AdamW's steps.
        view: splits the weight into its units.

    Example:
        >>> RmsLength(0.2).step(torch.zeros(2), torch.tensor([3.0, -3.0]), {})[0]
        tensor([-0.2000,  0.2000])

    Source: Liu et al. 2025 (Moonlight), arXiv:2502.16982, Section 2.2.
    """

    rms: Scalar = hyper("(0, inf)", ADAMW_STEP_RMS)
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        target_norm = cast_like(self.rms, direction) * self.view.size(direction) ** 0.5
        target_norms = target_norm * torch.ones_like(self.view.unit_sums(direction))
        scale = safe_divide(target_norms, self.view.norm(direction))
        return update.replace(direction=scale * direction), {}


@recipe
def adamuon(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.95,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    nesterov: bool = True,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """AdaMuon: Muon of signs, divided by a second moment, at the length of AdamW's steps.

        M <- momentum M + (1 - momentum) G,    O = NS(sign(M)),
        V <- momentum V + (1 - momentum) O^2,    U = O / (sqrt(V) + eps),
        W <- W - lr (0.2 sqrt(m n) U / |U| + weight_decay W),    NS a Newton-Schulz iteration.

    Start with lr = 0.02, momentum 0.95 (the default).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of M and V, in [0, 1).
        eps: added to the root of V, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: take (1 - momentum) G + momentum M for M in O.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule, weight = adamuon(lr=0.1), torch.zeros(2, 2)
        >>> grad = torch.tensor([[5.0, 3.0], [-2.0, 0.1]])
        >>> rule.step(weight, grad, rule.init(weight))[0]  # a root mean square of 0.2 lr
        tensor([[-0.0200, -0.0200],
                [ 0.0200, -0.0200]])

    Source: Si et al. 2025, arXiv:2507.11005; Chongjie-Si/AdaMuon.

    `spherenorm code adamuon` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov),
        r.Sign(),
        r.Orthogonalize(coefficients, precision=precision),
        r.RootMeanSquare(momentum, eps),
        RmsLength(ADAMW_STEP_RMS),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class SelectedMomentum(Rule):
    """Let only the largest rows of the momentum pass, and let these alone decay:

        M <- M + D,    direction = M in the k rows of the largest sums of |M_ij|, 0 elsewhere,
        M <- decay M in these rows.

    k = ceil(fraction m). A matrix with more rows than columns is selected by columns. A
    convolution is a matrix of shape (out, rest).

    Args:
        fraction: the share of rows that pass, in (0, 1].
        decay: the factor of a momentum that has passed, in [0, 1).

    Raises:
        ValueError: on `init`, if the weight has fewer than two dimensions.

    Example:
        >>> rule = SelectedMomentum(fraction=0.5, decay=0.5)
        >>> weight, grad = torch.zeros(2, 2), torch.tensor([[1.0, -1.0], [3.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))
        (tensor([[ 0.,  0.],
                [-3.,  0.]]), {'momentum': tensor([[ 1.0000, -1.0000],
                [ 1.5000,  0.0000]])})

    Source: Ahn et al. 2025 (Dion2), arXiv:2512.16928; microsoft/dion.
    """

    fraction: Scalar = hyper("(0, 1]", 0.25)
    decay: Scalar = hyper("[0, 1)", 0.95)

    state_names = ("momentum",)

    vector_policy = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        momentum = state["momentum"] + update.direction
        rows = ROWS.rows(momentum)
        along_rows = rows.shape[0] <= rows.shape[1]
        sums = rows.abs().sum(1 if along_rows else 0, keepdim=True)
        size = sums.numel()
        # The rank of a sum among all, 0 for the largest.
        rank = sums.flatten().argsort(descending=True).argsort().reshape(sums.shape)
        passes = rank < self.fraction * size  # The number of ranks below x is ceil(x).
        selected = torch.where(passes, rows, 0)
        decayed = torch.where(passes, cast_like(self.decay, rows) * rows, rows)
        direction = ROWS.from_rows(selected, update.weight)
        return update.replace(direction=direction), {"momentum": ROWS.from_rows(decayed, momentum)}


@recipe
def dion2(
    lr: Scalar = 0.01,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.01,
    fraction: Scalar = 0.25,
    coefficients: Coefficients = "polar_express",
    scale: str = "spectral",
    precision: str = "weight",
) -> Chain:
    """Dion2: Muon of the largest rows of the momentum, while the other rows wait and grow.

        M <- M + G,    S = the ceil(fraction m) rows of M with the largest sums of |M_ij|,
        W <- W - lr (scale NS(M_S) in the rows S + weight_decay W),    M_S <- momentum M_S,

    NS a Newton-Schulz iteration. A matrix with more rows than columns is selected by columns. The
    step is the release's for a matrix that lies in one process. It saves no time here, since
    NS runs on the whole matrix, whose other rows are 0.

    Start with lr = 0.02, momentum 0.95 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: factor of the rows of M that have stepped, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        fraction: the share of rows that step, in (0, 1].
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        scale: factor by the shape of the matrix: "spectral" is sqrt(m / n), "original"
            sqrt(max(1, m / n)), "match_rms_adamw" 0.2 sqrt(max(m, n)); or "aspect" or "none".
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule, weight = dion2(lr=0.1, weight_decay=0.0, fraction=0.5), torch.zeros(2, 2)
        >>> state, grad = rule.init(weight), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> for _ in range(2):  # the momentum of the second row is 4, that of the first 5.85
        ...     weight, state = rule.step(weight, grad, state)
        >>> weight.round(decimals=3)
        tensor([[ 0.0000, -0.2000],
                [ 0.0000,  0.0000]])

    Source: Ahn et al. 2025, arXiv:2512.16928; microsoft/dion, dion2.py, of whole matrices.

    `spherenorm code dion2` prints it as plain torch.
    """
    return chain(
        SelectedMomentum(fraction, momentum),
        r.Orthogonalize(coefficients, scale=scale, precision=precision),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class NuclearNorm(Rule):
    """Scale the direction of a rule by its product with the direction before: <d, rule(d)> rule(d).

    If the rule returns the orthogonal factor, the product is the nuclear norm of d.

    Args:
        rule: a rule that orthogonalizes.

    Example:
        >>> rule = NuclearNorm(sn.rules.Orthogonalize("plain"))
        >>> rule.step(torch.zeros(2, 2), torch.diag(torch.tensor([3.0, 1.0])), {})[0].round()
        tensor([[-4.,  0.],
                [ 0., -4.]])

    Source: Lau et al. 2025 (PolarGrad), arXiv:2505.21799.
    """

    rule: Rule

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        factor, new_state = self.update_child(0, update, state)
        nuclear_norm = (update.direction * factor.direction).sum()
        return update.replace(direction=nuclear_norm * factor.direction), new_state


@recipe
def polargrad(
    lr: Scalar = 1e-3,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.0,
    coefficients: Coefficients = "plain",
    precision: str = "weight",
) -> Chain:
    """PolarGrad: Muon whose step is scaled by the nuclear norm of the momentum.

        M <- momentum M + (1 - momentum) G = U H, its polar decomposition,
        W <- W - lr (tr(H) U + weight_decay W).

    Start with lr = 0.1, momentum 0.95 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule = polargrad(lr=0.1, momentum=0.0)
        >>> weight, grad = torch.zeros(2, 2), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=3)  # 3 + 2
        tensor([[ 0.0000, -0.5000],
                [ 0.5000,  0.0000]])

    Source: Lau et al. 2025, arXiv:2505.21799, momentum first.

    `spherenorm code polargrad` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(momentum),
        NuclearNorm(r.Orthogonalize(coefficients, precision=precision)),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def rmnp(
    lr: Scalar = 0.02, momentum: Scalar = 0.95, weight_decay: Scalar = 0.0, nesterov: bool = False
) -> Chain:
    """RMNP: Muon whose orthogonalization is a normalization of each row.

        M <- momentum M + (1 - momentum) G,    W <- W - lr (N(M) + weight_decay W),

    N(M) with M_i / |M_i| in each row.

    Start with lr = 0.02, momentum 0.95 (the default).

    Args:
        lr: the length of a row's step, in [0, inf).
        momentum: decay rate of M, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        nesterov: normalize (1 - momentum) G + momentum M. The release does, and multiplies by
            sqrt(max(1, m / n)).

    Example:
        >>> rule, weight = rmnp(lr=0.1), torch.zeros(2, 2)
        >>> grad = torch.tensor([[0.0, 3.0], [-0.6, 0.8]])
        >>> rule.step(weight, grad, rule.init(weight))[0]
        tensor([[ 0.0000, -0.1000],
                [ 0.0600, -0.0800]])

    Source: Deng et al. 2026, arXiv:2603.20527; Dominator-Index/RMNP.

    `spherenorm code rmnp` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov),
        r.NormalizedUpdate("channel"),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class Alternate(Rule):
    """Run one of several rules at each step, in turn.

    Args:
        rules: the rules, in order. They have no states, since a state would miss the other steps.

    Raises:
        ValueError: a rule has a state.

    Example:
        >>> rule = Alternate((sn.rules.StepSize(1.0), sn.rules.StepSize(0.0)))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([2.])

    Source: Gu and Xie 2026 (Mano).
    """

    rules: tuple[Rule, ...]

    state_names = (STEP_KEY,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.rules:
            if rule.state_keys:
                raise ValueError(f"Alternate: {rule!r} has a state ({', '.join(rule.state_keys)})")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        turn = (state[STEP_KEY] - 1) % len(self.rules)
        for index in range(len(self.rules)):
            child_update, _ = self.update_child(index, update, state)
            direction = torch.where(turn == index, child_update.direction, direction)
        return update.replace(direction=direction), {}


@recipe
def mano(lr: Scalar = 1e-3, momentum: Scalar = 0.95, weight_decay: Scalar = 0.1) -> Chain:
    """Mano: momentum without its radial part, normalized alternately in columns and in rows.

        M <- momentum M + G,    V = M - W <M, W> / <W, W>,    U = 0.2 sqrt(size) V / |V|,
        W <- W - lr (U + weight_decay W),

    V and U in each column at odd steps, and in each row at even steps. A column of a convolution is
    an input channel.

    Start with lr = 0.01, momentum 0.95 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: factor of the past M, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = mano(lr=0.1, weight_decay=0.0), torch.eye(2)
        >>> grad = torch.tensor([[5.0, 3.0], [-2.0, 0.1]])
        >>> rule.step(weight, grad, rule.init(weight))[0]  # 0.02 sqrt(2), across each column
        tensor([[ 1.0000, -0.0283],
                [ 0.0283,  1.0000]])

    Source: Gu and Xie 2026, arXiv:2601.23000; xie-lab-ml/Mano.

    `spherenorm code mano` prints it as plain torch.
    """
    columns, rows = (
        chain(r.RadialProjection(v), RmsLength(ADAMW_STEP_RMS, v)) for v in ("dim=1", "channel")
    )
    return chain(
        r.HeavyBall(momentum, buffer="momentum_buffer"),
        Alternate((columns, rows)),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class PostStepDecay(Rule):
    """Decay the end of a step cautiously, so that a rule that sets its norm cannot undo it:

        e = w - rule(d),    w <- e - share e where w d > 0.

    Args:
        rule: the rule that ends the step.
        share: eta lambda, in [0, inf).

    Example:
        >>> rule = PostStepDecay(sn.rules.FixedNorm("layer", "current"), 0.5)
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.6, 0.0]), {})[0]
        tensor([1.5000, 0.0000])

    Source: modded-nanogpt, track 3, record 46.
    """

    rule: Rule
    share: Scalar = hyper("[0, inf)")

    uses_endpoint = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        shrinks = update.weight * update.direction > 0
        child_update, new_state = self.update_child(0, update, state)
        end = update.weight - child_update.direction
        decay = torch.where(shrinks, cast_like(self.share, end) * end, 0)
        return update.replace(direction=child_update.direction + decay), new_state


@recipe
def rowfloor_muon(
    lr: Scalar = 0.0375,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.025,
    floor: Scalar = 0.3825,
    outward: Scalar = 0.5,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """Muon with a radial brake, a floor for each row, and cautious decay after the norm is set.

        M <- momentum M + (1 - momentum) G,    O = NS((1 - momentum) G + momentum M),
        D = sqrt(max(1, m / n)) O, whose outward radial part is multiplied by `outward`,
        D_i <- D_i max(1, floor |W_i| / |D_i|) in each row i,    E = W - lr D, at norm
        |W| - lr <W, D> / |W|,    W <- E - lr weight_decay E where W D > 0.

    NS is the Newton-Schulz iteration.

    Start with lr = 0.0375, momentum 0.95 (the default).

    Args:
        lr: learning rate, in [0, inf).
        momentum: decay rate of the average M, in [0, 1).
        weight_decay: cautious decay at the end of a step, in [0, inf).
        floor: the smallest |D_i| / |W_i|, in (0, inf).
        outward: the share of a radial part that lengthens the weight to keep, in [0, 1].
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Example:
        >>> rule, weight = rowfloor_muon(lr=0.1, floor=5.0, weight_decay=0.0), torch.eye(2)
        >>> moved, _ = rule.step(weight, torch.eye(2).flip(0), rule.init(weight))
        >>> sn.metrics.angular_update(weight, moved)  # arctan(0.1 5)
        tensor([0.4636, 0.4636])

    Source: modded-nanogpt, track 3, record 46, without its SOAP and its EMA-Nesterov.

    `spherenorm code rowfloor_muon` prints it as plain torch.
    """
    return chain(
        orthogonal_momentum(momentum, nesterov=True),
        r.Orthogonalize(coefficients, scale="original", precision=precision),
        r.RadialProjection("layer", outward, inward=1.0),
        r.UpdateFloor(floor, "channel"),
        r.StepSize(lr),
        PostStepDecay(r.FixedNorm("layer", "intended"), lr * weight_decay),
    )


@recipe
def hyperp(
    lr: Scalar = 0.02,
    depth: Scalar = 8.0,
    tokens: Scalar = 9.5e9,
    batch: Scalar = 2.0**21,
    momentum: Scalar = 0.95,
    nesterov: bool = True,
    coefficients: Coefficients = "original",
    precision: str = "weight",
) -> Chain:
    """MuonH with HyperP's rate for a model's depth, a run's tokens and its batch.

        rate = lr sqrt(8 / depth) (tokens / 9.5e9)^(-0.32) sqrt(batch / 2^21),
        M <- momentum M + (1 - momentum) G,    O = NS((1 - momentum) G + momentum M),
        W <- |W_0| N(W - rate |W| N(O)),    N(X) = X / |X|,    NS a Newton-Schulz iteration.

    Width needs no factor; residual branches have to be scaled by depth, as in Depth-muP.

    Start with lr = 0.02, momentum 0.95 (the default).

    Args:
        lr: the best rate for 8 layers, 9.5e9 tokens and a batch of 2^21 tokens, in [0, inf).
        depth: the number of layers, in (0, inf).
        tokens: the number of tokens of the run, in (0, inf).
        batch: the number of tokens of a step, in (0, inf).
        momentum: decay rate of the average M, in [0, 1).
        nesterov: orthogonalize (1 - momentum) G + momentum M; False takes M.
        coefficients: table of the Newton-Schulz iteration: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek", "plain", or triples; see `rules.Orthogonalize`.
        precision: dtype of the iteration: "weight" (that of the step), "float32" or "bfloat16".

    Raises:
        ValueError: depth, tokens or batch is not positive.

    Example:
        >>> hyperp(lr=0.01, depth=32.0).rules[-2]  # four times as deep, half the rate
        StepSize(lr=0.005)

    Source: Ren et al. 2026, arXiv:2603.28743; microsoft/ArchScale, pretrain.py.

    `spherenorm code hyperp` prints it as plain torch.
    """
    check_number(depth, POSITIVE, "depth must be")
    check_number(tokens, POSITIVE, "tokens must be")
    check_number(batch, POSITIVE, "batch must be")
    depth_factor = (REFERENCE_DEPTH / depth) ** 0.5
    tokens_factor = (tokens / REFERENCE_TOKENS) ** TOKENS_EXPONENT
    batch_factor = (batch / REFERENCE_BATCH_TOKENS) ** 0.5
    rate = lr * depth_factor * tokens_factor * batch_factor
    return muonh(rate, momentum, nesterov, coefficients, precision)
