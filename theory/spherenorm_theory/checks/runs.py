"""The one simulation loop, and the products of a law that are measured along a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from math import cos, pi
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm import Recipe, Rule, State, View, as_view, bind
from spherenorm.support import unknown_name
from spherenorm_theory.algebra.values import Array
from spherenorm_theory.checks.problems import Problem, Source
from spherenorm_theory.laws.evaluate import OutsideError
from spherenorm_theory.laws.follow import compile_formula
from spherenorm_theory.laws.law import Law

Schedule = Callable[[float], float]
"""From the share of the run that is over, in [0, 1), to a factor of the learning rate."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share: 1.0,
    "warm-up": lambda share: min(1.0, 0.01 + 4 * share),
    "cosine": lambda share: 0.5 * (1 + cos(pi * share)),
}
"""Schedules by name: a linear warm-up over the first quarter, half a cosine down to 0."""

SAMPLES = 16
"""The steps of a run that are compared themselves, beside the first two."""


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
class Scheduled:
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
class Trajectory:
    """One weight's run, unit by unit.

    Attributes:
        view: splits the weight into units.
        rows: the quantities of each step by name, of shape (units,): |w|, |w'|, |s|, <w,s>, <m,s>
            and <w,m> for each buffer m; |<w,g>| as "radial" and |w| |g| as "scale"; numbers of the
            state; hyper-parameters, of shape (1,).
        samples: some of the steps, each with the hyper-parameters that the law takes.
    """

    view: View
    rows: list[Mapping[str, Array]]
    samples: list[tuple[Transition, Mapping[str, Any]]]

    @property
    def squared_norm(self) -> Array:
        """|w_t|^2, of shape (steps + 1, units)."""
        return np.stack([self.rows[0]["|w|"], *(row["|w'|"] for row in self.rows)]) ** 2

    @property
    def cosine(self) -> float:
        """The greatest |<w, g>| of the run, relative to its greatest |w| |g|.

        Not the greatest cosine: a gradient that consists of rounding errors has any direction.
        """
        radial, scale = (np.max([row[x] for row in self.rows], 0) for x in ("radial", "scale"))
        return float((radial / np.where(scale > 0, scale, 1)).max())

    @property
    def zero_gradients(self) -> int:
        """The steps in which the gradient of a unit, or the unit, is exactly 0."""
        return sum(bool((row["scale"] == 0).any()) for row in self.rows)


def measure(law: Law, problem: Problem, numbers: Scheduled, seed: int = 0) -> dict[str, Trajectory]:
    """Train on a problem by a recipe's own step, and measure the units of each weight.

    Args:
        law: names the products that are measured.
        problem: the training problem.
        numbers: the recipe of the run, and its hyper-parameters at each step.
        seed: as for `simulate`.

    Raises:
        ValueError: the run's rule has other states than the law's.
    """
    expected, present = law.step.traced.outputs[1:], numbers.recipe(**numbers.at(0)).keys
    if set(present) != set(expected):
        raise ValueError(
            f"the law was derived for a step with the states {sorted(expected)}, "
            f"the run's rule has {sorted(present)}: at the number 0 a recipe may leave a rule out, "
            "hold the same hyper-parameters at 0"
        )
    traced = law.step.traced
    known = bind(traced.recipe).defaults.keys() - traced.structure.keys()
    runs = {name: Trajectory(as_view(view), [], []) for name, view in problem.views.items()}
    keep = compile_formula(law, law.keep)
    sampled = {0, 1, *np.linspace(0, numbers.steps - 1, SAMPLES).astype(int).tolist()}
    rules = (numbers.recipe(**numbers.at(time)) for time in range(numbers.steps))
    for time, transitions in enumerate(simulate(rules, problem, numbers.steps, seed)):
        given = {name: value for name, value in numbers.at(time).items() if name in known}
        for name, transition in transitions.items():
            run = runs[name]
            run.rows.append(_read(law, keep, transition, run.view, given))
            if time in sampled:
                run.samples.append((transition, given))
    return runs


def _read(
    law: Law, keep: Any, transition: Transition, view: View, given: Mapping[str, Any]
) -> dict[str, Array]:
    """The quantities of one step, as `Trajectory.rows` has them."""
    step, weight, grad = law.step, transition.weight, transition.grad
    state = {step.letters[name]: value for name, value in transition.state.items()}
    numbers = {s.name: np.array([x]) for s, x in step.traced.values(**given).items()}
    numbers |= {s.name: np.array([float(x)]) for s, x in step.traced.given.items()}
    for letter in step.scalars:
        value = state[letter]
        per_unit = value.ndim and value.shape == view.total(weight).shape
        if value.numel() == 1 or per_unit:
            numbers[letter] = (view.units(value) if per_unit else value.reshape(1)).numpy()
    new, share = transition.new_weight, keep(numbers)
    share = torch.as_tensor(np.broadcast_to(share, (len(view.rows(weight)),)).copy())
    drive = new - view.from_rows(share[:, None] * view.rows(weight), weight)
    of_units = {
        "|w|": view.norm(weight),
        "|w'|": view.norm(new),
        "radial": view.inner(weight, grad).abs(),
        "scale": view.norm(weight) * view.norm(grad),
        "|s|": view.norm(drive),
        "<w,s>": view.inner(weight, drive),
    }
    for m in step.buffers:
        of_units[f"<{','.join(sorted([m, 's']))}>"] = view.inner(state[m], drive)
        of_units[f"<w,{m}>"] = view.inner(weight, state[m])
    return {what: view.units(value).numpy() for what, value in of_units.items()} | numbers


def compare_steps(law: Law, run: Trajectory) -> tuple[float, str, str]:
    """The steps that a law says, against those of a run.

    Returns:
        The greatest difference relative to |w'|; the reason why the law says no step of its own in
        some of them; the assumption by which its step is of weights of one unit.
    """
    view, agreement = run.view, replace(law.agreement, view=run.view, several=True)
    own = replace(law, agreement=replace(agreement, dimensions=frozenset()))
    # A norm that is constant is so with several units too, where a step is not.
    of_one = law.constant and not law.agreement.several
    error, outside, alone = 0.0, "", ""
    for number, (each, given) in enumerate(run.samples):
        weight = each.weight
        if not all(view.rows(x).any(1).all() for x in (weight, each.grad)):
            continue  # the law says nothing about a weight or a gradient of 0: that is reported
        if of_one and len(law.agreement.view.rows(weight)) > 1:
            alone = law.agreement.note
            continue
        try:
            new, _ = own.evaluate(weight, each.grad, each.state, **given)
        except (OutsideError, ValueError) as refusal:
            if number:  # the first step may be of another kind
                outside = outside or str(refusal)
            continue
        off = view.norm(new - each.new_weight) / view.norm(each.new_weight)
        error = max(error, float(off.nan_to_num(nan=np.inf).max()))
    return error, outside, alone
