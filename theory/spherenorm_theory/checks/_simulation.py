"""The one simulation loop: rules step the weights of a problem in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from spherenorm import Recipe, Rule, State, bind
from spherenorm.support import unknown_name
from spherenorm_theory.checks._problems import Source

Schedule = Callable[[float], float]
"""From the share of the run that is over, in [0, 1), to a factor of the learning rate."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share: 1.0,
    "warm-up": lambda share: min(1.0, 0.01 + 4 * share),
    "cosine": lambda share: 0.5 * (1 + cos(pi * share)),
}
"""Schedules by name: a linear warm-up over the first quarter, half a cosine down to 0."""


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by its name, or itself.

    Raises:
        ValueError: no schedule has the name.
    """
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    return SCHEDULES[schedule]


@dataclass(frozen=True)
class ScheduledHyperparameters:
    """A recipe's hyper-parameters at each step of a run.

    Attributes:
        recipe: of the run.
        base: all hyper-parameters, before the schedule.
        schedule: multiplies the learning rate `lr`.
        steps: how many.
    """

    recipe: Recipe
    base: Mapping[str, Any]
    schedule: Schedule
    steps: int

    def at(self, time: int) -> dict[str, Any]:
        """The hyper-parameters of one step.

        Raises:
            ValueError: there is no learning rate to schedule.
        """
        factor = self.schedule(time / self.steps)
        if factor == 1:
            return dict(self.base)
        if "lr" not in self.base:
            raise ValueError(f"{bind(self.recipe).name} has no hyper-parameter lr to schedule")
        return {**self.base, "lr": factor * self.base["lr"]}

    def rules(self) -> Iterator[Rule]:
        """The rule of each step."""
        return (self.recipe(**self.at(time)) for time in range(self.steps))


@dataclass(frozen=True)
class Transition:
    """One step of one weight.

    Attributes:
        weight, grad, state: before the step.
        new_weight, new_state: after it.
    """

    weight: Tensor
    grad: Tensor
    state: State
    new_weight: Tensor
    new_state: State


def simulate(
    rule: Rule | Iterable[Rule], source: Source, steps: int, seed: int
) -> Iterator[dict[str, Transition]]:
    """Run a rule on a source of gradients; one transition per weight and step.

    Args:
        rule: steps every weight; or the rule of each step, of one recipe under a schedule.
        source: gives the initial weights, and the gradients at each step.
        steps: how many.
        seed: of the generator that the source draws from.
    """
    generator = torch.Generator().manual_seed(seed)
    weights, states = source.start(generator), dict[str, State]()
    rules = repeat(rule, steps) if isinstance(rule, Rule) else rule
    for present in rules:
        states = states or {name: present.init(weight) for name, weight in weights.items()}
        grads, transitions = source.gradients(weights, generator), {}
        for name, weight in weights.items():
            with torch.no_grad():  # as optimizers take their steps
                new, state = present.step(weight, grads[name], states[name])
            transitions[name] = Transition(weight, grads[name], states[name], new, state)
        yield transitions
        weights = {name: each.new_weight for name, each in transitions.items()}
        states = {name: each.new_state for name, each in transitions.items()}
