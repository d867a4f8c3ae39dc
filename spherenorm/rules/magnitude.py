"""Magnitude and direction apart: the gains of a weight, stepped by a rule of their own.

The model holds w = g v alone. `Gain` takes the gains g out of it, hands v and g to the rules within
it, and puts the new weight together. Known instances: Muown, where v has a length that w does not
show; AngularMuown, where v has units of norm 1; MD decoupling, a `Gain` for rows around one for
columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spherenorm.fields import choice, state_name, view
from spherenorm.numerics import safe_divide, to_compute_dtype
from spherenorm.rule import Rule, State, Update
from spherenorm.views import ViewLike, has_zero

Start = Literal["norm", "one"]
_ONE = math.log(math.e - 1)
"""The softplus of this is 1."""
_DIRECTION, _GAIN = 0, 1
"""The positions of the two rules among the children of a `Gain`."""


@dataclass(frozen=True)
class Gain(Rule):
    """A gain for each unit, and the rest of the weight, each stepped by a rule of its own: w = g v.

    With G the gradient by w, that by v is g G, and that by g is <v, G>:

        v <- v - direction(v, g G),    g <- g - gain(g, <v, G>),    w <- g v.

    With `free`, w = g v / |v|, so that |v| sets the angle of a step and nothing else. The gradient
    by v is g / |v| times the tangent part of G: put `RadialProjection` first into `direction`.

    Args:
        direction: steps v, shaped as the weight.
        gain: steps g, one entry for each unit.
        view: splits the weight into its units.
        start: "norm", g starts at |w|; "one", g is the softplus of the number that `gain` steps: it
            starts at 1, and stays positive.
        free: v starts at w, and keeps a length of its own; for a gain that starts at |w|.
        buffer: the name of g, or of the number of which it is the softplus, in the state.

    Raises:
        ValueError: a unit of the weight is 0, and the gain starts at its norm; `free` with a gain
            that starts at one; a rule within it measures all weights.

    Example:
        >>> rule = Gain(StepSize(0.0), StepSize(1.0), "layer")
        >>> weight = torch.tensor([3.0, 4.0])
        >>> rule.step(weight, torch.tensor([1.0, 0.0]), rule.init(weight))[0].norm()
        tensor(4.4000)

    Source: Hägele et al. 2026 (MD decoupling), arXiv:2606.25971; arXiv:2605.10797 (Muown).
    """

    direction: Rule
    gain: Rule
    view: ViewLike = view("channel")
    start: Start = choice("norm", "one")
    free: bool = False
    buffer: str = state_name("gain")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.free and self.start == "one":
            norms = "w = g v / |v| would move each unit to a norm of 1"
            raise ValueError(f'Gain: free=True needs start="norm", got "one": {norms}')
        if self.direction.needs_global_sums or self.gain.needs_global_sums:
            raise ValueError("Gain: a rule that measures all weights does not see them within it")

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer, "length") if self.free else (self.buffer,)

    def init(self, weight: Tensor) -> State:
        weight = to_compute_dtype(weight)
        norm = self.view.norm(weight)
        if self.start == "norm" and weight.numel() and has_zero(norm):
            instead = "start from other values, or give the weight another recipe"
            raise ValueError(f"Gain: a unit of view {self.view} is 0, without direction; {instead}")
        gain = norm.clone() if self.start == "norm" else torch.full_like(norm, _ONE)
        state = {self.buffer: gain, "length": norm} if self.free else {self.buffer: gain}
        state |= self.init_child(_DIRECTION, weight / _safe(self._scale(state)))
        return state | self.init_child(_GAIN, gain)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        scale = self._scale(state)
        rest = update.weight / _safe(scale)
        moved, new = self._stepped(_DIRECTION, update, rest, scale * update.direction, state)
        slope = self.view.inner(rest, update.direction)
        if self.free:
            slope = safe_divide(slope, state["length"])
            new["length"] = self.view.norm(moved)
        if self.start == "one":
            slope = slope * torch.sigmoid(state[self.buffer])  # the derivative of softplus
        gain = state[self.buffer]
        new[self.buffer], more = self._stepped(_GAIN, update, gain, slope, state)
        change = update.weight - self._scale(new) * moved
        return update.replace(direction=change), {**new, **more}

    def restart_averages(self, weight: Tensor, state: State) -> State:
        state = dict(state)
        if self.start == "norm":
            norm = self.view.norm(weight)
            state[self.buffer] = torch.where(norm > 0, norm, state[self.buffer])
        rest = weight / _safe(self._scale(state))
        state |= self.restart_child(_DIRECTION, rest, state)
        return state | self.restart_child(_GAIN, state[self.buffer], state)

    def _stepped(
        self, child: int, update: Update, weight: Tensor, grad: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """Return a factor of the weight after the step of a child rule, and the child's states."""
        factor = update.replace(weight=weight, grad=grad, direction=grad)
        after, changes = self.update_child(child, factor, state)
        return weight - after.direction, changes

    def _scale(self, state: State) -> Tensor:
        """w / v for each unit."""
        gain = state[self.buffer] if self.start == "norm" else softplus(state[self.buffer])
        return safe_divide(gain, state["length"]) if self.free else gain


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1, scale)
