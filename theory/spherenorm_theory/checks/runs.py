"""The one simulation loop, and the numbers of a law along a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from math import cos, pi
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Recipe, Rule, State, View, as_view, bind
from spherenorm.support import unknown_name
from spherenorm_theory.algebra.symbols import Norm
from spherenorm_theory.algebra.values import Array, Values
from spherenorm_theory.checks.problems import Problem, Source
from spherenorm_theory.laws.evaluate import Inputs, read_step
from spherenorm_theory.laws.law import Law
from spherenorm_theory.laws.split import CROSS
from spherenorm_theory.laws.step import S, W

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


def scheduled(
    recipe: Recipe, base: Mapping[str, Any], schedule: Schedule, steps: int
) -> list[dict[str, Any]]:
    """The hyper-parameters of a recipe at each step of a run, of which the rate is scheduled.

    Raises:
        ValueError: there is no learning rate to schedule.
    """
    factors = [schedule(time / steps) for time in range(steps)]
    if "lr" not in base and any(factor != 1 for factor in factors):
        raise ValueError(f"{bind(recipe).name} has no hyper-parameter lr to schedule")
    return [{**base, "lr": x * base["lr"]} if x != 1 else dict(base) for x in factors]


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


@dataclass(frozen=True)
class Course:
    """One weight's run.

    Attributes:
        view: splits the weight into units.
        inputs: of each step.
        after: the weight after each step.
        numbers: of each step, unit by unit, as `read_step` has them.
    """

    view: View
    inputs: list[Inputs]
    after: list[Tensor]
    numbers: list[Values]

    def along(self, name: str) -> Array:
        """The squared norm of a vector at each step, of shape (steps, units)."""
        return np.stack([each.scalar(Norm(name)) for each in self.numbers]) ** 2

    @property
    def squared_norm(self) -> Array:
        """|w_t|^2, of shape (steps + 1, units)."""
        return np.concatenate([self.along("w"), self.along("w'")[-1:]])

    def predict(self, law: Law) -> Array:
        """|w_t|^2 at every step, from |w_0|^2 and the law alone; shape (steps + 1, units).

        The law is fed with |s_t| (and <m_t, s_t> where it holds that), with the numbers of the
        state and the hyper-parameters of each step. The cross terms start as they were measured,
        which is at 0 where buffers are 0, and follow their own recursion from the second step on.
        A law whose cross term is open is fed with <w_t, s_t>, which leaves an identity to check.
        """
        measured, recursion, norm = self.squared_norm, law.recursion, law.law.rhs
        # The first step may be of another kind, as torch's dampening has it: from the second on.
        first = 1
        if law.open_because or law.constant:
            first, recursion = 0, {}
        if law.open_because:
            norm = law.keep**2 * W + S + 2 * law.keep * CROSS
        predicted, crosses = [*measured[: first + 1]], dict[sp.Symbol, Array]()
        for numbers in self.numbers[first:]:
            crosses = crosses or {x: numbers.scalar(x) for x in recursion}
            told = numbers.knowing({Norm("w"): np.sqrt(np.maximum(predicted[-1], 0)), **crosses})
            predicted.append(np.broadcast_to(told.scalar(norm), measured[0].shape))
            crosses = {x: told.scalar(after) for x, after in recursion.items()}
        return np.stack(predicted)


def measure(
    law: Law, problem: Problem, recipe: Recipe, numbers: list[dict[str, Any]], seed: int
) -> dict[str, Course]:
    """Train on a problem by a recipe's own step, and measure the units of each weight.

    Args:
        law: whose vectors and numbers are measured.
        problem: the training problem.
        recipe: of the run.
        numbers: its hyper-parameters at each step.
        seed: as for `simulate`.

    Raises:
        ValueError: the run's rule has other states than the law's.
    """
    traced, present = law.step.traced, recipe(**numbers[0]).keys
    if set(present) != set(traced.states):
        raise ValueError(
            f"the law was derived for a step with the states {sorted(traced.states)}, "
            f"the run's rule has {sorted(present)}: at the number 0 a recipe may leave a rule out, "
            "hold the same hyper-parameters at 0"
        )
    known = bind(traced.recipe).defaults.keys() - traced.structure.keys()
    runs = {name: Course(as_view(view), [], [], []) for name, view in problem.views.items()}
    rules = (recipe(**each) for each in numbers)
    for each, transitions in zip(
        numbers, simulate(rules, problem, len(numbers), seed), strict=True
    ):
        values = traced.numbers(**{name: x for name, x in each.items() if name in known})
        for name, made in transitions.items():
            run, inputs = runs[name], Inputs(made.weight, made.grad, made.state, values)
            run.inputs.append(inputs)
            run.after.append(made.new_weight)
            run.numbers.append(read_step(law, run.view, inputs, made.new_weight))
    return runs
