"""Second moments of a matrix from their sums over rows and columns, and limits of a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, cast_like, ema, safe_sqrt
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import replicate


def _sums(x: Tensor, name: str) -> State:
    """A factored moment's part of `x`: its sums, or itself if it has fewer than two dimensions.

    Tensors of three dimensions and more are stacks of matrices, of their last two dimensions.
    """
    return {name: x} if x.ndim < 2 else {f"{name}_row": x.sum(-1), f"{name}_col": x.sum(-2)}


def _start(zero: Tensor, name: str) -> State:
    """The states of a factored moment; those that the shape does not need are empty."""
    # (not `zero.flatten()[:0]`, which a tensor in uneven shards does not allow)
    empty = dict.fromkeys((name, f"{name}_row", f"{name}_col"), zero.new_full((0,), 0.0))
    return empty | {key: _added_up(sums) for key, sums in _sums(zero, name).items()}


def _added_up(x: Tensor) -> Tensor:
    """Return a sharded tensor whole where each process holds only a summand of it."""
    placements: tuple[Any, ...] = getattr(x, "placements", ())
    return replicate(x) if any(each.is_partial() for each in placements) else x


def _factored(state: State, name: str, x: Tensor, beta: Scalar) -> tuple[Tensor, State]:
    """The average of `x` as the product of its sums, and the new states of that name."""
    # So many entries add up to half of the largest number of the dtype at most.
    x = x.clamp(max=torch.finfo(x.dtype).max / 2 / max(x.numel(), 1))
    kept = {key: value for key, value in state.items() if key.startswith(name)}
    new = {key: ema(state[key], sums, beta) for key, sums in _sums(x, name).items()}
    if x.ndim < 2:
        return new[name], kept | new
    row, col = new[f"{name}_row"], new[f"{name}_col"]
    return row[..., None] * (col / row.sum(-1, keepdim=True))[..., None, :], kept | new


def _divide_by_root(direction: Tensor, moment: Tensor) -> Tensor:
    """direction / sqrt(moment), and the direction itself where the moment is 0.

    Where both a row and a column have had no gradient, as in an embedding's, the product of their
    sums underflows, and the direction is 0.
    """
    length = safe_sqrt(moment)
    return direction / torch.where(length == 0, 1, length)


@dataclass(frozen=True)
class FactoredScale(Rule):
    """Divide by the root of a second moment that is kept as its sums R and C over rows and columns:

        R_t, C_t = averages of the sums of d_t^2 + eps,    d / sqrt(R C / sum(R)).

    Weights of fewer than two dimensions have the moment itself.

    Args:
        beta: decay rate of the averages, in [0, 1).
        decay: c of a decay rate of 1 - t^-c instead, in (0, inf); None: beta.
        eps: in [0, inf).

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
        return super().init(weight) | _start(torch.zeros_like(weight), "square")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        beta = self.beta if self.decay is None else 1 - state[STEP_KEY] ** -self.decay
        square = direction**2 + cast_like(self.eps, direction)
        moment, new = _factored(state, "square", square, beta)
        return update.replace(direction=_divide_by_root(direction, moment)), new


@dataclass(frozen=True)
class Confidence(Rule):
    """An average whose entries count less where what enters it differs from it:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t,    m_t / sqrt(U_t),

    U the factored moment of (d_t - m_t)^2 + eps, as in `FactoredScale`. Weights of fewer than two
    dimensions step by m.

    Args:
        beta1: decay rate of the average, in [0, 1).
        beta3: decay rate of U, in [0, 1).
        eps: in [0, inf).

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
        return super().init(weight) | _start(torch.zeros_like(weight), "residual")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = ema(state["exp_avg"], update.direction, self.beta1)
        square = (update.direction - average) ** 2 + cast_like(self.eps, average)
        residual, new = _factored(state, "residual", square, self.beta3)
        direction = average if average.ndim < 2 else _divide_by_root(average, residual)
        return update.replace(direction=direction), {"exp_avg": average, **new}


@dataclass(frozen=True)
class RmsLimit(Rule):
    """Shorten a direction to a root mean square of at most r: d / max(1, rms(d) / r).

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
        excess = safe_sqrt((direction * direction).mean()) / cast_like(self.longest, direction)
        direction = direction / torch.where(excess > 1, excess, 1)
        return update.replace(direction=direction), {}


@dataclass(frozen=True)
class WeightRms(Rule):
    """Multiply by the weight's root mean square, or by the least that counts: d max(least, rms(w)).

    Args:
        least: in (0, inf).

    Example:
        >>> WeightRms().step(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 0.0]), {})[0]
        tensor([ 0., -3.])

    Source: Shazeer and Stern 2018 (Adafactor), Algorithm 4.
    """

    least: Scalar = hyper("(0, inf)", 1e-3)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        size = safe_sqrt((update.weight * update.weight).mean())
        size = torch.maximum(size, cast_like(self.least, size) * torch.ones_like(size))
        return update.replace(direction=size * update.direction), {}
