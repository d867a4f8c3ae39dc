"""Trajectories: the products of a law, measured along a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy as sp
import torch

from spherenorm import Rule, View, as_view, bind
from spherenorm_theory.algebra import Array
from spherenorm_theory.checks._problems import Problem
from spherenorm_theory.checks._simulation import ScheduledHyperparameters, Transition, simulate
from spherenorm_theory.laws import NormGrowth, OutsideError, product

SAMPLES = 16
"""The steps of a run at which each unit's step is computed by itself: a millisecond a unit."""


@dataclass(frozen=True)
class Trajectory:
    """One weight's run, unit by unit.

    Arrays of shape (steps, units), one row per step; `squared_norm` has a row more.

    Attributes:
        squared_norm: |w_t|^2.
        products: the law's symbols by name: |s|^2, <w,s>, <m,s> and <w,m> for each buffer m,
            counters, and the hyper-parameters of each step.
        radial: |<w_t, g_t>|.
        scale: |w_t| |g_t|.
        step_error: the greatest difference of the law's own step, from its formulas for the drive,
            to the rule's, relative to |w'|, over some of the steps.
        outside: the reason why the law has no step of its own in some of them; empty if it has.
        alone: the assumption by which the law's step, and not its norm, is of weights of one unit.
    """

    squared_norm: Array
    products: Mapping[str, Array]
    radial: Array
    scale: Array
    step_error: float = 0.0
    outside: str = ""
    alone: str = ""

    @property
    def cosine(self) -> float:
        """The greatest |<w, g>| of the run, relative to its greatest |w| |g|.

        Not the greatest cosine: a gradient that consists of rounding errors has any direction.
        """
        radial, scale = self.radial.max(axis=0), self.scale.max(axis=0)
        return float((radial / np.where(scale > 0, scale, 1)).max())


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
    meter = _Meter(law)
    own = {name: _OwnStep(law, as_view(view)) for name, view in problem.views.items()}
    rows: dict[str, dict[str, list[Array]]] = {}
    sampled = _sample(numbers.steps)
    for time, transitions in enumerate(simulate(numbers.rules(), problem, numbers.steps, seed)):
        given = _known(law, numbers.at(time))
        for name, transition in transitions.items():
            view = as_view(problem.views[name])
            for what, value in meter.read(transition, view, given, first=time == 0).items():
                rows.setdefault(name, {}).setdefault(what, []).append(value)
            if time in sampled:
                own[name].compare(transition, given)
    arrays = {
        name: {what: np.stack(values) for what, values in row.items()} for name, row in rows.items()
    }
    return {name: _trajectory(measured, own[name]) for name, measured in arrays.items()}


def _sample(steps: int) -> set[int]:
    """The first two steps and some later ones."""
    return {0, 1, *np.linspace(0, steps - 1, SAMPLES).astype(int).tolist()}


def _trajectory(measured: dict[str, Array], own: _OwnStep) -> Trajectory:
    before, after = measured.pop("|w|^2"), measured.pop("|w'|^2")
    radial, scale = measured.pop("radial"), measured.pop("scale")
    norms = np.concatenate([before[:1], after])
    return Trajectory(norms, measured, radial, scale, own.error, own.outside, own.alone)


