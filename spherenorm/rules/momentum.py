"""Momentum and averages: rules that remember directions or weights of earlier steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper, state_name
from spherenorm.numerics import Scalar, add_scaled, bias_correction, cast_like, ema, is_zero
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
