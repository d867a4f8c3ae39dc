"""The length of the direction, set unit by unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spherenorm.fields import choice, hyper, view
from spherenorm.numerics import (
    Scalar,
    bias_correction,
    cast_like,
    ema,
    finite_or,
    is_zero,
    safe_divide,
    safe_sqrt,
    without_overflow,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import ViewLike

Length = Literal["one", "weight"]


@dataclass(frozen=True)
class NormalizedUpdate(Rule):
    """Give the direction of each unit a length of 1, or of |w|:

        d / |d|    or    |w| d / |d|.

    With a memory, an average over steps takes the place of |d|:

        v_t = beta v_{t-1} + (1 - beta) |d|^2,    |d| <- sqrt(v_t / (1 - beta^t)) + eps.

    Known instances: "channel" normalizes rows and "dim=1" columns; "layer" with `length="weight"`
    is the relative update of LARS, LAMB and Hyperball; "channel" with a memory is the second moment
    of NorMuon's neurons and the average of the rotational optimizers. A direction of 0 stays 0. A
    zero unit under `length="weight"` keeps its direction, as LAMB has it, so that it can grow.

    Args:
        view: splits the weight into its units.
        length: of the result, "one" or "weight".
        beta: decay rate of the average, in [0, 1); at the Python number 0 there is no state.
        eps: added to the length that is divided by, in [0, inf).

    Example:
        >>> rule = chain(NormalizedUpdate("channel"))
        >>> rule.step(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), {})[0]
        tensor([[-0.6000, -0.8000]])

    Source: You et al. 2017 (LARS); Li et al. 2025 (NorMuon); Kosson et al. 2024 (rotational
    optimizers), Algorithm 1.
    """

    view: ViewLike = view("layer")
    length: Length = choice("one", "weight")
    beta: Scalar = hyper("[0, 1)", 0.0)
    eps: Scalar = hyper("[0, inf)", 0.0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return () if is_zero(self.beta) else (STEP_KEY, "squared_length")

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        if state:
            state["squared_length"] = torch.zeros_like(self.view.unit_sums(state["squared_length"]))
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction, new = update.direction, {}
        squared = self.view.inner(direction, direction)
        if not is_zero(self.beta):
            squared = ema(state["squared_length"], without_overflow(squared), self.beta)
            new["squared_length"] = squared
            squared = squared / cast_like(bias_correction(self.beta, state[STEP_KEY]), squared)
        length = safe_sqrt(squared) + cast_like(self.eps, squared)
        if self.length == "weight":
            norm = self.view.norm(update.weight)
            scale = torch.where(norm > 0, safe_divide(norm, length), 1)
        else:
            scale = safe_divide(torch.ones_like(length), length)
        return update.replace(direction=scale * direction), new


@dataclass(frozen=True)
class Graft(Rule):
    """Apply a rule, and give its direction the length that the direction had before.

    Args:
        rule: applied to the direction; its states are part of this rule's.
        view: splits the weight into the units whose length stays.

    Example:
        >>> rule = Graft(RadialProjection("layer"))
        >>> rule.step(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 4.0]), {})[0]
        tensor([ 2., -5.])

    Source: Prieto et al. 2025 (OrthoGrad); Li et al. 2025 (NorMuon).
    """

    rule: Rule
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        before = self.view.norm(update.direction)
        update, state = self.update_child(0, update, state)
        scale = finite_or(safe_divide(before, self.view.norm(update.direction)), 1)
        return update.replace(direction=scale * update.direction), state
