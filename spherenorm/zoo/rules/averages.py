"""Ends of a step that depend on the steps before; `eval_weight` is the weight to evaluate with.

Each stands last in a chain, behind the step size, and moves in flat space.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper
from spherenorm.numerics import Scalar, accumulation_dtype, add_scaled, cast_like, ema, safe_divide
from spherenorm.rule import STEP_KEY, Rule, State, Update


@dataclass(frozen=True)
class ScheduleFree(Rule):
    """Steps of z, gradients at y, and an average x to evaluate with, in place of a schedule:

        z_t = z_{t-1} - d_t,    x_t = (1 - c_t) x_{t-1} + c_t z_t,
        y_t = (1 - beta) z_t + beta x_t,
        c_t = s_t / (s_1 + ... + s_t),    s_t = t^power max(eta_1, ..., eta_t)^2.

    The model holds y.

    Args:
        beta: in [0, 1).
        lr: eta, the step size before it in the chain, in [0, inf).
        power: of t, in [0, inf); above 0, late iterates count more.

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), ScheduleFree(0.5, 1.0))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight, state["z"], state["x"]
        (tensor([2.5000]), tensor([3.]), tensor([2.]))

    Source: Defazio et al. 2024, arXiv:2405.15682; facebookresearch/schedule_free.
    """

    beta: Scalar = hyper("[0, 1)")
    lr: Scalar = hyper("[0, inf)", zero_is_ordinary=True)
    power: Scalar = hyper("[0, inf)", 0.0)

    state_names = (STEP_KEY, "z", "x", "largest_lr", "share_sum")

    def init(self, weight: Tensor) -> State:
        zero = torch.zeros((), dtype=accumulation_dtype(weight.device), device=weight.device)
        numbers = {"largest_lr": zero, "share_sum": zero.clone()}
        return super().init(weight) | {"z": weight, "x": weight, **numbers}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        largest = torch.maximum(state["largest_lr"], self.lr + 0 * state["largest_lr"])
        share = state[STEP_KEY] ** self.power * largest**2
        total = state["share_sum"] + share
        z = state["z"] - update.direction
        x = ema(z, state["x"], cast_like(safe_divide(share, total), z))
        y = ema(z, x, 1 - self.beta)
        new = {"z": z, "x": x, "largest_lr": largest, "share_sum": total}
        return update.replace(direction=update.weight - y), new

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """x."""
        return state["x"]

    def restart_averages(self, weight: Tensor, state: State) -> State:
        zeros = {key: torch.zeros_like(state[key]) for key in ("largest_lr", "share_sum")}
        return {**state, "z": weight, "x": weight, **zeros}


@dataclass(frozen=True)
class Lookahead(Rule):
    """Every k steps, the weight goes back to a point on the way from the last such point:

        s <- s + alpha (w - s),    w <- s.

    Args:
        alpha: the share of the way that is kept, in [0, 1].
        every: k, a whole number of at least 1.

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), Lookahead(0.5, 2))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([1.])

    Source: Zhang et al. 2019, arXiv:1907.08610, Algorithm 1.
    """

    alpha: Scalar = hyper("[0, 1]", 0.5)
    every: Scalar = hyper("[1, inf)", 5)

    state_names = (STEP_KEY, "slow")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | {"slow": weight}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        slow, fast = state["slow"], update.weight - update.direction
        now = state[STEP_KEY] % self.every == 0
        slow = torch.where(now, ema(slow, fast, 1 - self.alpha), slow)
        end = torch.where(now, slow, fast)
        return update.replace(direction=update.weight - end), {"slow": slow}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """s."""
        return state["slow"]

    def restart_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "slow": weight}


@dataclass(frozen=True)
class TrendLookahead(Rule):
    """Nesterov's look ahead, along an average of the steps in place of the last one:

        w_t = y_{t-1} - d_t,    m_t = gamma m_{t-1} + (1 - gamma) (w_t - w_{t-1}),
        y_t = w_t + beta m_t.

    The model holds y, at which the gradient is taken; `eval_weight` returns w.

    Args:
        beta: how far ahead, in average steps, in [0, inf).
        gamma: decay rate of the average, in [0, 1).

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), TrendLookahead(beta=0.5, gamma=0.0))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight, state["base"]
        (tensor([1.5000]), tensor([1.]))

    Source: Yau et al. 2026 (EMA-Nesterov), arXiv:2605.25395.
    """

    beta: Scalar = hyper("[0, inf)")
    gamma: Scalar = hyper("[0, 1)")

    state_names = ("base", "trend")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | {"base": weight}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        base = update.weight - update.direction
        trend = ema(state["trend"], base - state["base"], self.gamma)
        ahead = add_scaled(base, self.beta, trend)
        return update.replace(direction=update.weight - ahead), {"base": base, "trend": trend}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """w, without the look ahead."""
        return state["base"]

    def restart_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "base": weight, "trend": torch.zeros_like(state["trend"])}
