"""Matrices: eigenbases and lengths of a direction, and decay behind the end of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper, view
from spherenorm.numerics import (
    Scalar,
    bias_corrections,
    cast_like,
    eigh,
    ema,
    ema_of_square,
    safe_divide,
    safe_sqrt,
    when,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import View, ViewLike

ROWS = View(0)


def _matrix_of(update: Update) -> Tensor:
    """Return the direction as a matrix whose Gram matrices are finite.

    Entries so large that products of rows would overflow are scaled down, all by one factor: the
    step divides by a root of the Gram matrices, so it is about as long as if they were not. That
    is above 1e18 / size in float32, for a weight of so many entries.
    """
    x = ROWS.rows(update.direction)
    if not x.numel():
        return x
    limit = torch.finfo(x.dtype).max ** 0.5 / (8 * x.numel())
    largest = x.abs().amax()
    # (a branch, since a copy would be laid out otherwise, by which products round)
    return when(largest > limit, lambda: x * (limit / largest), x)


@dataclass(frozen=True)
class EigenbasisMoments(Rule):
    """Adam in the eigenbasis of Shampoo's preconditioners; the first direction is 0:

        L = average of G G^T,    R = average of G^T G,    Q_L, Q_R their eigenvectors,
        V = average of (Q_L^T G Q_R)^2,    direction = Q_L (Q_L^T M Q_R / (sqrt(V) + eps)) Q_R^T,

    with Adam's bias correction. The bases are eigenvectors of the first L and R, and are refreshed
    after every k-th step by a power iteration: Q <- QR(L Q). A convolution is out x rest.

    Args:
        beta1, beta2: decay rates of M, and of V, L and R, in [0, 1).
        eps: added to the root, in [0, inf).
        every: k, in [1, inf).
        one_sided: turn the smaller side alone, which takes less memory.

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> rule = EigenbasisMoments(0.0, 0.0)
        >>> weight, state = torch.zeros(2, 2), rule.init(torch.zeros(2, 2))
        >>> for _ in range(2):  # of one gradient again and again, its orthogonal factor
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

    vectors = "refuse"

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        x = ROWS.rows(state["exp_avg"])
        left, right = self._sides(x)
        sides = {"left": (x @ x.mT)[:left], "right": (x.mT @ x)[:right]}
        bases = {f"{name}_basis": side.clone() for name, side in sides.items()}
        return {**state, "exp_avg": x, "exp_avg_sq": x.clone(), **sides, **bases}

    def _sides(self, x: Tensor) -> tuple[int, int]:
        """The rows of L and of R; 0 for a side that does not turn."""
        m, n = x.shape
        return (0 if self.one_sided and m > n else m), (0 if self.one_sided and m <= n else n)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        x, t = _matrix_of(update), state[STEP_KEY]
        bases = state["left_basis"], state["right_basis"]
        later = t > 1  # the first step takes the bases alone
        average = torch.where(later, ema(state["exp_avg"], x, self.beta1), 0)
        square = ema_of_square(state["exp_avg_sq"], _into(x, *bases), self.beta2)
        square = torch.where(later, square, 0)
        first, second = bias_corrections(torch.where(later, t - 1, 1), self.beta1, self.beta2)
        length = safe_sqrt(square / cast_like(second, square)) + cast_like(self.eps, square)
        scaled = _into(average, *bases) / cast_like(first, average) / length
        scaled = torch.where(later, scaled, 0)
        direction = _into(scaled, *(basis.mT for basis in bases))
        new = {"exp_avg": average}
        for name, gram, dim in (("left", x @ x.mT, 0), ("right", x.mT @ x, 1)):
            side, basis = state[name], state[f"{name}_basis"]
            if side.numel():
                side = ema(side, gram, self.beta2)
                basis, square = self._refreshed(side, basis, square, dim, t)
            new |= {name: side, f"{name}_basis": basis}
        direction = ROWS.from_rows(direction, update.weight)
        return update.replace(direction=direction), new | {"exp_avg_sq": square}

    def _refreshed(
        self, side: Tensor, basis: Tensor, square: Tensor, dim: int, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The basis of a side after a step, and V in its order."""

        def iterated() -> tuple[Tensor, Tensor]:
            order = torch.argsort((basis * (side @ basis)).sum(0), descending=True)
            turned = torch.linalg.qr(side @ basis[:, order])[0]
            return turned.contiguous(), square.index_select(dim, order)

        def first() -> tuple[Tensor, Tensor]:
            vectors = eigh(side, type(self).__name__)[1].to(side)
            return vectors.flip(1).contiguous(), square

        # (contiguous, as a loaded state is: a product rounds by the layout of its factors)
        kept = when((step > 1) & ((step - 1) % self.every == 0), iterated, (basis, square))
        return when(step == 1, first, kept)


def _into(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """left^T x right; an empty basis leaves its side alone."""
    x = left.mT @ x if left.numel() else x
    return x @ right if right.numel() else x


@dataclass(frozen=True)
class KroneckerRoots(Rule):
    """Divide by the fourth roots of the sums of both second moments:

        L^(-1/4) D R^(-1/4),    L = eps I + sum_t D_t D_t^T,    R = eps I + sum_t D_t^T D_t.

    A convolution is out x rest.

    Args:
        eps: in (0, inf).
        every: the steps between new roots, in [1, inf).

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

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

    vectors = "refuse"

    def init(self, weight: Tensor) -> State:
        x = torch.zeros_like(ROWS.rows(weight))
        sides = {"left": x @ x.mT, "right": x.mT @ x}
        return super().init(weight) | sides | {f"{k}_root": s.clone() for k, s in sides.items()}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        x = _matrix_of(update)
        new = {
            "left": _finite_sum(state["left"], x @ x.mT),
            "right": _finite_sum(state["right"], x.mT @ x),
        }
        new["left_root"], new["right_root"] = when(
            (state[STEP_KEY] - 1) % self.every == 0,
            lambda: (self._root(new["left"]), self._root(new["right"])),
            (state["left_root"], state["right_root"]),
        )
        direction = new["left_root"] @ x @ new["right_root"]
        return update.replace(direction=ROWS.from_rows(direction, update.weight)), new

    def _root(self, side: Tensor) -> Tensor:
        """(side + eps I)^(-1/4)."""
        values, vectors = eigh(side, type(self).__name__)
        powers = (values.clamp(min=0) + cast_like(self.eps, values)) ** -0.25
        return ((vectors * powers) @ vectors.mT).to(side)


def _finite_sum(total: Tensor, gram: Tensor) -> Tensor:
    """total + gram, or the total as it was if the sum would overflow; a nan stays one."""
    after = total + gram
    return torch.where(after.isinf().any(), total, after)


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

    rms: Scalar = hyper("(0, inf)", 0.2)
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        length = cast_like(self.rms, direction) * self.view.size(direction) ** 0.5
        scale = safe_divide(
            length * torch.ones_like(self.view.unit_sums(direction)), self.view.norm(direction)
        )
        return update.replace(direction=scale * direction), {}


@dataclass(frozen=True)
class NuclearNorm(Rule):
    """Scale the result of a rule by its product with the direction: <d, rule(d)> rule(d).

    Of an orthogonal factor, the product is the nuclear norm of the direction.

    Args:
        rule: orthogonalizes.

    Example:
        >>> rule = NuclearNorm(sn.rules.Orthogonalize("plain"))
        >>> rule.step(torch.zeros(2, 2), torch.diag(torch.tensor([3.0, 1.0])), {})[0].round()
        tensor([[-4.,  0.],
                [ 0., -4.]])

    Source: Lau et al. 2025 (PolarGrad), arXiv:2505.21799.
    """

    rule: Rule

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        after, new = self.update_child(0, update, state)
        norm = (update.direction * after.direction).sum()
        return update.replace(direction=norm * after.direction), new


@dataclass(frozen=True)
class PostStepDecay(Rule):
    """Cautious decay of the end of a step, so that a rule that sets its norm does not undo it:

        e = w - rule(d),    w <- e - share e where w d > 0.

    Args:
        rule: ends the step.
        share: eta lambda, in [0, inf).

    Example:
        >>> rule = PostStepDecay(sn.rules.FixedNorm("layer", "current"), 0.5)
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.6, 0.0]), {})[0]
        tensor([1.5000, 0.0000])

    Source: modded-nanogpt, track 3, record 46.
    """

    rule: Rule
    share: Scalar = hyper("[0, inf)")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        shrinks = update.weight * update.direction > 0
        after, new = self.update_child(0, update, state)
        end = update.weight - after.direction
        decay = torch.where(shrinks, cast_like(self.share, end) * end, 0)
        return update.replace(direction=after.direction + decay), new