def _known(law: NormGrowth, given: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters that the law's recipe has too, and does not hold at a value."""
    traced = law.step.traced
    known = bind(traced.recipe).defaults.keys() - traced.structure.keys()
    return {name: value for name, value in given.items() if name in known}


def _refuse_other_states(law: NormGrowth, rule: Rule) -> None:
    expected, present = law.step.traced.outputs[1:], rule.state_names
    if set(present) != set(expected):
        raise ValueError(
            f"the law was derived for a step with the states {sorted(expected)}, "
            f"the run's rule has {sorted(present)}: at the number 0 a recipe may leave a rule out, "
            "hold the same hyper-parameters at 0"
        )


class _OwnStep:
    """Compares the step that a law says with that of a run."""

    def __init__(self, law: NormGrowth, view: View) -> None:
        agreement = replace(law.agreement, view=view, several=True, paths=None)
        self.law, self.view = replace(law, agreement=agreement), view
        self.error, self.outside, self.alone = 0.0, "", ""
        # A norm that is constant was seen to be so with several units too, where a step is not.
        self.of_one = law.constant and not law.agreement.several
        self.of_law = law.agreement.view

    def compare(self, transition: Transition, given: Mapping[str, Any]) -> None:
        view, weight = self.view, transition.weight
        rows = zip(view.rows(weight), view.rows(transition.grad), strict=True)
        if any(not (w.any() and g.any()) for w, g in rows):
            return  # nothing is said about a weight or a gradient of 0, which is reported by itself
        if self.of_one and len(self.of_law.rows(weight)) > 1:
            self.alone = self.law.agreement.note
            return
        try:
            new, _ = self.law.evaluate(weight, transition.grad, transition.state, **given)
        except (OutsideError, ValueError) as error:
            self.outside = self.outside or str(error)
            return
        off = view.norm(new - transition.new_weight) / view.norm(transition.new_weight)
        self.error = max(self.error, float(off.nan_to_num(nan=np.inf).max()))


class _Meter:
    """Reads the products of a law off a transition."""

    def __init__(self, law: NormGrowth) -> None:
        self.step = law.step
        self.counters = [law.step.scalars[letter] for letter in law.step.counters]
        self.hypers = [*law.step.traced.symbols.values()]
        self.keep, self.keep_first = self._keep(law.kappa), self._keep((law.first or law).kappa)

    def _keep(self, kappa: sp.Expr) -> Callable[..., float]:
        """1 - kappa as a function of the hyper-parameters and the counters."""
        share = 1 - self.step.facts.spell_out(kappa)
        return sp.lambdify([*self.hypers, *self.counters], share)  # type: ignore[no-any-return]

    def read(
        self, transition: Transition, view: View, given: Mapping[str, Any], first: bool
    ) -> dict[str, Array]:
        """One number per unit for each product; one number for a counter or hyper-parameter."""
        letters, weight, grad = self.step.letters, transition.weight, transition.grad
        state = {letters[name]: value for name, value in transition.state.items()}
        counts = {letter: state[letter].item() for letter in self.step.counters}
        hypers = self.step.traced.values(**given)
        values = [hypers[symbol] for symbol in self.hypers]
        keep = (self.keep_first if first else self.keep)(*values, *counts.values())
        drive, new = transition.new_weight - keep * weight, transition.new_weight
        per_unit = {
            "|w|^2": view.inner(weight, weight),
            "|w'|^2": view.inner(new, new),
            "radial": view.inner(weight, grad).abs(),
            "scale": view.norm(weight) * view.norm(grad),
            "|s|^2": view.inner(drive, drive),
            "<w,s>": view.inner(weight, drive),
            **{str(product(m, "s")): view.inner(state[m], drive) for m in self.step.buffers},
            **{str(product("w", m)): view.inner(weight, state[m]) for m in self.step.buffers},
        }
        measured = {what: view.units(value).numpy() for what, value in per_unit.items()}
        single = {**counts, **{symbol.name: value for symbol, value in hypers.items()}}
        return measured | {name: np.array([value]) for name, value in single.items()}


def measure_coupling(
    numbers: ScheduledHyperparameters, problem: Problem, seed: int, names: list[str]
) -> dict[str, float]:
    """The share of a unit's step that is due to other units: the greatest of some steps of the run.

    Returns:
        The share by the name of the weight.
    """
    shares: dict[str, list[Array]] = {name: [] for name in names}
    run = simulate(numbers.rules(), problem, numbers.steps, seed)
    sampled = _sample(numbers.steps)
    for time, (rule, transitions) in enumerate(zip(numbers.rules(), run, strict=True)):
        for name in names if time in sampled else ():
            view = as_view(problem.views[name])
            shares[name].append(view.units(_coupling(rule, view, transitions[name])).numpy())
    return {name: float(np.stack(values).max()) for name, values in shares.items()}


def _coupling(rule: Rule, view: View, transition: Transition) -> torch.Tensor:
    """The relative difference of each unit's step to its step all alone."""
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
    return view.norm(together - alone) / torch.where(length > 0, length, 1)
