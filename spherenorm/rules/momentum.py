"""Momentum and averages: rules that remember directions or weights of earlier steps.

`WeightAverage` averages weights beside the steps. `ScheduleFree`, `PrimalAverage`, `Lookahead` and
`TrendLookahead` also set where a step ends: they stand last in a chain, after the step size, and
need flat space.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper, state_name
from spherenorm.numerics import (
    Scalar,
    accumulation_dtype,
    add_scaled,
    bias_correction,
    cast_like,
    ema,
    is_zero,
    safe_divide,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update


@dataclass(frozen=True)
class HeavyBall(Rule):
    """Momentum of SGD: p_t = beta p_{t-1} + (1 - dampening) d_t, with p_{-1} = 0.

    The direction becomes p_t, or d_t + beta p_t with `nesterov`.

    Args:
        beta: the momentum, in [0, 1).
        dampening: 1 minus the factor of the new direction, in [0, 1].
        nesterov: look ahead by one decayed step.
        undamped_start: ignore the dampening while p is exactly 0, as torch.optim.SGD does.
        buffer: the name of p in the state: "momentum" in the `adamp` package, "momentum_buffer" in
            torch.optim.

    Example:
        >>> rule = HeavyBall(0.5)
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([1.0]), state)
        >>> state
        {'momentum': tensor([1.7500])}

    Source: Heo et al. 2021 (AdamP), Section 2.4.
    """

    beta: Scalar = hyper("[0, 1)")
    dampening: Scalar = hyper("[0, 1]", 0.0)
    nesterov: bool = False
    undamped_start: bool = False
    buffer: str = state_name("momentum")

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def tangent_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        past_momentum = state[self.buffer]
        incoming = update.direction
        if not is_zero(self.dampening):
            incoming = cast_like(1 - self.dampening, incoming) * incoming
            if self.undamped_start:
                is_first = (past_momentum == 0).all()
                incoming = torch.where(is_first, update.direction, incoming)
        momentum = add_scaled(incoming, self.beta, past_momentum)
        direction = momentum
        if self.nesterov:
            direction = add_scaled(update.direction, self.beta, momentum)
        return update.replace(direction=direction), {self.buffer: momentum}


@dataclass(frozen=True)
class FeedbackMomentum(Rule):
    """Momentum with a rule in its recurrence: p_t = rule(beta p_{t-1} + (1 - dampening) d_t).

    With a projection as `rule` this is the released SGDP without Nesterov momentum, which projects
    its momentum buffer in place. The paper's Algorithm 1 stores the unprojected p_t, which is
    `HeavyBall` before the projection.

    Args:
        rule: the rule that maps the momentum.
        beta: the momentum, in [0, 1).
        dampening: 1 minus the factor of the new direction, in [0, 1].
        buffer: the name of p in the state.

    Example:
        >>> FeedbackMomentum(RadialProjection("channel"), 0.9).state_keys
        ('momentum',)
    """

    rule: Rule
    beta: Scalar = hyper("[0, 1)")
    dampening: Scalar = hyper("[0, 1]", 0.0)
    buffer: str = state_name("momentum")

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def tangent_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        incoming = cast_like(1 - self.dampening, update.direction) * update.direction
        momentum = add_scaled(incoming, self.beta, state[self.buffer])
        update, child_state = self.update_child(0, update.replace(direction=momentum), state)
        return update, {self.buffer: update.direction, **child_state}


@dataclass(frozen=True)
class ExponentialAverage(Rule):
    """Momentum of Adam: m_t = beta m_{t-1} + (1 - beta) d_t, with m_{-1} = 0.

    The direction becomes m_t, or m_t / (1 - beta^t) with `bias_correction`; the first t is 1.

    Args:
        beta: the decay rate of the average, in [0, 1).
        bias_correction: divide by 1 - beta^t, the sum of the factors of all d_t in m_t.

    Example:
        >>> rule = ExponentialAverage(0.9, bias_correction=True)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([1.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Kingma and Ba 2015, Algorithm 1.
    """

    beta: Scalar = hyper("[0, 1)")
    bias_correction: bool = False

    tangent_names = ("exp_avg",)

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY, "exp_avg") if self.bias_correction else ("exp_avg",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = ema(state["exp_avg"], update.direction, self.beta)
        direction = average
        if self.bias_correction:
            direction = average / cast_like(bias_correction(self.beta, state[STEP_KEY]), average)
        return update.replace(direction=direction), {"exp_avg": average}


@dataclass(frozen=True)
class InterpolatedAverage(Rule):
    """Momentum of Lion: average with one decay rate for the direction and one for the state:

        direction = beta1 m_{t-1} + (1 - beta1) d_t
        m_t = beta2 m_{t-1} + (1 - beta2) d_t,    m_{-1} = 0.

    Known instances: Lion's momentum, with beta1 < beta2; Muon's Nesterov momentum of mu, with
    beta1 = mu^2 and beta2 = mu; `ExponentialAverage`, with beta1 = beta2.

    Args:
        beta1: the factor of the past average in the direction, in [0, 1).
        beta2: the decay rate of the average, in [0, 1).
        buffer: the name of m in the state.

    Example:
        >>> rule = InterpolatedAverage(0.5, 0.75)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([1.0]), rule.init(weight))
        (tensor([-0.5000]), {'exp_avg': tensor([0.2500])})

    Source: Chen et al. 2023 (Lion), Algorithm 2.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    buffer: str = state_name("exp_avg")

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def tangent_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        past_average = state[self.buffer]
        direction = ema(past_average, update.direction, self.beta1)
        average = ema(past_average, update.direction, self.beta2)
        return update.replace(direction=direction), {self.buffer: average}


@dataclass(frozen=True)
class WeightAverage(Rule):
    """Average of the weights to evaluate with: a_1 = w_1, a_t = d_t a_{t-1} + (1 - d_t) w_t.

    d_t is `decay`; with a decay of 1 it is (t - 1) / t, and a is the mean of all weights. The
    average leaves out the weights of the first `start` steps, so that a decay of 1 averages the
    tail of a run. The direction does not change.

    The state holds the average up to the weight before the last step, since a rule runs before the
    manifold moves the weight. `eval_weight` adds the present weight.

    Args:
        decay: d, in [0, 1].
        start: the number of steps to leave out, in [0, inf).

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), WeightAverage(decay=1))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight, rule.eval_weight(weight, state)
        (tensor([3.]), tensor([2.]))

    Source: Polyak & Juditsky 1992; Izmailov et al. 2018 (SWA), arXiv:1803.05407.
    """

    decay: Scalar = hyper("[0, 1]", 0.999)
    start: Scalar = hyper("[0, inf)", 0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY, "average")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        previous_step = state[STEP_KEY] - 1
        return update, {"average": self._add(state["average"], update.weight, previous_step)}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        return self._add(state["average"], weight, state[STEP_KEY])

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "average": weight}

    def _add(self, average: Tensor, weight: Tensor, step: Tensor) -> Tensor:
        """Return the average with the weight after a step; up to `start`, the weight itself."""
        n_averaged = (step - self.start).clamp(min=1)
        mean_decay = (n_averaged - 1) / n_averaged
        decay = 0 * n_averaged + self.decay
        ema_decay = torch.where(n_averaged > 1, decay, 0 * decay)
        return ema(average, weight, torch.where(decay == 1, mean_decay, ema_decay))


