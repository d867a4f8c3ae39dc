"""Momentum: rules that mix the direction with the directions of earlier steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spherenorm.geometry import Move
from spherenorm.numerics import averaged, cast_like, is_zero, plus_scaled
from spherenorm.rule import Rule, Scalar, State, apply, hyper, scalar_state
from spherenorm.update import Update

__all__ = ["ExponentialAverage", "FeedbackMomentum", "HeavyBall"]


@dataclass(frozen=True)
class HeavyBall(Rule):
    """Momentum of SGD: p_t = beta p_{t-1} + (1 - dampening) d_t, with p_{-1} = 0 (paper, Section 2.4).

    The direction becomes p_t, or d_t + beta p_t with `nesterov`.

    Args:
        beta: the momentum, in [0, 1).
        dampening: 1 minus the share of the new direction that enters p.
        nesterov: look ahead by one decayed step.
        undamped_start: as torch.optim.SGD, take d_t whole while p is still exactly 0.
        buffer: the name of p in the state: "momentum" in the `adamp` package, "momentum_buffer" in torch.optim.
    """

    beta: Scalar = hyper("[0, 1)")
    dampening: Scalar = hyper("[0, 1]", 0.0)
    nesterov: bool = False
    undamped_start: bool = False
    buffer: str = "momentum"

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        past, entering = state[self.buffer], update.direction
        if not is_zero(self.dampening):
            entering = cast_like(1 - self.dampening, entering) * entering
            if self.undamped_start:
                entering = torch.where((past == 0).all(), update.direction, entering)
        momentum = plus_scaled(entering, self.beta, past)
        direction = (
            plus_scaled(update.direction, self.beta, momentum) if self.nesterov else momentum
        )
        return replace(update, direction=direction), {self.buffer: momentum}

    def transport(self, state: State, move: Move) -> State:
        return {self.buffer: move.transport(state[self.buffer])}


@dataclass(frozen=True)
class FeedbackMomentum(Rule):
    """Momentum whose memory is what `rule` made of it: p_t = rule(beta p_{t-1} + (1 - dampening) d_t).

    With a projection as `rule` this is the released SGDP without Nesterov momentum, whose in-place projection writes
    into its momentum buffer; the paper's Algorithm 1 remembers the unprojected p_t, which is `HeavyBall` before the projection.
    """

    rule: Rule
    beta: Scalar = hyper("[0, 1)")
    dampening: Scalar = hyper("[0, 1]", 0.0)
    buffer: str = "momentum"

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer, *self.rule.state_names)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        entering = cast_like(1 - self.dampening, update.direction) * update.direction
        momentum = plus_scaled(entering, self.beta, state[self.buffer])
        update, inner = apply(self.rule, replace(update, direction=momentum), state)
        return update, {self.buffer: update.direction, **inner}

    def transport(self, state: State, move: Move) -> State:
        inner = {name: state[name] for name in self.rule.state_names}
        return {self.buffer: move.transport(state[self.buffer]), **self.rule.transport(inner, move)}


@dataclass(frozen=True)
class ExponentialAverage(Rule):
    """Momentum of Adam: m_t = beta m_{t-1} + (1 - beta) d_t, with m_{-1} = 0; the direction becomes m_t.

    With `bias_correction` the direction is m_t / (1 - beta^t), t counted from 1 (Kingma and Ba 2015, Algorithm 1).
    """

    beta: Scalar = hyper("[0, 1)")
    bias_correction: bool = False

    tangent_names = ("exp_avg",)

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("step", "exp_avg") if self.bias_correction else ("exp_avg",)

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        return {**state, "step": scalar_state(weight)} if self.bias_correction else state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = averaged(state["exp_avg"], update.direction, self.beta)
        if not self.bias_correction:
            return replace(update, direction=average), {"exp_avg": average}
        step = state["step"] + 1
        corrected = average / cast_like(1 - self.beta**step, average)
        return replace(update, direction=corrected), {"step": step, "exp_avg": average}
