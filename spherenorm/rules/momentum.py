"""Momentum: rules that mix the direction with the directions of earlier steps."""

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
        dampening: 1 minus the share of the new direction that enters p, in [0, 1].
        nesterov: look ahead by one decayed step.
        undamped_start: take d_t whole while p is still exactly 0, as torch.optim.SGD does.
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
        past, entering = state[self.buffer], update.direction
        if not is_zero(self.dampening):
            entering = cast_like(1 - self.dampening, entering) * entering
            if self.undamped_start:
                entering = torch.where((past == 0).all(), update.direction, entering)
        momentum = add_scaled(entering, self.beta, past)
        direction = momentum
        if self.nesterov:
            direction = add_scaled(update.direction, self.beta, momentum)
        return update.replace(direction=direction), {self.buffer: momentum}


@dataclass(frozen=True)
class FeedbackMomentum(Rule):
    """Momentum that remembers the result of a rule: p_t = rule(beta p_{t-1} + (1 - dampening) d_t).

    With a projection as `rule` this is the released SGDP without Nesterov momentum, which projects
    its momentum buffer in place. The paper's Algorithm 1 remembers the unprojected p_t, which is
    `HeavyBall` before the projection.

    Args:
        rule: applied to the momentum; its states are part of this rule's.
        beta: the momentum, in [0, 1).
        dampening: 1 minus the share of the new direction that enters p, in [0, 1].
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
        entering = cast_like(1 - self.dampening, update.direction) * update.direction
        momentum = add_scaled(entering, self.beta, state[self.buffer])
        update, inner = self.update_child(0, update.replace(direction=momentum), state)
        return update, {self.buffer: update.direction, **inner}


@dataclass(frozen=True)
class ExponentialAverage(Rule):
    """Momentum of Adam: m_t = beta m_{t-1} + (1 - beta) d_t, with m_{-1} = 0.

    The direction becomes m_t, or m_t / (1 - beta^t) with `bias_correction`, t counted from 1.

    Args:
        beta: the decay rate of the average, in [0, 1).
        bias_correction: divide by the weights' sum, which is 1 in the limit.

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
    """An average that is read before the direction has entered it as much as it will:

        direction = beta1 m_{t-1} + (1 - beta1) d_t
        m_t = beta2 m_{t-1} + (1 - beta2) d_t,    m_{-1} = 0.

    Known instances: Lion's momentum, with beta1 < beta2; Muon's Nesterov momentum of mu, with
    beta1 = mu^2 and beta2 = mu; `ExponentialAverage`, with beta1 = beta2.

    Args:
        beta1: the share of the past in the direction, in [0, 1).
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
        past = state[self.buffer]
        direction = ema(past, update.direction, self.beta1)
        average = ema(past, update.direction, self.beta2)
        return update.replace(direction=direction), {self.buffer: average}
