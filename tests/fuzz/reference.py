"""The trajectory that every path must give: the rule's own code in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


def reference(case: Case, given: Gradients | None = None, nudge: Callable[[Tensor], Tensor] | None = None) -> Trajectory:
    """Eight steps of the case.

    Args:
        given: the gradients; by default those that the case draws at the weights of this very run.
        nudge: moves weights, gradients, states and numbers by a rounding error before each step.
    """
    nudge = nudge or (lambda x: x)
    weights = {(g, i): nudge(weight.first()) for g, group in enumerate(case.groups) for i, weight in enumerate(group.weights)}
    states: dict[Place, State] = {}
    moments, gradients = [], []
    for step in range(STEPS):
        gradients.append({} if given is None else given[step])
        moment = {}
        for place, weight in weights.items():
            group = case.groups[place[0]]
            if given is None:
                first = gradients[-1].get((0, place[1])) if case.sweep else None
                gradients[-1][place] = group.weights[place[1]].gradient(weight, step) if first is None else first
            grad = gradients[-1][place]
            if grad is not None and group.since <= step:
                numbers = dict(group.numbers[step])
                for name, interval in case.structure.numbers:
                    # Of these, a rule takes 1 - beta in double precision; the others multiply entries in the entries'.
                    precision = torch.float64 if "1" in interval or weight.dtype is torch.float64 else torch.float32
                    numbers[name] = _nudged_number(numbers[name], precision, nudge)
                rule = case.structure.recipe(**numbers)
                state = states.get(place, {})
                if state.keys() != set(rule.state_names):  # at a first step, and when a rule is switched on
                    state = {name: state.get(name, fresh) for name, fresh in rule.init(weight).items()}
                state = {name: value if name == "step" else nudge(value) for name, value in state.items()}
                grad = nudge(-grad if case.maximize else grad)
                weight, states[place] = rule.step(weight, grad.clone(), state)
                weights[place] = weight = nudge(weight)
            moment[place] = weight.clone(), {name: value.clone() for name, value in states.get(place, {}).items()}
        moments.append(moment)
    return Trajectory(moments, gradients)


def _nudged_number(value: float | Tensor, precision: torch.dtype, nudge: Callable[[Tensor], Tensor]) -> float | Tensor:
    """0 and 1 are exact, and may be ends of an interval."""
    if isinstance(value, int) or value in (0, 1):
        return value
    one = torch.ones((), dtype=precision)
    return value * nudge(one).item()
