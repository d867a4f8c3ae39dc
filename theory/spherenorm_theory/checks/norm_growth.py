"""The derived laws against float64 runs; a broken assumption is named with its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spherenorm import Interval, Recipe, bind
from spherenorm.support import unknown_name
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe, structure_of
from spherenorm_theory.algebra.symbols import Inner
from spherenorm_theory.algebra.values import Array
from spherenorm_theory.checks.problems import PROBLEMS, Problem
from spherenorm_theory.checks.runs import Course, Schedule, measure, resolve_schedule, scheduled
from spherenorm_theory.laws.evaluate import evaluate
from spherenorm_theory.laws.law import Law, norm_growth

TOLERANCE = 1e-10
"""Relative, on |w|^2 after hundreds of steps.

Rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more.
"""

SAMPLES = 16
"""The steps of a run that are compared themselves, beside the first two."""

NOT_ORTHOGONAL = 1e-10
"""A cosine of w and g above this is no rounding.

float64 gradients of an exactly invariant function stay below 1e-12.
"""


@dataclass(frozen=True)
class WeightCheck:
    """One weight of a check: the residual of the law, and the numbers behind its assumptions.

    Attributes:
        residual: the greatest relative difference of |w_t|^2 to the prediction.
        step_error: the greatest relative difference of the law's own step to the rule's, over some
            steps.
        cosine: the greatest |<w, g>| of the run, relative to its greatest |w| |g|.
        zero_gradients: the steps in which the gradient of a unit is exactly 0.
        growth: |w_T|^2 / |w_0|^2 of the unit that grew most.
        outside: the reason why the law gives no step of its own in some of these steps.
        alone: the assumption by which the law's step, and not its norm, is of weights of one unit;
            then the norm alone is checked.
        units: the views of the rule and of the weight, where they differ.
        measured, predicted: |w_t|^2 of the run and of the law, of shape (steps + 1, units).
    """

    residual: float
    step_error: float
    cosine: float
    zero_gradients: int
    growth: float
    outside: str = ""
    alone: str = ""
    units: str = ""
    measured: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    predicted: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    @property
    def passed(self) -> bool:
        """True if the law holds up to rounding, for the norms and for the steps."""
        return max(self.residual, self.step_error) <= TOLERANCE

    @property
    def failed_assumptions(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        found = []
        if self.cosine > NOT_ORTHOGONAL:
            found.append(f"<w, g> = 0 fails: |cos(w, g)| up to {self.cosine:.1e}")
        if self.zero_gradients:
            found.append(
                f"the gradient of a unit is exactly 0 in {self.zero_gradients} steps: "
                "no evidence of scale invariance there"
            )
        if self.outside:
            found.append(f"the law says no step here: {self.outside}")
        if not self.passed and self.units:
            found.append(f"a unit may not move as if it were alone: {self.units}")
        return found


@dataclass(frozen=True)
class Check:
    """A law against a run.

    Attributes:
        recipe, problem: their names.
        weights: the numbers of each weight.
        hyper_parameters: of the run.
        schedule: of its learning rate.
        law: the name of the law's recipe.
        identity: True if the cross term had to be measured: of the norm then only the identity
            |(1 - kappa) w + s|^2 is checked, beside the steps.
        differences: hyper-parameters that the law was derived for and the run did not have.
        broken: the assumption that the problem breaks on purpose.

    Example:
        >>> found = check("sgdp", "toy-3d", steps=50, momentum=0.9)
        >>> found.passed, found.residual < 1e-10
        (True, True)
    """

    recipe: str
    problem: str
    weights: Mapping[str, WeightCheck]
    hyper_parameters: Mapping[str, Any]
    schedule: str
    law: str
    identity: bool = False
    differences: tuple[str, ...] = ()
    broken: str = ""

    @property
    def residual(self) -> float:
        """The greatest residual of all weights, of norms and of steps."""
        return max(max(each.residual, each.step_error) for each in self.weights.values())

    @property
    def passed(self) -> bool:
        """True if the law holds for every weight."""
        return all(each.passed for each in self.weights.values())

    @property
    def failed_assumptions(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        of_weights = (
            f"{name}: {c}" for name, each in self.weights.items() for c in each.failed_assumptions
        )
        return [*self.differences, *of_weights]

    @property
    def verdict(self) -> str:
        """The weights for which the law holds, first of all, and how far off it is for others."""
        off = {n: max(x.residual, x.step_error) for n, x in self.weights.items() if not x.passed}
        if not off:
            return f"holds to {self.residual:.1e}"
        why = ", as an assumption fails" if self.failed_assumptions else ""
        others = ", ".join(f"{name} (off by {x:.1e})" for name, x in off.items())
        held = ", ".join(name for name, each in self.weights.items() if each.passed)
        if held:
            return f"HOLDS FOR {held} ALONE, NOT FOR {others}{why}"
        return f"DOES NOT HOLD{why}: off by {self.residual:.1e}"

    def __str__(self) -> str:
        kind = " (identity only: the cross term is open, and measured)" if self.identity else ""
        run = f"{self.recipe} on {self.problem}"
        run += f", {self.schedule} schedule" if self.schedule != "constant" else ""
        lines = [f"checked on runs: law of {self.law}, {run}{kind}: {self.verdict}"]
        lines += [f"  with {', '.join(f'{n}={v}' for n, v in self.hyper_parameters.items())}"]
        for name, each in self.weights.items():
            steps = "no step compared" if each.alone else f"steps to {each.step_error:.1e}"
            grew = f"|w|^2 grew {each.growth:.3g}-fold at most"
            lines.append(f"  {name}: norms to {each.residual:.1e}, {steps}, {grew}")
        lines += [f"  assumption broken on purpose: {self.broken}"] if self.broken else []
        alone = dict.fromkeys(each.alone for each in self.weights.values() if each.alone)
        lines += [f"  no step of several units is compared: {why}" for why in alone]
        return "\n".join([*lines, *(f"  {failed}" for failed in self.failed_assumptions)])

    __repr__ = __str__


def check(
    recipe: str | Recipe,
    problem: str | Problem = "network",
    *,
    steps: int = 200,
    seed: int = 0,
    law: Law | None = None,
    schedule: str | Schedule = "constant",
    **hyper_parameters: Any,
) -> Check:
    """Train with `recipe` in float64, and compare the run with its law.

    At every step |w_t|^2 is compared with the prediction from |w_0|^2 and the lengths of the steps,
    and at some of them the rule's step with the one that the law's formulas give.

    Args:
        recipe: as for `norm_growth`; it takes the steps, whatever the law.
        problem: a name from `PROBLEMS`, or a problem of your own.
        steps: how many.
        seed: of weights and data.
        law: the law to check; by default the recipe's own. Another one fails, and shows how far off
            it is.
        schedule: of the learning rate: a name from `SCHEDULES`, or a function from the share of the
            run that is over to a factor.
        hyper_parameters: of the run; the rest have their defaults. Where a default of 0 would
            leave a part of the recipe out, such as SGD's momentum, the part is switched on.

    Raises:
        ValueError: no such problem, schedule, recipe or hyper-parameter; `steps` or `seed` is no
            count; or the law was derived for a step with other states.
        TypeError: `problem` is neither a name nor a problem.

    Example:
        >>> check("sgdp", "toy-3d", steps=100, momentum=0.9).passed
        True
    """
    label, problem = _resolve_problem(problem)
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    factor, function = resolve_schedule(schedule), resolve_recipe(recipe)
    bind(function, **hyper_parameters)  # refuses what it does not have
    own = law if law is not None else norm_growth(function, **structure_of(hyper_parameters))
    used = bind(function, **{**switch_on(function, own), **hyper_parameters}).hyper_parameters
    courses = measure(own, problem, function, scheduled(function, used, factor, steps), seed)
    return Check(
        bind(function).name,
        label,
        {name: _check_weight(own, each) for name, each in courses.items()},
        used,
        schedule if isinstance(schedule, str) else "own",
        own.name,
        bool(own.open_because),
        () if law is None else _differences(law, function, used),
        problem.broken,
    )


def switch_on(recipe: Recipe, law: Law) -> dict[str, Any]:
    """Values for a run: a hyper-parameter whose default switches a rule off gets another one.

    Args:
        recipe: of the run.
        law: of the recipe; hyper-parameters that are symbols of it are switched on.
    """
    traced = law.step.traced
    return {
        name: _value_within(traced.intervals.get(name))
        for name, default in bind(recipe).defaults.items()
        if name in traced.symbols and default == 0 and not isinstance(default, bool)
    }


def _value_within(interval: Interval | None) -> float:
    """A usual value: 0.9 for a momentum, which is below 1, 0.01 for the rest."""
    return 0.9 if interval is not None and interval.high == 1 else 0.01


def _check_weight(law: Law, run: Course) -> WeightCheck:
    """The check of one weight."""
    norms, predicted = run.squared_norm, run.predict(law)
    # Not the greatest cosine: a gradient that consists of rounding errors has any direction.
    lengths = np.sqrt(run.along("w") * run.along("g"))
    radial = np.stack([np.abs(each.scalar(Inner("w", "g"))) for each in run.numbers])
    greatest = lengths.max(0)
    cosine = float((radial.max(0) / np.where(greatest > 0, greatest, 1)).max())
    step_error, outside, alone = _compare_steps(law, run)
    views = law.step.traced.views
    other = bool(views) and run.view not in views
    units = f"the rule acts on units of the view {', '.join(map(str, views))}, the weight has "
    return WeightCheck(
        residual=float(np.nan_to_num(np.abs(predicted / norms - 1), nan=np.inf).max()),
        step_error=step_error,
        cosine=cosine,
        zero_gradients=int((lengths == 0).any(1).sum()),
        growth=float((norms[-1] / norms[0]).max()),
        outside=outside if cosine <= NOT_ORTHOGONAL else "",
        alone=alone,
        units=f"{units}those of {run.view}" if other else "",
        measured=norms,
        predicted=predicted,
    )


def _compare_steps(law: Law, run: Course) -> tuple[float, str, str]:
    """The steps that a law says, against some of those of a run.

    Returns:
        The greatest difference relative to |w'|; the reason why the law says no step of its own in
        some of them; the assumption by which its step is of weights of one unit.
    """
    view, last = run.view, len(run.inputs) - 1
    # A norm that is constant is so with several units too, where a step is not.
    of_one = law.constant and not law.agreement.several
    if of_one and len(law.agreement.view.rows(run.inputs[0].weight)) > 1:
        return 0.0, "", law.agreement.note
    error, outside = 0.0, ""
    for time in sorted({0, min(1, last), *np.linspace(0, last, SAMPLES).astype(int).tolist()}):
        inputs, after = run.inputs[time], run.after[time]
        if not all(view.rows(x).any(1).all() for x in (inputs.weight, inputs.grad)):
            continue  # the law says nothing about a weight or a gradient of 0: that is reported
        try:
            new, _ = evaluate(law.split_step, view, inputs)
        except ValueError as refusal:
            if time:  # the first step may be of another kind
                outside = outside or str(refusal)
            continue
        off = view.norm(new - after) / view.norm(after)
        error = max(error, float(off.nan_to_num(nan=np.inf).max()))
    return error, outside, ""


def _resolve_problem(problem: str | Problem) -> tuple[str, Problem]:
    """The name of a problem, and the problem."""
    if isinstance(problem, Problem):
        return "problem", problem
    if not isinstance(problem, str):
        raise TypeError(f"problem must be a name or a Problem, got {problem!r}")
    if problem not in PROBLEMS:
        raise unknown_name("problem", problem, PROBLEMS)
    return problem, PROBLEMS[problem]


def _differences(law: Law, recipe: Recipe, used: Mapping[str, Any]) -> tuple[str, ...]:
    """The respects in which a run is another one than the law's."""
    traced, run = law.step.traced, bind(recipe).name
    other = [f"the law is that of {law.name}, the run that of {run}"] if law.name != run else []
    held = (
        f"the law was derived for {name} = {value!r}, the run has {used[name]!r}"
        for name, value in traced.structure.items()
        if name in used and used[name] != value
    )
    return (*other, *held)