@dataclass(frozen=True)
class ScheduleFree(Rule):
    """Step z, take gradients at y, and evaluate at an average x, which replaces a schedule:

        z_t = z_{t-1} - d_t,    x_t = (1 - c_t) x_{t-1} + c_t z_t,
        y_t = (1 - beta) z_t + beta x_t,
        c_t = s_t / (s_1 + ... + s_t),    s_t = t^power max(eta_1, ..., eta_t)^2.

    The model holds y.

    Args:
        beta: where y lies between z and x, in [0, 1).
        lr: eta, the step size of the `StepSize` before it, in [0, inf).
        power: exponent of t, in [0, inf); above 0, late iterates count more.

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

    uses_endpoint = True

    state_names = (STEP_KEY, "z", "x", "largest_lr", "share_sum")

    def init(self, weight: Tensor) -> State:
        zero = torch.zeros((), dtype=accumulation_dtype(weight.device), device=weight.device)
        scalars = {"largest_lr": zero, "share_sum": zero.clone()}
        return super().init(weight) | {"z": weight, "x": weight, **scalars}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        largest_lr = torch.maximum(state["largest_lr"], self.lr + 0 * state["largest_lr"])
        share = state[STEP_KEY] ** self.power * largest_lr**2
        share_sum = state["share_sum"] + share
        z = state["z"] - update.direction
        x = ema(z, state["x"], cast_like(safe_divide(share, share_sum), z))
        y = ema(z, x, 1 - self.beta)
        new_state = {"z": z, "x": x, "largest_lr": largest_lr, "share_sum": share_sum}
        return update.replace(direction=update.weight - y), new_state

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """Return x."""
        return state["x"]

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        zeros = {key: torch.zeros_like(state[key]) for key in ("largest_lr", "share_sum")}
        return {**state, "z": weight, "x": weight, **zeros}


@dataclass(frozen=True)
class PrimalAverage(Rule):
    """Step z, take gradients at y, and evaluate at an exponential average x of the iterates z:

        z_t = z_{t-1} - d_t,    x_t = gamma x_{t-1} + (1 - gamma) z_t,
        y_t = (1 - beta) z_t + beta x_t.

    The model holds y. With beta = gamma this is Nesterov's momentum in its primal form;
    `ScheduleFree` has a plain mean in place of the exponential one.

    Args:
        beta: where y lies between z and x, in [0, 1].
        gamma: decay rate of x, in [0, 1).

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1.0), PrimalAverage(0.5, 0.5))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight, state["z"], state["x"]
        (tensor([1.6250]), tensor([2.]), tensor([1.2500]))

    Source: Defazio et al. 2025 (Generalized Primal Averaging), arXiv:2512.17131.
    """

    beta: Scalar = hyper("[0, 1]")
    gamma: Scalar = hyper("[0, 1)")

    uses_endpoint = True

    state_names = ("z", "x")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | {"z": weight, "x": weight}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        z = state["z"] - update.direction
        x = ema(state["x"], z, self.gamma)
        y = ema(z, x, 1 - self.beta)
        return update.replace(direction=update.weight - y), {"z": z, "x": x}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """Return x."""
        return state["x"]

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "z": weight, "x": weight}


@dataclass(frozen=True)
class Lookahead(Rule):
    """After every k-th step, go back a part of the way since the last such step:

        s <- s + alpha (w - s),    w <- s.

    Args:
        alpha: the share of the way that remains, in [0, 1].
        every: k, a whole number in [1, inf).

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

    uses_endpoint = True

    state_names = (STEP_KEY, "slow")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | {"slow": weight}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        slow = state["slow"]
        fast = update.weight - update.direction
        goes_back = state[STEP_KEY] % self.every == 0
        slow = torch.where(goes_back, ema(slow, fast, 1 - self.alpha), slow)
        end = torch.where(goes_back, slow, fast)
        return update.replace(direction=update.weight - end), {"slow": slow}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """Return s."""
        return state["slow"]

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "slow": weight}


@dataclass(frozen=True)
class TrendLookahead(Rule):
    """Look ahead like Nesterov's momentum, but along an average of the steps:

        w_t = y_{t-1} - d_t,    m_t = gamma m_{t-1} + (1 - gamma) (w_t - w_{t-1}),
        y_t = w_t + beta m_t.

    The model holds y, at which the gradient is taken; `eval_weight` returns w.

    Args:
        beta: the distance ahead, in average steps, in [0, inf).
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

    uses_endpoint = True

    state_names = ("base", "trend")

    def init(self, weight: Tensor) -> State:
        return super().init(weight) | {"base": weight}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        base = update.weight - update.direction
        trend = ema(state["trend"], base - state["base"], self.gamma)
        ahead = add_scaled(base, self.beta, trend)
        return update.replace(direction=update.weight - ahead), {"base": base, "trend": trend}

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """Return w, the weight without the look ahead."""
        return state["base"]

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        return {**state, "base": weight, "trend": torch.zeros_like(state["trend"])}
