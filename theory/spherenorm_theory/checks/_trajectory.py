"""Trajectories: the products of a law, measured along a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spherenorm import Rule, View, as_view, bind
from spherenorm_theory.algebra import Array
from spherenorm_theory.checks._problems import Problem
from spherenorm_theory.checks._simulation import ScheduledHyperparameters, Transition, simulate
from spherenorm_theory.laws import NormGrowth, OutsideError, compile_formula, product

SAMPLES = 16
"""The steps of a run that are compared themselves, beside the first two."""


@dataclass(frozen=True)
class Sample:
    """A step of a run, with its rule and the hyper-parameters that the law takes."""

    transition: Transition
    rule: Rule
    given: Mapping[str, Any]


@dataclass(frozen=True)
class Trajectory:
    """One weight's run, unit by unit.

    Attributes:
        view: splits the weight into units.
        rows: the products of each step by name, of shape (units,): |w|^2, |w'|^2, |s|^2, <w,s>,
            <m,s> and <w,m> for each buffer m; |<w,g>| as "radial" and |w| |g| as "scale"; counters
            and hyper-parameters, of shape (1,).
        samples: some of the steps.
    """

    view: View
    rows: list[Mapping[str, Array]]
    samples: list[Sample]

    @property
    def squared_norm(self) -> Array:
        """|w_t|^2, of shape (steps + 1, units)."""
        return np.stack([self.rows[0]["|w|^2"], *(row["|w'|^2"] for row in self.rows)])

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

    @property
    def coupling(self) -> float:
        """The share of a unit's step that is due to other units: the greatest of the samples."""
        return max(_coupling(each, self.view) for each in self.samples)


def measure(
    law: NormGrowth, problem: Problem, numbers: ScheduledHyperparameters, seed: int = 0
) -> dict[str, Trajectory]:
    """Train on a problem by a recipe's own step, and measure the units of each weight.

    Args:
        law: names the products that are measured.
        problem: the training problem.
        numbers: the recipe of the run, and its hyper-parameters at each step.
        seed: as for `simulate`.

    Raises:
        ValueError: the run's rule has other states than the law's.
    """
    _refuse_other_states(law, numbers.recipe(**numbers.at(0)))
    traced = law.step.traced
    known = bind(traced.recipe).defaults.keys() - traced.structure.keys()
    runs = {name: Trajectory(as_view(view), [], []) for name, view in problem.views.items()}
    keeps = [compile_formula(each, 1 - each.kappa) for each in (law.first or law, law)]
    sampled = {0, 1, *np.linspace(0, numbers.steps - 1, SAMPLES).astype(int).tolist()}
    for time, transitions in enumerate(simulate(numbers.rules(), problem, numbers.steps, seed)):
        values = numbers.at(time)
        given = {name: value for name, value in values.items() if name in known}
        for name, transition in transitions.items():
            run = runs[name]
            run.rows.append(_read(law, keeps[time > 0], transition, run.view, given))
            if time in sampled:
                run.samples.append(Sample(transition, numbers.recipe(**values), given))
    return runs


def _refuse_other_states(law: NormGrowth, rule: Rule) -> None:
    expected, present = law.step.traced.outputs[1:], rule.keys
    if set(present) != set(expected):
        raise ValueError(
            f"the law was derived for a step with the states {sorted(expected)}, "
            f"the run's rule has {sorted(present)}: at the number 0 a recipe may leave a rule out, "
            "hold the same hyper-parameters at 0"
        )


def _read(
    law: NormGrowth, keep: Any, transition: Transition, view: View, given: Mapping[str, Any]
) -> dict[str, Array]:
    """The products of one step, as `Trajectory.rows` has them.

    Args:
        law: names the products.
        keep: 1 - kappa, by the names of hyper-parameters and counters.
        transition, view, given: of the step.
    """
    step, weight, grad = law.step, transition.weight, transition.grad
    state = {step.letters[name]: value for name, value in transition.state.items()}
    single = {symbol.name: x for symbol, x in step.traced.values(**given).items()}
    single |= {letter: state[letter].item() for letter in step.counters}
    new = transition.new_weight
    drive = new - keep(single) * weight
    per_unit = {
        "|w|^2": view.inner(weight, weight),
        "|w'|^2": view.inner(new, new),
        "radial": view.inner(weight, grad).abs(),
        "scale": view.norm(weight) * view.norm(grad),
        "|s|^2": view.inner(drive, drive),
        "<w,s>": view.inner(weight, drive),
        **{str(product(m, "s")): view.inner(state[m], drive) for m in step.buffers},
        **{str(product("w", m)): view.inner(weight, state[m]) for m in step.buffers},
    }
    measured = {what: view.units(value).numpy() for what, value in per_unit.items()}
    return measured | {name: np.array([value]) for name, value in single.items()}


def compare_steps(law: NormGrowth, run: Trajectory) -> tuple[float, str, str]:
    """The steps that a law says, against those of a run.

    Returns:
        The greatest difference relative to |w'|; the reason why the law says no step of its own in
        some of them; the assumption by which its step is of weights of one unit.
    """
    agreement, view = law.agreement, run.view
    own = replace(law, agreement=replace(agreement, view=view, several=True, paths=None))
    # A norm that is constant was seen to be so with several units too, where a step is not.
    of_one = law.constant and not agreement.several
    error, outside, alone = 0.0, "", ""
    for sample in run.samples:
        each, weight = sample.transition, sample.transition.weight
        if not all(view.rows(x).any(1).all() for x in (weight, each.grad)):
            continue  # the law says nothing about a weight or a gradient of 0: that is reported
        if of_one and len(agreement.view.rows(weight)) > 1:
            alone = agreement.note
            continue
        try:
            new, _ = own.evaluate(weight, each.grad, each.state, **sample.given)
        except (OutsideError, ValueError) as refusal:
            outside = outside or str(refusal)
            continue
        off = view.norm(new - each.new_weight) / view.norm(each.new_weight)
        error = max(error, float(off.nan_to_num(nan=np.inf).max()))
    return error, outside, alone


def _coupling(sample: Sample, view: View) -> float:
    """The greatest relative difference of a unit's step to its step all alone."""
    rule, transition = sample.rule, sample.transition
    weight, grad = transition.weight, transition.grad

    def state_of(unit: int, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """The unit's part of the state; what has no such part is as at the start."""
        alone = rule.init(row)
        for name, value in transition.state.items():
            if value.shape == weight.shape:
                alone[name] = view.rows(value)[unit][None]
            elif value.ndim == 0:
                alone[name] = value
        return alone

    moves = []
    for unit, (w, g) in enumerate(zip(view.rows(weight), view.rows(grad), strict=True)):
        row = w[None]
        moves.append(rule.step(row, g[None], state_of(unit, row))[0] - row)
    alone = view.from_rows(torch.cat(moves), weight)
    length = view.norm(alone)
    together = transition.new_weight - weight
    return float((view.norm(together - alone) / torch.where(length > 0, length, 1)).max())
