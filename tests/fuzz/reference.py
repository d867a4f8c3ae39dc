"""The trajectory that every path must give: the rule's own code in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.cases import STEPS, Case

Place = tuple[int, int]
"""The index of a group, and of a weight in it."""
State = dict[str, Tensor]
Moment = dict[Place, tuple[Tensor, State]]
"""All weights with their states after a step."""
Gradients = list[dict[Place, Tensor | None]]


@dataclass(frozen=True)
class Trajectory:
    moments: list[Moment]
    gradients: Gradients


def reference(
    case: Case, given: Gradients | None = None, nudge: Callable[[Tensor], Tensor] | None = None
) -> Trajectory:
    """Eight steps of the case.

    Args:
        given: the gradients; by default those that the case draws at the weights of this very run.
        nudge: moves weights, gradients, states and numbers by a rounding error before each step.
    """
    nudge = nudge or (lambda x: x)
    weights = {
        (g, i): nudge(weight.first())
        for g, group in enumerate(case.groups)
        for i, weight in enumerate(group.weights)
    }
    states: dict[Place, State] = {place: {} for place in weights}
    moments: list[Moment] = []
    gradients: Gradients = given or [_Drawn(case, step, weights) for step in range(STEPS)]
    for step, grads in enumerate(gradients):
        for place, weight in weights.items():
            grad, group = grads[place], case.groups[place[0]]
            if grad is not None and group.since <= step:
                moved = _step(case, group.numbers[step], weight, grad, states[place], nudge)
                weights[place], states[place] = moved
        moments.append({p: (weight.clone(), dict(states[p])) for p, weight in weights.items()})
    return Trajectory(moments, gradients)


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
    working = torch.promote_types(weight.dtype, torch.float32)
    # Of a number below 1 a rule takes 1 - beta in double precision; the others scale entries.
    moved = {
        name: _nudged_number(numbers[name], torch.float64 if "1" in interval else working, nudge)
        for name, interval in case.structure.numbers
    }
    rule = case.structure.recipe(**moved)
    if state.keys() != set(rule.state_names):  # at a first step, and when a rule is switched on
        state = {name: state.get(name, fresh) for name, fresh in rule.init(weight).items()}
    state = {name: value if name == "step" else nudge(value) for name, value in state.items()}
    grad = nudge((-grad if case.maximize else grad).to(working))
    weight, state = rule.step(weight, grad.clone(), state)
    return nudge(weight), state


def _nudged_number(
    value: float | Tensor, precision: torch.dtype, nudge: Callable[[Tensor], Tensor]
) -> float | Tensor:
    """0 and 1 are exact, and may be ends of an interval."""
    if isinstance(value, int) or value in (0, 1):
        return value
    return value * nudge(torch.ones((), dtype=precision)).item()
