"""The trajectory that every path must give: the rule's own code in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import working, working_dtype
from tests.fuzz.cases import STEPS, Case

Place = tuple[int, int]
"""The index of a group, and of a weight in it."""
State = dict[str, Tensor]
Moment = dict[Place, tuple[Tensor, State]]
"""All weights with their states after a step."""
Gradients = list[dict[Place, Tensor | None]]


@dataclass(frozen=True)
class Trajectory:
    """Attributes:
    rounding_errors: by how many of them the inputs of a nudged run moved.
    """

    moments: list[Moment]
    gradients: Gradients
    rounding_errors: int = 1


def reference(
    case: Case,
    given: Gradients | None = None,
    path: Sequence[Moment] | None = None,
    nudge: Callable[[Tensor], Tensor] | None = None,
) -> Trajectory:
    """Eight steps of the case.

    Args:
        given: the gradients; by default those that the case draws at the weights of this very run.
        path: the moments of a path, from each of which the next step starts here; by default it
            starts from this very run's.
        nudge: moves weights, gradients, states and numbers by a rounding error before each step:
            weights in the precision of the rule, or in their own where this very run rounded them.
    """
    nudge = nudge or (lambda x: x)
    weights = {
        (g, i): weight.first()
        for g, group in enumerate(case.groups)
        for i, weight in enumerate(group.weights)
    }
    _share(case, weights, case.overlap and case.overlap[1])
    states: dict[Place, State] = {place: {} for place in weights}
    moments: list[Moment] = []
    gradients: Gradients = given or [_Drawn(case, step, weights) for step in range(STEPS)]
    for step, grads in enumerate(gradients):
        if path is not None and step:
            weights.update({place: weight for place, (weight, _) in path[step - 1].items()})
            states.update({place: dict(state) for place, (_, state) in path[step - 1].items()})
        for place, weight in weights.items():
            grad, group = grads[place], case.groups[place[0]]
            if grad is not None and group.since <= step:
                start = nudge(weight if path is None else working(weight))
                moved = _step(case, group.numbers[step], start, grad, states[place], nudge)
                weights[place], states[place] = moved[0].to(weight.dtype), moved[1]
                _share(case, weights, place)
        moments.append({p: (weight.clone(), dict(states[p])) for p, weight in weights.items()})
    return Trajectory(moments, gradients)


def _share(case: Case, weights: dict[Place, Tensor], moved: Place | None) -> None:
    """Let the other one of two weights that overlap see the entries of the one that has moved."""
    if case.overlap is None or moved not in case.overlap[:2]:
        return
    one, other, count = case.overlap
    first, last = weights[one].reshape(-1), weights[other].reshape(-1)
    if moved == one:
        weights[other] = torch.cat([first[-count:], last[count:]]).view(weights[other].shape)
    else:
        weights[one] = torch.cat([first[:-count], last[:count]]).view(weights[one].shape)


class _Drawn(dict[Place, Tensor | None]):
    """The gradients of one step, drawn at the weights when they are asked for."""

    def __init__(self, case: Case, step: int, weights: dict[Place, Tensor]) -> None:
        self.case, self.step, self.weights = case, step, weights

    def __missing__(self, place: Place) -> Tensor | None:
        g, i = place
        if self.case.sweep and g:  # the points of a sweep have the first one's
            self[place] = self[0, i]
        else:
            drawn = self.case.groups[g].weights[i]
            self[place] = drawn.gradient(self.weights[place], self.step)
        return self[place]


def _step(
    case: Case,
    numbers: dict[str, Any],
    weight: Tensor,
    grad: Tensor,
    state: State,
    nudge: Callable[[Tensor], Tensor],
) -> tuple[Tensor, State]:
    working = working_dtype(weight.dtype)
    # Of a number below 1 a rule takes 1 - beta in double precision; the others scale entries.
    moved = {
        name: _nudged_number(numbers[name], torch.float64 if interval.high == 1 else working, nudge)
        for name, interval in case.structure.numbers
    }
    rule = case.structure.recipe(**moved)
    if state.keys() != set(rule.state_names):  # at a first step, and when a rule is switched on
        state = {name: state.get(name, fresh) for name, fresh in rule.init(weight).items()}
    state = {name: value if name == "step" else nudge(value) for name, value in state.items()}
    grad = nudge((-grad if case.maximize else grad).to(working))
    return rule.step(weight, grad.clone(), state)


def _nudged_number(
    value: float | Tensor, precision: torch.dtype, nudge: Callable[[Tensor], Tensor]
) -> float | Tensor:
    """0 and 1 are exact, and may be ends of an interval. Numbers of numpy count as Python's."""
    value = float(value) if isinstance(value, np.generic) else value
    if isinstance(value, int) or value in (0, 1):
        return value
    return value * nudge(torch.ones((), dtype=precision)).item()
