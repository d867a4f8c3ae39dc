"""Preconditioners: rules that scale the direction by a running second moment."""

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
    """Momentum and preconditioner of Adam, t counted from 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        v_t = beta2 v_{t-1} + (1 - beta2) d_t^2
        direction = (m_t / (1 - beta1^t)) / (sqrt(v_t / (1 - beta2^t)) + eps)

    With `nesterov` the numerator m_t is replaced by beta1 m_t + (1 - beta1) d_t, as in the released
    AdamP: the whole numerator is preconditioned (its first step is then about 1.9 times the step
    size).

    Args:
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the root of the second moment, in [0, inf).
        nesterov: look ahead by one averaged step.
        bias_correction: False leaves out both divisions, as the AdamP paper's Algorithm 2 is
            printed.

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
        entering, step = update.direction, state[STEP_KEY]
        average = ema(state["exp_avg"], entering, self.beta1)
        square = ema_of_square(state["exp_avg_sq"], entering, self.beta2)
        numerator = ema(average, entering, self.beta1) if self.nesterov else average
        length = safe_sqrt(square)
        if self.bias_correction:
            # Both divisions join the sum, which then is one operation.
            first, second = bias_corrections(step, self.beta1, self.beta2)
            length = affine(first / second**0.5, length, first * self.eps)
        else:
            length = length + cast_like(self.eps, length)
        direction = numerator / length
        notes = {**update.notes, "second_moment": square}
        new = {"exp_avg": average, "exp_avg_sq": square}
        return update.replace(direction=direction, notes=notes), new


@dataclass(frozen=True)
class RootMeanSquare(Rule):
    """Preconditioner of RMSprop:

        v_t = alpha v_{t-1} + (1 - alpha) d_t^2
        direction = d_t / (sqrt(v_t) + eps)

    The state has the names of torch.optim.RMSprop's, whose checkpoints count the steps.

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
        return (STEP_KEY, *names)  # counted for the checkpoints of torch.optim alone

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        entering = update.direction
        square = ema_of_square(state["square_avg"], entering, self.alpha)
        variance, new = square, {"square_avg": square}
        if self.centered:
            mean = ema(state["grad_avg"], entering, self.alpha)
            variance = torch.addcmul(square, mean, mean, value=-1)
            new["grad_avg"] = mean
        direction = entering / (safe_sqrt(variance) + cast_like(self.eps, variance))
        notes = {**update.notes, "second_moment": variance}
        return update.replace(direction=direction, notes=notes), new


@dataclass(frozen=True)
class UnitMoments(Rule):
    """Momentum and preconditioner of AdamG: Adam's moments with one v per unit, t counted from 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        v_t = beta2 v_{t-1} + (1 - beta2) |d_t|^2
        direction = sqrt(1 - beta2^t) / (1 - beta1^t) m_t / sqrt(v_t + eps)

    A scalar per unit leaves the direction of m_t, hence its tangency, alone.

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
        entering, step = update.direction, state[STEP_KEY]
        average = ema(state["exp_avg"], entering, self.beta1)
        squared_norm = self.view.inner(entering, entering)
        past = state["exp_avg_sq"]
        if past.shape != squared_norm.shape:  # made for other units, against which it broadcasts
            shapes = f"{tuple(squared_norm.shape)}, got {tuple(past.shape)}"
            raise ValueError(f"UnitMoments: view {self.view} needs 'exp_avg_sq' of shape {shapes}")
        square = ema(past, without_overflow(squared_norm), self.beta2)
        first, second = bias_corrections(step, self.beta1, self.beta2)
        correction = second**0.5 / first
        scale = cast_like(correction, square) / safe_sqrt(square + cast_like(self.eps, square))
        notes = {**update.notes, "second_moment": square}
        new = {"exp_avg": average, "exp_avg_sq": square}
        return update.replace(direction=scale * average, notes=notes), new
