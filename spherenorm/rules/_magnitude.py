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

from spherenorm._chain import Combination
from spherenorm._fields import ConvertedField, ViewField, choice, view
from spherenorm._hooks import State
from spherenorm._numerics import ratio, readable, working
from spherenorm._rule import Rule
from spherenorm._step import apply
from spherenorm._tree import Part
from spherenorm._update import Update
from spherenorm._views import replicate

Start = Literal["norm", "one"]
_ONE = math.log(math.e - 1)
"""The softplus of this is 1."""


@dataclass(frozen=True)
class Gain(Combination):
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
            that starts at one; a rule within it has a hook that is for the model's weight.

    Example:
        >>> rule = Gain(StepSize(0.0), StepSize(1.0), "layer")
        >>> weight = torch.tensor([3.0, 4.0])
        >>> rule.step(weight, torch.tensor([1.0, 0.0]), rule.init(weight))[0].norm()
        tensor(4.4000)

    Source: Hägele et al. 2026 (MD decoupling), arXiv:2606.25971; arXiv:2605.10797 (Muown).
    """

    direction: Rule
    gain: Rule
    view: ViewField = view("channel")
    start: ConvertedField[Start, Start] = choice("norm", "one")
    free: bool = False
    buffer: str = "gain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.free and self.start == "one":
            norms = "w = g v / |v| would move each unit to a norm of 1"
            raise ValueError(f'Gain: free=True needs start="norm", got "one": {norms}')
        for rule in (each for child in self.children() for each in child.tree()):
            for hook in ("after", "measure", "evaluate_at"):
                if rule.defines(hook):
                    where = f"{hook} of {type(rule).__name__} is for the model's weight"
                    raise ValueError(f"Gain: {where}, which it does not see within a Gain")

    @property
    def own_names(self) -> tuple[str, ...]:
        return (self.buffer, "length") if self.free else (self.buffer,)

    def check_weight(self, weight: Tensor) -> None:
        """Refuse a weight with a unit of 0, which has no direction.

        Raises:
            ValueError: there is one, and the gain starts at its norm.
        """
        if self.start == "one" or weight.is_meta or not weight.numel():
            return
        if bool((self.view.norm(working(replicate(weight.detach()))) == 0).any()):
            instead = "start from other values, or give the weight another recipe"
            raise ValueError(f"Gain: a unit of view {self.view} is 0, without direction; {instead}")

    def init(self, weight: Tensor) -> State:
        weight = working(weight)
        if readable(weight.detach()):
            self.check_weight(weight)
        norm = self.view.norm(weight)
        gain = norm.clone() if self.start == "norm" else torch.full_like(norm, _ONE)
        state = {self.buffer: gain, "length": norm} if self.free else {self.buffer: gain}
        direction, own = self.held(weight)
        rest = weight / _safe(self._scale(state))
        return state | _init(direction, rest) | _init(own, gain)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction, own = self.held(update.weight)
        scale = self._scale(state)
        rest = update.weight / _safe(scale)
        moved, new = _stepped(direction, update, rest, scale * update.direction, state)
        slope = self.view.inner(rest, update.direction)
        if self.free:
            slope = ratio(slope, state["length"])
            new["length"] = self.view.norm(moved)
        if self.start == "one":
            slope = slope * torch.sigmoid(state[self.buffer])  # the derivative of softplus
        new[self.buffer], more = _stepped(own, update, state[self.buffer], slope, state)
        change = update.weight - self._scale(new) * moved
        return update.changed(direction=change), {**new, **more}

    def _scale(self, state: State) -> Tensor:
        """w / v for each unit."""
        gain = state[self.buffer] if self.start == "norm" else softplus(state[self.buffer])
        return ratio(gain, state["length"]) if self.free else gain


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1, scale)


def _init(part: Part, weight: Tensor) -> State:
    """The states of a rule, without the counter, which the outermost chain keeps."""
    own = part.rule.init(weight)
    return part.renamed({key: own[key] for key in part.keys})


def _stepped(
    part: Part, update: Update, weight: Tensor, grad: Tensor, state: State
) -> tuple[Tensor, State]:
    """A factor after a step of its rule, and the rule's new states."""
    given = update.changed(weight=weight, grad=grad, direction=grad)
    after, new = apply(part, given, state)
    return weight - after.direction, new
