"""Adaptive step sizes: rules that divide the direction by the root of a second moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper, view
from spherenorm.numerics import (
    Scalar,
    affine,
    bias_corrections,
    cast_like,
    ema,
    ema_of_square,
    safe_sqrt,
    without_overflow,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import ViewLike


@dataclass(frozen=True)
class AdaptiveMoments(Rule):
    """Momentum and preconditioner of Adam; the first t is 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        v_t = beta2 v_{t-1} + (1 - beta2) d_t^2
        direction = (m_t / (1 - beta1^t)) / (sqrt(v_t / (1 - beta2^t)) + eps)

    With `nesterov` the numerator is beta1 m_t + (1 - beta1) d_t, as in the released AdamP: all of
    it is preconditioned, and the first step is about 1.9 times the step size.

    Args:
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the root of the second moment, in [0, inf).
        nesterov: look ahead by one averaged step.
        bias_correction: divide by 1 - beta^t; False leaves it out, as Algorithm 2 of the AdamP
            paper does.

    Example:
        >>> rule = AdaptiveMoments(0.9, 0.999)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([5.0]), rule.init(weight))[0].round(decimals=4)
        tensor([-1.])

    Source: Kingma and Ba 2015, Algorithm 1; the released AdamP.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    nesterov: bool = False
    bias_correction: bool = True

    state_names = (STEP_KEY, "exp_avg", "exp_avg_sq")
    tangent_names = ("exp_avg",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        incoming = update.direction
        average = ema(state["exp_avg"], incoming, self.beta1)
        square = ema_of_square(state["exp_avg_sq"], incoming, self.beta2)
        numerator = ema(average, incoming, self.beta1) if self.nesterov else average
        denominator = safe_sqrt(square)
        if self.bias_correction:
            # Move both divisions into the sum with eps, which is one operation on the tensor.
            correction1, correction2 = bias_corrections(state[STEP_KEY], self.beta1, self.beta2)
            denominator = affine(
                correction1 / correction2**0.5, denominator, correction1 * self.eps
            )
        else:
            denominator = denominator + cast_like(self.eps, denominator)
        notes = {**update.notes, "second_moment": square}
        new_state = {"exp_avg": average, "exp_avg_sq": square}
        return update.replace(direction=numerator / denominator, notes=notes), new_state


@dataclass(frozen=True)
class RootMeanSquare(Rule):
    """Preconditioner of RMSprop:

        v_t = alpha v_{t-1} + (1 - alpha) d_t^2
        direction = d_t / (sqrt(v_t) + eps)

    States have the names of torch.optim.RMSprop. The rule does not need the step count, which is
    there for the checkpoints of torch.optim.

    Args:
        alpha: decay rate of the second moment, in [0, 1).
        eps: added to the root of the second moment, in [0, inf).
        centered: reduce v_t by the square of the running mean of d.

    Example:
        >>> rule = RootMeanSquare(alpha=0.0, eps=0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([5.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Tieleman and Hinton 2012, lecture 6.5; Graves 2013, Eq. 38 to 41, for `centered`.
    """

    alpha: Scalar = hyper("[0, 1)", 0.99)
    eps: Scalar = hyper("[0, inf)", 1e-8)
    centered: bool = False

    @property
    def state_names(self) -> tuple[str, ...]:
        names = ("square_avg", "grad_avg") if self.centered else ("square_avg",)
        return (STEP_KEY, *names)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        incoming = update.direction
        square = ema_of_square(state["square_avg"], incoming, self.alpha)
        variance = square
        new_state = {"square_avg": square}
        if self.centered:
            mean = ema(state["grad_avg"], incoming, self.alpha)
            variance = torch.addcmul(square, mean, mean, value=-1)
            new_state["grad_avg"] = mean
        direction = incoming / (safe_sqrt(variance) + cast_like(self.eps, variance))
        notes = {**update.notes, "second_moment": variance}
        return update.replace(direction=direction, notes=notes), new_state


@dataclass(frozen=True)
class UnitMoments(Rule):
    """Momentum and preconditioner of AdamG: Adam's moments with one v per unit; the first t is 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        v_t = beta2 v_{t-1} + (1 - beta2) |d_t|^2
        direction = sqrt(1 - beta2^t) / (1 - beta1^t) m_t / sqrt(v_t + eps)

    One factor per unit does not turn m_t, so a tangent m_t gives a tangent direction.

    Args:
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the second moment, in [0, inf).
        view: splits the weight into its units.

    Example:
        >>> rule = UnitMoments(0.9, 0.99)
        >>> {name: tuple(value.shape) for name, value in rule.init(torch.ones(3, 4)).items()}
        {'step': (), 'exp_avg': (3, 4), 'exp_avg_sq': (3, 1)}

    Source: Cho and Lee 2017, Adam-G.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    view: ViewLike = view("channel")

    state_names = (STEP_KEY, "exp_avg", "exp_avg_sq")
    tangent_names = ("exp_avg",)

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        return {**state, "exp_avg_sq": torch.zeros_like(self.view.unit_sums(state["exp_avg"]))}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        incoming = update.direction
        average = ema(state["exp_avg"], incoming, self.beta1)
        squared_norm = self.view.inner(incoming, incoming)
        past_square = state["exp_avg_sq"]
        if past_square.shape != squared_norm.shape:
            # A state of another view might broadcast, and give a wrong result.
            raise ValueError(
                f"UnitMoments: view {self.view} needs 'exp_avg_sq' of shape "
                f"{tuple(squared_norm.shape)}, got {tuple(past_square.shape)}"
            )
        square = ema(past_square, without_overflow(squared_norm), self.beta2)
        correction1, correction2 = bias_corrections(state[STEP_KEY], self.beta1, self.beta2)
        correction = correction2**0.5 / correction1
        scale = cast_like(correction, square) / safe_sqrt(square + cast_like(self.eps, square))
        notes = {**update.notes, "second_moment": square}
        new_state = {"exp_avg": average, "exp_avg_sq": square}
        return update.replace(direction=scale * average, notes=notes), new_state
