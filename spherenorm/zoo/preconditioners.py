"""Second moments of matrices: by sums over rows and columns, and by Kronecker factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm.fields import hyper
from spherenorm.numerics import (
    Scalar,
    bias_corrections,
    cast_like,
    eigh,
    ema,
    ema_of_square,
    mean,
    safe_sqrt,
    when,
)
from spherenorm.registry import recipe
from spherenorm.rule import STEP_KEY, Chain, Rule, State, Update, chain
from spherenorm.views import View, replicate


@dataclass(frozen=True)
class FactoredScale(Rule):
    """Divide by the root of a second moment that is stored as sums R and C over rows and columns:

        R_t, C_t = averages of the sums of d_t^2 + eps,    d / sqrt(R C / sum(R)).

    For weights of fewer than two dimensions the moment itself is stored.

    Args:
        beta: decay rate of the averages, in [0, 1).
        decay: exponent c of a decay rate of 1 - t^-c, in (0, inf); None takes `beta`.
        eps: added to d^2, in [0, inf).

    Example:
        >>> rule = FactoredScale(decay=0.8)
        >>> weight = torch.zeros(2, 2)
        >>> rule.step(weight, torch.tensor([[1.0, 1.0], [3.0, 3.0]]), rule.init(weight))[0]
        tensor([[-1., -1.],
                [-1., -1.]])

    Source: Shazeer and Stern 2018 (Adafactor), arXiv:1804.04235, Algorithm 4.
    """

    beta: Scalar = hyper("[0, 1)", 0.999)
    decay: Scalar | None = hyper("(0, inf)", None)
    eps: Scalar = hyper("[0, inf)", 1e-30)

    state_names = (STEP_KEY, "square_row", "square_col", "square")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | _initial_moment(torch.zeros_like(weight), "square")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        beta = self.beta if self.decay is None else 1 - state[STEP_KEY] ** -self.decay
        square = direction**2 + cast_like(self.eps, direction)
        moment, new_state = _factored_average(state, "square", square, beta)
        return update.replace(direction=_divide_by_root(direction, moment)), new_state


@dataclass(frozen=True)
class RmsLimit(Rule):
    """Clip the root mean square of the direction at r: d / max(1, rms(d) / r).

    Args:
        longest: r, in (0, inf).

    Example:
        >>> RmsLimit(1.0).step(torch.zeros(2), torch.tensor([2.0, 2.0]), {})[0]
        tensor([-1., -1.])

    Source: Shazeer and Stern 2018 (Adafactor), Algorithm 4.
    """

    longest: Scalar = hyper("(0, inf)", 1.0)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        excess = safe_sqrt(mean(direction * direction)) / cast_like(self.longest, direction)
        direction = direction / torch.where(excess > 1, excess, 1)
        return update.replace(direction=direction), {}


@dataclass(frozen=True)
class WeightRms(Rule):
    """Multiply by the weight's root mean square, or by a minimum: d max(min_rms, rms(w)).

    Args:
        min_rms: the minimum of the factor, in (0, inf).

    Example:
        >>> WeightRms().step(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 0.0]), {})[0]
        tensor([ 0., -3.])

    Source: Shazeer and Stern 2018 (Adafactor), Algorithm 4.
    """

    min_rms: Scalar = hyper("(0, inf)", 1e-3)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        rms = safe_sqrt(mean(update.weight * update.weight))
        rms = torch.maximum(rms, cast_like(self.min_rms, rms) * torch.ones_like(rms))
        return update.replace(direction=rms * update.direction), {}


@recipe
def adafactor(
    lr: Scalar = 1e-2,
    decay: Scalar = 0.8,
    longest: Scalar = 1.0,
    eps: Scalar = 1e-30,
    eps2: Scalar = 1e-3,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adafactor: a second moment in rows and columns, and steps relative to the weight.

        u = g / sqrt(R C / sum(R)),
        w <- w - lr (max(eps2, rms(w)) u / max(1, rms(u) / longest) + weight_decay w),

    R and C averages of the sums of g^2 + eps over rows and columns, with a decay rate of 1 -
    t^-decay.

    Start with lr = 0.02 (measured).

    Args:
        lr: learning rate relative to the weight, in [0, inf). The paper's is min(0.01, 1 /
            sqrt(t)).
        decay: exponent in the decay rate, in (0, inf).
        longest: the largest root mean square of u, in (0, inf).
        eps: added to g^2, in [0, inf).
        eps2: the minimum of rms(w), in (0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = adafactor(lr=0.1), 2 * torch.ones(2, 2)
        >>> rule.step(weight, torch.tensor([[1.0, 1.0], [3.0, 3.0]]), rule.init(weight))[0]
        tensor([[1.8000, 1.8000],
                [1.8000, 1.8000]])

    Source: Shazeer and Stern 2018, arXiv:1804.04235, Algorithms 4 and 5.

    `spherenorm code adafactor` prints it as plain torch.
    """
    return chain(
        FactoredScale(decay=decay, eps=eps),
        RmsLimit(longest),
        WeightRms(eps2),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class Confidence(Rule):
    """Average the direction, and divide by the root mean square of its deviation from the average:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t,    m_t / sqrt(U_t),

    where U is the factored moment of (d_t - m_t)^2 + eps, as in `FactoredScale`. For weights of
    fewer than two dimensions the direction is m.

    Args:
        beta1: decay rate of the average, in [0, 1).
        beta3: decay rate of U, in [0, 1).
        eps: added to (d - m)^2, in [0, inf).

    Example:
        >>> rule = Confidence(0.5, 0.0)
        >>> weight = torch.zeros(1, 1)
        >>> rule.step(weight, torch.tensor([[3.0]]), rule.init(weight))[0]  # m = 1.5 = 3 - m
        tensor([[-1.]])

    Source: Luo et al. 2023 (CAME), arXiv:2307.02047, Algorithm 2.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta3: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-16)

    state_names = ("exp_avg", "residual_row", "residual_col", "residual")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | _initial_moment(torch.zeros_like(weight), "residual")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = ema(state["exp_avg"], update.direction, self.beta1)
        square = (update.direction - average) ** 2 + cast_like(self.eps, average)
        residual, new_state = _factored_average(state, "residual", square, self.beta3)
        direction = average if average.ndim < 2 else _divide_by_root(average, residual)
        return update.replace(direction=direction), {"exp_avg": average, **new_state}


@recipe
def came(
    lr: Scalar = 2e-4,
    betas: tuple[Scalar, Scalar, Scalar] = (0.9, 0.999, 0.9999),
    longest: Scalar = 1.0,
    eps: Scalar = 1e-30,
    eps2: Scalar = 1e-16,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """CAME: Adafactor with momentum, which counts less where the factored step differs from it.

        u = g / sqrt(factored moment of g^2 + eps),    u <- u / max(1, rms(u) / longest),
        m <- beta1 m + (1 - beta1) u,    d = m / sqrt(factored moment of (u - m)^2 + eps2),
        w <- w - lr (d + weight_decay w).

    Start with lr = 0.0002, betas (0.9, 0.999, 0.9999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and of the two moments, each in [0, 1).
        longest: the largest root mean square of u, in (0, inf).
        eps: added to g^2, in [0, inf).
        eps2: added to (u - m)^2, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = came(lr=0.1, betas=(0.5, 0.0, 0.0)), torch.zeros(1, 1)
        >>> rule.step(weight, torch.tensor([[-4.0]]), rule.init(weight))[0]  # m and u - m are 0.5
        tensor([[0.1000]])

    Source: Luo et al. 2023, arXiv:2307.02047, Algorithm 2; yangluo7/CAME.

    `spherenorm code came` prints it as plain torch.
    """
    return chain(
        FactoredScale(betas[1], eps=eps),
        RmsLimit(longest),
        Confidence(betas[0], betas[2], eps2),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def _row_and_column_sums(x: Tensor, name: str) -> State:
    """Return the sums of x over rows and columns, or x if it has fewer than two dimensions.

    A tensor of three or more dimensions is a stack of matrices, in its last two dimensions.

    Args:
        x: a tensor of the shape of the weight.
        name: the prefix of the keys of the result.
    """
    if x.ndim < 2:
        return {name: x}
    return {f"{name}_row": x.sum(-1), f"{name}_col": x.sum(-2)}


def _initial_moment(zero: Tensor, name: str) -> State:
    """Return the states of a factored moment; those that the shape does not need are empty."""
    # `zero.flatten()[:0]` would be shorter, but fails for a tensor in uneven shards.
    empty = zero.new_full((0,), 0.0)
    state = {name: empty, f"{name}_row": empty, f"{name}_col": empty}
    for key, sums in _row_and_column_sums(zero, name).items():
        state[key] = _replicate_partial_sums(sums)
    return state


def _replicate_partial_sums(x: Tensor) -> Tensor:
    """Return a sharded tensor whole if each process has only a term of a sum."""
    placements: tuple[Any, ...] = getattr(x, "placements", ())
    return replicate(x) if any(placement.is_partial() for placement in placements) else x


def _factored_average(state: State, name: str, x: Tensor, beta: Scalar) -> tuple[Tensor, State]:
    """Return the average of x, as the product of its row and column sums, and the new states."""
    # The sum of all entries then is at most half of the largest number of the dtype.
    x = x.clamp(max=torch.finfo(x.dtype).max / 2 / max(x.numel(), 1))
    new_state = {key: value for key, value in state.items() if key.startswith(name)}
    for key, sums in _row_and_column_sums(x, name).items():
        new_state[key] = ema(state[key], sums, beta)
    if x.ndim < 2:
        return new_state[name], new_state
    row, col = new_state[f"{name}_row"], new_state[f"{name}_col"]
    average = row[..., None] * (col / row.sum(-1, keepdim=True))[..., None, :]
    return average, new_state


def _divide_by_root(direction: Tensor, moment: Tensor) -> Tensor:
    """Return direction / sqrt(moment), and the direction where the moment is 0.

    If neither a row nor a column has had a gradient, as in an embedding, the product of their sums
    underflows, and the direction is 0.
    """
    root = safe_sqrt(moment)
    return direction / torch.where(root == 0, 1, root)


ROWS = View(0)
GRAM_HEADROOM = 8
"""The factor by which entries stay below the bound at which a product of rows would overflow."""


@dataclass(frozen=True)
class EigenbasisMoments(Rule):
    """Run Adam in the eigenbasis of Shampoo's preconditioners; the first direction is 0:

        L = average of G G^T,    R = average of G^T G,    Q_L, Q_R their eigenvectors,
        V = average of (Q_L^T G Q_R)^2,    direction = Q_L (Q_L^T M Q_R / (sqrt(V) + eps)) Q_R^T,

    with Adam's bias correction. The bases are eigenvectors of the first L and R, and are refreshed
    after every k-th step by a power iteration: Q <- QR(L Q). A convolution is a matrix of shape
    (out, rest).

    Args:
        beta1, beta2: decay rates of M, and of V, L and R, in [0, 1).
        eps: added to the root, in [0, inf).
        every: k, in [1, inf).
        one_sided: rotate only the smaller side, which takes less memory.

    Raises:
        ValueError: on `init`, if the weight has fewer than two dimensions.

    Example:
        >>> rule = EigenbasisMoments(0.0, 0.0)
        >>> weight, state = torch.zeros(2, 2), rule.init(torch.zeros(2, 2))
        >>> for _ in range(2):  # with a constant gradient, its orthogonal factor
        ...     weight, state = rule.step(weight, torch.tensor([[0.0, 3.0], [2.0, 0.0]]), state)
        >>> weight.round(decimals=3)
        tensor([[ 0., -1.],
                [-1.,  0.]])

    Source: Vyas et al. 2024 (SOAP), arXiv:2409.11321, Algorithm 3; nikhilvyas/SOAP.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    every: Scalar = hyper("[1, inf)", 10)
    one_sided: bool = False

    state_names = (STEP_KEY, "exp_avg", "exp_avg_sq", "left", "right", "left_basis", "right_basis")

    vector_policy = "refuse"
    needs_whole_weight = True

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        x = ROWS.rows(state["exp_avg"])
        m, n = x.shape
        # A side without a basis has an empty Gram matrix.
        left_size = 0 if self.one_sided and m > n else m
        right_size = 0 if self.one_sided and m <= n else n
        sides = {"left": (x @ x.mT)[:left_size], "right": (x.mT @ x)[:right_size]}
        bases = {f"{name}_basis": side.clone() for name, side in sides.items()}
        return {**state, "exp_avg": x, "exp_avg_sq": x.clone(), **sides, **bases}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        x, step = _matrix_without_overflow(update), state[STEP_KEY]
        left_basis, right_basis = state["left_basis"], state["right_basis"]
        has_bases = step > 1  # The first step only computes them.
        average = torch.where(has_bases, ema(state["exp_avg"], x, self.beta1), 0)
        rotated = _rotate(x, left_basis, right_basis)
        square = ema_of_square(state["exp_avg_sq"], rotated, self.beta2)
        square = torch.where(has_bases, square, 0)
        moment_steps = torch.where(has_bases, step - 1, 1)
        correction1, correction2 = bias_corrections(moment_steps, self.beta1, self.beta2)
        root = safe_sqrt(square / cast_like(correction2, square)) + cast_like(self.eps, square)
        rotated_average = _rotate(average, left_basis, right_basis)
        scaled = rotated_average / cast_like(correction1, average) / root
        scaled = torch.where(has_bases, scaled, 0)
        direction = _rotate(scaled, left_basis.mT, right_basis.mT)
        new_state = {"exp_avg": average}
        for name, gram, dim in (("left", x @ x.mT, 0), ("right", x.mT @ x, 1)):
            side, basis = state[name], state[f"{name}_basis"]
            if side.numel():
                side = ema(side, gram, self.beta2)
                basis, square = self._refresh_basis(side, basis, square, dim, step)
            new_state[name] = side
            new_state[f"{name}_basis"] = basis
        new_state["exp_avg_sq"] = square
        direction = ROWS.from_rows(direction, update.weight)
        return update.replace(direction=direction), new_state

    def _refresh_basis(
        self, side: Tensor, basis: Tensor, square: Tensor, dim: int, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the basis of a side after a step, and V in the order of its vectors.

        Args:
            side: L or R.
            basis: the basis before the step.
            square: V.
            dim: the dimension of V that belongs to the side.
            step: the step count.
        """

        # Bases are contiguous, as loaded states are: the rounding of a product depends on layouts.
        def power_iteration() -> tuple[Tensor, Tensor]:
            order = torch.argsort((basis * (side @ basis)).sum(0), descending=True)
            new_basis = torch.linalg.qr(side @ basis[:, order])[0]
            return new_basis.contiguous(), square.index_select(dim, order)

        def eigenvectors() -> tuple[Tensor, Tensor]:
            vectors = eigh(side, type(self).__name__)[1].to(side)
            return vectors.flip(1).contiguous(), square

        is_due = (step > 1) & ((step - 1) % self.every == 0)
        iterated = when(is_due, power_iteration, (basis, square))
        return when(step == 1, eigenvectors, iterated)


@recipe
def soap(
    lr: Scalar = 3e-3,
    betas: tuple[Scalar, Scalar] = (0.95, 0.95),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    every: int = 10,
    one_sided: bool = False,
) -> Chain:
    """SOAP: Adam in the slowly turning eigenbasis of Shampoo's preconditioners.

        d = Q_L (Q_L^T M Q_R / (sqrt(V) + eps)) Q_R^T,    V = average of (Q_L^T G Q_R)^2,
        W <- W - lr (d + weight_decay W),

    M an average of G, and Q_L and Q_R eigenvectors of averages of G G^T and G^T G. The first step
    computes those, and decays. (The release does not decay in the first step, and decays after a
    step, not before it.) `"hyperball(soap)"` is SOAP on the hyperball.

    Start with lr = 0.003, betas (0.95, 0.95) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of M, and of V and the preconditioners, each in [0, 1).
        eps: added to the root of V, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        every: steps between two refreshes of the bases, in [1, inf).
        one_sided: rotate only the smaller side.

    Example:
        >>> rule, weight = soap(lr=0.1, betas=(0.0, 0.0), weight_decay=0.0), torch.zeros(2, 2)
        >>> state, grad = rule.init(weight), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, grad, state)
        >>> weight.round(decimals=3)  # of one gradient alone, Muon's step
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Vyas et al. 2024, arXiv:2409.11321, Algorithm 3; nikhilvyas/SOAP, of matrices.

    `spherenorm code soap` prints it as plain torch.
    """
    return chain(
        EigenbasisMoments(*betas, eps=eps, every=every, one_sided=one_sided),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class KroneckerRoots(Rule):
    """Multiply by the inverse fourth roots of the sums of both second moments:

        L^(-1/4) D R^(-1/4),    L = eps I + sum_t D_t D_t^T,    R = eps I + sum_t D_t^T D_t.

    A convolution is a matrix of shape (out, rest).

    Args:
        eps: the factor of I, in (0, inf).
        every: the number of steps between two computations of the roots, in [1, inf).

    Raises:
        ValueError: on `init`, if the weight has fewer than two dimensions.

    Example:
        >>> rule, weight = KroneckerRoots(1e-6), torch.zeros(2, 2)
        >>> rule.step(weight, torch.diag(torch.tensor([4.0, 9.0])), rule.init(weight))[0].round()
        tensor([[-1.,  0.],
                [ 0., -1.]])

    Source: Gupta et al. 2018 (Shampoo), arXiv:1802.09568, Algorithm 1.
    """

    eps: Scalar = hyper("(0, inf)", 1e-4)
    every: Scalar = hyper("[1, inf)", 1)

    state_names = (STEP_KEY, "left", "right", "left_root", "right_root")

    vector_policy = "refuse"
    needs_whole_weight = True

    def init(self, weight: Tensor) -> State:
        x = torch.zeros_like(ROWS.rows(weight))
        left_sum, right_sum = x @ x.mT, x.mT @ x
        roots = {"left_root": left_sum.clone(), "right_root": right_sum.clone()}
        return super().init(weight) | {"left": left_sum, "right": right_sum, **roots}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        x = _matrix_without_overflow(update)
        left_sum = _add_if_finite(state["left"], x @ x.mT)
        right_sum = _add_if_finite(state["right"], x.mT @ x)
        left_root, right_root = when(
            (state[STEP_KEY] - 1) % self.every == 0,
            lambda: (self._inverse_fourth_root(left_sum), self._inverse_fourth_root(right_sum)),
            (state["left_root"], state["right_root"]),
        )
        direction = ROWS.from_rows(left_root @ x @ right_root, update.weight)
        new_state = {
            "left": left_sum,
            "right": right_sum,
            "left_root": left_root,
            "right_root": right_root,
        }
        return update.replace(direction=direction), new_state

    def _inverse_fourth_root(self, side: Tensor) -> Tensor:
        """Return (side + eps I)^(-1/4)."""
        values, vectors = eigh(side, type(self).__name__)
        powers = (values.clamp(min=0) + cast_like(self.eps, values)) ** -0.25
        return ((vectors * powers) @ vectors.mT).to(side)


@recipe
def shampoo(
    lr: Scalar = 0.1,
    momentum: Scalar = 0.0,
    eps: Scalar = 1e-4,
    weight_decay: Scalar = 0.0,
    every: int = 1,
) -> Chain:
    """Shampoo: gradients divided by the fourth roots of both of their second moments.

        L = eps I + sum G G^T,    R = eps I + sum G^T G,
        P <- momentum P + L^(-1/4) G R^(-1/4),    W <- W - lr (P + weight_decay W).

    Start with lr = 0.1, momentum 0.9 (measured).

    Args:
        lr: learning rate, in [0, inf).
        momentum: factor of the past P, in [0, 1).
        eps: the first L and R, times I, in (0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        every: steps between two computations of the roots, in [1, inf).

    Example:
        >>> rule, weight = shampoo(lr=0.1), torch.zeros(2, 2)
        >>> grad = torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=3)
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Gupta et al. 2018, arXiv:1802.09568, Algorithm 1.

    `spherenorm code shampoo` prints it as plain torch.
    """
    return chain(
        KroneckerRoots(eps, every),
        r.HeavyBall(momentum),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def _matrix_without_overflow(update: Update) -> Tensor:
    """Return the direction as a matrix whose Gram matrices are finite.

    If a product of rows would overflow, all entries are scaled by one factor: in float32, if an
    entry is above 1e18 / (number of entries). The length of the step stays about the same, since
    it is divided by a root of the Gram matrices.
    """
    x = ROWS.rows(update.direction)
    if not x.numel():
        return x
    limit = torch.finfo(x.dtype).max ** 0.5 / (GRAM_HEADROOM * x.numel())
    largest = x.abs().amax()
    # A branch, since `torch.where` may return another layout, on which the rounding of products
    # depends.
    return when(largest > limit, lambda: x * (limit / largest), x)


def _rotate(x: Tensor, left_basis: Tensor, right_basis: Tensor) -> Tensor:
    """Return left_basis^T x right_basis, without the factor of an empty basis."""
    if left_basis.numel():
        x = left_basis.mT @ x
    return x @ right_basis if right_basis.numel() else x


def _add_if_finite(total: Tensor, gram: Tensor) -> Tensor:
    """Return total + gram, or the total if the sum would overflow; nan stays nan."""
    new_total = total + gram
    return torch.where(new_total.isinf().any(), total, new_total)
