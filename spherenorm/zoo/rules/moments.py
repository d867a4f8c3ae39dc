"""Moments of the gradient, entry by entry: what Adam's relatives divide by, and what they read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper, view
from spherenorm.numerics import (
    Scalar,
    add_scaled,
    bias_correction,
    bias_corrections,
    cast_like,
    ema,
    ema_of_square,
    safe_sqrt,
    without_overflow,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import View, ViewLike


@dataclass(frozen=True)
class GradientScale(Rule):
    """Adam's preconditioner by itself, t counted from 1:

        v_t = beta v_{t-1} + (1 - beta) g_t^2,    d / (sqrt(v_t / (1 - beta^t)) + eps).

    Args:
        beta: decay rate of v, in [0, 1).
        eps: added to the root, in [0, inf).
        largest: divide by the largest v so far.
        view: one v for each unit of this view, of the mean square of its entries; None: one for
            each entry.

    Example:
        >>> rule = GradientScale(0.9, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([5.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Kingma and Ba 2015, Algorithm 1; Reddi et al. 2018 (AMSGrad), for `largest`; Zhang et
    al. 2024 (Adam-mini), for `view`.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    largest: bool = False
    view: ViewLike | None = view(None)

    @property
    def state_names(self) -> tuple[str, ...]:
        names = (STEP_KEY, "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if self.largest else names

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        moments = {name: x for name, x in state.items() if name != STEP_KEY}
        return state | {name: self._of_units(x) for name, x in moments.items()}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if self.view is None:
            square = ema_of_square(state["exp_avg_sq"], update.grad, self.beta)
        else:
            square = without_overflow(self._of_units(update.grad**2))
            square = ema(state["exp_avg_sq"], square, self.beta)
        new = {"exp_avg_sq": square}
        if self.largest:
            square = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], square)
        share = bias_correction(self.beta, state[STEP_KEY])
        length = safe_sqrt(square / cast_like(share, square)) + cast_like(self.eps, square)
        return update.replace(direction=update.direction / length), new

    def _of_units(self, x: Tensor) -> Tensor:
        """Means over the units of the view, if there is one."""
        if self.view is None:
            return x
        units: View = self.view
        return units.unit_sums(x) / max(units.size(x), 1)


@dataclass(frozen=True)
class CenteredMoments(Rule):
    """Adam's moments, of which the second is about the first, t counted from 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        s_t = beta2 s_{t-1} + (1 - beta2) (d_t - m_t)^2 + eps
        direction = (m_t / (1 - beta1^t)) / (sqrt(s_t / (1 - beta2^t)) + eps)

    Args:
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the second moment, and to its root, in [0, inf).

    Example:
        >>> rule = CenteredMoments(0.5, 0.5, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[0]  # of a deviation of 2
        tensor([-2.])

    Source: Zhuang et al. 2020 (AdaBelief), arXiv:2010.07468, Algorithm 2.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-16)

    state_names = (STEP_KEY, "exp_avg", "exp_avg_var")
    tangent_names = ("exp_avg",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = ema(state["exp_avg"], update.direction, self.beta1)
        eps = cast_like(self.eps, average)
        variance = ema_of_square(state["exp_avg_var"], update.direction - average, self.beta2)
        variance = variance + eps
        first, second = bias_corrections(state[STEP_KEY], self.beta1, self.beta2)
        length = safe_sqrt(variance / cast_like(second, variance)) + eps
        direction = average / cast_like(first, average) / length
        new = {"exp_avg": average, "exp_avg_var": variance}
        return update.replace(direction=direction), new


@dataclass(frozen=True)
class AdoptScale(Rule):
    """Divide by the second moment of the steps before this one, and clip; the first direction is 0:

        clip(d_t / max(sqrt(v_{t-1}), eps), (t - 1)^(1/4)),
        v_1 = d_1^2,    v_t = beta v_{t-1} + (1 - beta) d_t^2.

    Args:
        beta: decay rate of v, in [0, 1).
        eps: the smallest root that is divided by, in (0, inf).

    Example:
        >>> rule = AdoptScale(0.9, 1e-6)
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for grad in (4.0, 2.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([-0.5000])

    Source: Taniguchi et al. 2024 (ADOPT), arXiv:2411.02853, Algorithm 2.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("(0, inf)", 1e-6)

    state_names = (STEP_KEY, "exp_avg_sq")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction, square, past = update.direction, state["exp_avg_sq"], state[STEP_KEY] - 1
        bound = (past**0.25).to(direction.dtype)
        eps = cast_like(self.eps, square) * torch.ones_like(square)
        scaled = direction / torch.maximum(safe_sqrt(square), eps)
        scaled = torch.minimum(torch.maximum(scaled, -bound), bound)
        later = ema_of_square(square, direction, self.beta)
        square = torch.where(past > 0, later, direction**2)
        return update.replace(direction=scaled), {"exp_avg_sq": square}


@dataclass(frozen=True)
class DifferenceMoments(Rule):
    """Moments of the gradient and of its change, c_t = g_t - g_{t-1} with c_1 = 0:

        m = avg1(g),    v = avg2(c),    n = avg3((g + beta2 c)^2),
        direction = (m + beta2 v) / (sqrt(n) + eps),

    averages with decay rates beta1, beta2, beta3, and bias correction.

    Args:
        beta1, beta2, beta3: decay rates, in [0, 1).
        eps: added to the root, in [0, inf).

    Example:
        >>> rule = DifferenceMoments(0.9, 0.9, 0.9, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Xie et al. 2022 (Adan), arXiv:2208.06677, Algorithm 1; sail-sg/Adan.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    beta3: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)

    state_names = (STEP_KEY, "exp_avg", "exp_avg_diff", "exp_avg_sq", "past_grad")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        change = torch.where(state[STEP_KEY] > 1, grad - state["past_grad"], 0)
        m = ema(state["exp_avg"], grad, self.beta1)
        v = ema(state["exp_avg_diff"], change, self.beta2)
        ahead = add_scaled(grad, self.beta2, change)
        n = ema_of_square(state["exp_avg_sq"], ahead, self.beta3)
        first, second, third = (
            cast_like(share, m)
            for share in bias_corrections(state[STEP_KEY], self.beta1, self.beta2, self.beta3)
        )
        numerator = m / first + cast_like(self.beta2, v) * (v / second)
        direction = numerator / (safe_sqrt(n / third) + cast_like(self.eps, n))
        new = {"exp_avg": m, "exp_avg_diff": v, "exp_avg_sq": n, "past_grad": grad}
        return update.replace(direction=direction), new


@dataclass(frozen=True)
class VarianceReduction(Rule):
    """The gradient, corrected by its change, and no longer than 1, weight by weight:

        c_t = g_t + gamma beta / (1 - beta) (g_t - g_{t-1}),    c_t / max(1, |c_t|),    g_0 = 0.

    Args:
        gamma: the strength, in [0, inf).
        beta: of the average behind it, in [0, 1).

    Example:
        >>> rule = VarianceReduction(gamma=0.1, beta=0.5)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([0.5]), rule.init(weight))[0]
        tensor([-0.5500])

    Source: Yuan et al. 2024 (MARS), arXiv:2411.10438, the approximate form; AGI-Arena/MARS.
    """

    gamma: Scalar = hyper("[0, inf)")
    beta: Scalar = hyper("[0, 1)")

    state_names = ("past_grad",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        strength = self.gamma * self.beta / (1 - self.beta)
        corrected = add_scaled(grad, strength, grad - state["past_grad"])
        length = safe_sqrt((corrected * corrected).sum())
        corrected = corrected / torch.where(length > 1, length, 1)
        return update.replace(direction=corrected), {"past_grad": grad}


@dataclass(frozen=True)
class SlowGradient(Rule):
    """Add a multiple of the gradient's average, which starts at the first gradient:

        d_t + lamb h_t,    h_1 = d_1,    h_t = alpha h_{t-1} + (1 - alpha) d_t.

    Args:
        alpha: decay rate of the average, in [0, 1).
        lamb: in [0, inf).

    Example:
        >>> rule = SlowGradient(alpha=0.5, lamb=2.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([1.0]), rule.init(weight))[0]
        tensor([-3.])

    Source: Lee et al. 2024 (Grokfast), arXiv:2405.20233, Algorithm 2.
    """

    alpha: Scalar = hyper("[0, 1)")
    lamb: Scalar = hyper("[0, inf)")

    state_names = (STEP_KEY, "slow_grad")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        slow = ema(state["slow_grad"], grad, self.alpha)
        slow = torch.where(state[STEP_KEY] > 1, slow, grad)
        return update.replace(direction=add_scaled(grad, self.lamb, slow)), {"slow_grad": slow}


@dataclass(frozen=True)
class SurpriseClip(Rule):
    """Shorten the direction where gradients are larger than their second moment says:

        d / max(1, s),    s^2 = mean(g^2 / max(v_t / (1 - beta^t), eps^2)).

    Args:
        beta: decay rate of the moment v that an earlier rule notes, in [0, 1).
        eps: in (0, inf).

    Raises:
        KeyError: on the first step, when no rule before it notes a second moment.

    Example:
        >>> rule = sn.chain(sn.rules.AdaptiveMoments(0.0, 0.75), SurpriseClip(0.75))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for grad in (0.0, 1.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight  # Adam's step of sqrt(7) / 2, over a surprise of the same size
        tensor([-1.])

    Source: Wortsman et al. 2023 (StableAdamW), arXiv:2304.13013, Algorithm 2.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("(0, inf)", 1e-8)

    state_names = (STEP_KEY,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        square = update.notes["second_moment"]
        expected = square / cast_like(bias_correction(self.beta, state[STEP_KEY]), square)
        least = cast_like(self.eps, square) ** 2 * torch.ones_like(square)
        surprise = safe_sqrt((update.grad**2 / torch.maximum(expected, least)).mean())
        direction = update.direction / torch.where(surprise > 1, surprise, 1)
        return update.replace(direction=direction), {}


@dataclass(frozen=True)
class GradientSign(Rule):
    """The size of the direction with the sign of the gradient, entry by entry: |d| sign(g).

    Example:
        >>> update = Update(torch.zeros(2), torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 4.0]))
        >>> GradientSign().update(update, {})[0].direction
        tensor([-3.,  4.])

    Source: Cao et al. 2024 (Grams), arXiv:2412.17107.
    """

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction.abs() * torch.sign(update.grad)
        return update.replace(direction=direction), {}
