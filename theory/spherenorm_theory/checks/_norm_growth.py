"""The derived laws against float64 runs; a broken assumption is named with its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from spherenorm import Interval, Recipe, View, bind
from spherenorm.support import unknown_name
from spherenorm_theory.algebra import Array, declared_views, resolve_recipe, structure_of
from spherenorm_theory.checks._problems import PROBLEMS, Problem
from spherenorm_theory.checks._simulation import (
    Schedule,
    ScheduledHyperparameters,
    resolve_schedule,
)
from spherenorm_theory.checks._trajectory import Trajectory, compare_steps, measure
from spherenorm_theory.laws import NormGrowth, W, follow, norm_growth

TOLERANCE = 1e-10
"""Relative, on |w|^2 after hundreds of steps.

Rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more.
"""

NOT_ORTHOGONAL = 1e-10
"""A cosine of w and g above this is no rounding.

float64 gradients of an exactly invariant function stay below 1e-12.
"""


class OtherView(NamedTuple):
    """A rule that looks at other units than the weight's.

    Attributes:
        rule: its class.
        field: that declares its units, "view" or "views".
        views: of the rule.
        weight: the weight's view.
    """

    rule: str
    field: str
    views: tuple[View, ...]
    weight: View

    @property
    def mend(self) -> str:
        """The argument that gives the rule the weight's units."""
        name = f'"{self.weight}"'
        return f"{self.field}=({name},)" if self.field == "views" else f"{self.field}={name}"

    def __str__(self) -> str:
        own = ", ".join(map(str, self.views))
        return f"{self.rule} has the {self.field} {own}, the weight {self.weight}"


@dataclass(frozen=True)
class WeightCheck:
    """One weight of a check: the residual of the law, and the numbers behind its assumptions.

    Attributes:
        residual: the greatest relative difference of |w_t|^2 to the prediction.
        step_error: the greatest relative difference of the law's own step to the rule's, over some
            steps.
        outside: the reason why the law gives no step of its own in some of these steps.
        alone: the assumption by which the law's step, and not its norm, is of weights of one unit;
            then the norm alone is checked.
        cosine: the greatest |cos(w, g)|, see `Trajectory.cosine`.
        zero_gradients: the steps in which the gradient of a unit is exactly 0.
        growth: |w_T|^2 / |w_0|^2 of the unit that grew most.
        apart: the share of a unit's step that is due to the other units; measured where nothing
            else explains the residual.
        other_views: the rules that look at other units than the weight's, which may be why.
        measured, predicted: |w_t|^2 of the run and of the law, of shape (steps + 1, units).
    """

    residual: float
    step_error: float
    cosine: float
    zero_gradients: int
    growth: float
    outside: str = ""
    alone: str = ""
    apart: float = 0.0
    other_views: tuple[OtherView, ...] = ()
    measured: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    predicted: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    @property
    def passed(self) -> bool:
        """True if the law holds up to rounding, for the norms and for the steps."""
        return max(self.residual, self.step_error) <= TOLERANCE

    @property
    def steps(self) -> str:
        """The agreement of the steps, in text."""
        return "no step compared" if self.alone else f"steps to {self.step_error:.1e}"

    @property
    def failed_assumptions(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        failed_assumptions = []
        if self.cosine > NOT_ORTHOGONAL:
            failed_assumptions.append(f"<w, g> = 0 fails: |cos(w, g)| up to {self.cosine:.1e}")
        if self.zero_gradients:
            failed_assumptions.append(
                f"the gradient of a unit is exactly 0 in {self.zero_gradients} steps: "
                "no evidence of scale invariance there"
            )
        if self.apart > NOT_ORTHOGONAL:
            why = ", ".join(map(str, self.other_views)) or "a rule reads the whole weight"
            failed_assumptions.append(
                f"a unit does not move as if it were alone ({why}): "
                f"its step is off by up to {self.apart:.1e}"
            )
        if self.outside:
            failed_assumptions.append(f"the law says no step here: {self.outside}")
        return failed_assumptions


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
        >>> found = check("sgdp", "toy-2d", steps=50, momentum=0.9)
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

    def __str__(self) -> str:
        verdict = f"holds to {self.residual:.1e}" if self.passed else self._failure()
        kind = " (identity only: the cross term is open, and measured)" if self.identity else ""
        run = f"{self.recipe} on {self.problem}"
        run += f", {self.schedule} schedule" if self.schedule != "constant" else ""
        lines = [f"checked on runs: law of {self.law}, {run}{kind}: {verdict}"]
        lines += [f"  with {', '.join(f'{n}={v}' for n, v in self.hyper_parameters.items())}"]
        lines += [
            f"  {name}: norms to {each.residual:.1e}, {each.steps}, "
            f"|w|^2 grew {each.growth:.3g}-fold at most"
            for name, each in self.weights.items()
        ]
        lines += [f"  assumption broken on purpose: {self.broken}"] if self.broken else []
        alone = dict.fromkeys(each.alone for each in self.weights.values() if each.alone)
        lines += [f"  no step of several units is compared: {why}" for why in alone]
        return "\n".join([*lines, *(f"  {failed}" for failed in self.failed_assumptions)])

    __repr__ = __str__

    def _failure(self) -> str:
        """The verdict on a law that fails: by an assumption, where one does, and what mends it."""
        residual = f"residual {self.residual:.1e} > {TOLERANCE:.0e}"
        if not self.failed_assumptions:
            return f"DOES NOT HOLD: {residual}"
        mends = "".join(
            f"; {name} needs {' and '.join(other.mend for other in each.other_views)}"
            for name, each in self.weights.items()
            if each.other_views
        )
        return f"DOES NOT HOLD, as an assumption fails{mends}: {residual}"


def check(
    recipe: str | Recipe,
    problem: str | Problem = "network",
    *,
    steps: int = 200,
    seed: int = 0,
    law: NormGrowth | None = None,
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
        >>> check("sgdp", "toy-2d", steps=100, momentum=0.9).passed
        True
    """
    label, problem = _resolve_problem(problem)
    _refuse_unless_counts(steps, seed)
    factor = resolve_schedule(schedule)
    function = resolve_recipe(recipe)
    bind(function, **hyper_parameters)  # refuses what it does not have
    own = law if law is not None else norm_growth(function, **structure_of(hyper_parameters))
    used = bind(function, **{**switch_on(function, own), **hyper_parameters}).hyper_parameters
    run = ScheduledHyperparameters(function, used, factor, steps)
    differences = () if law is None else _differences(law, function, used)
    trajectories = measure(own, problem, run, seed).items()
    weights = {name: _check_weight(own, each, bool(differences)) for name, each in trajectories}
    return Check(
        bind(function).name,
        label,
        weights,
        used,
        schedule if isinstance(schedule, str) else "own",
        own.name,
        bool(own.open_because),
        differences,
        problem.broken,
    )


def switch_on(recipe: Recipe, law: NormGrowth) -> dict[str, Any]:
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
    """A usual value: 0.9 for a momentum, which is below 1, 0.5 for a share, 0.01 for the rest."""
    if interval is None or interval.high != 1:
        return 0.01
    return 0.9 if interval.open_high else 0.5


def _check_weight(law: NormGrowth, run: Trajectory, explained: bool) -> WeightCheck:
    """The check of one weight; where the differences of the recipes do not explain it, by why."""
    norms, predicted = run.squared_norm, _predict(law, run)
    off = np.abs(predicted / norms - 1)
    step_error, outside, alone = compare_steps(law, run)
    found = WeightCheck(
        residual=float(np.nan_to_num(off, nan=np.inf).max()),
        step_error=step_error,
        cosine=run.cosine,
        zero_gradients=run.zero_gradients,
        growth=float((norms[-1] / norms[0]).max()),
        outside=outside if run.cosine <= NOT_ORTHOGONAL else "",
        alone=alone,
        measured=norms,
        predicted=predicted,
    )
    if explained or found.passed or found.failed_assumptions:
        return found
    declared = declared_views(run.samples[0].rule)
    views = (OtherView(*each, run.view) for each in declared if run.view not in each[-1])
    return replace(found, apart=run.coupling, other_views=tuple(views))


def _predict(law: NormGrowth, run: Trajectory) -> Array:
    """|w_t|^2 at every step, from |w_0|^2 and the law alone; shape (steps + 1, units).

    The law is fed with |s_t|^2 (and <m_t, s_t> where it holds that), and with the hyper-parameters
    of each step. The cross terms start as they were measured, which is at 0 where buffers are 0,
    and follow their own recursion. A law whose cross term is open is fed with <w_t, s_t>, which
    leaves an identity to check.
    """
    told = (law.first or law).recursion
    carried = [] if law.open_because else [x for x in law.recursion if x in told]
    start = {W: run.squared_norm[0], **{x: run.rows[0][str(x)] for x in carried}}
    return np.stack([start[W], *(x[W] for x in follow(law, start, run.rows))])


def _refuse_unless_counts(steps: int, seed: int) -> None:
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _resolve_problem(problem: str | Problem) -> tuple[str, Problem]:
    """The name of a problem, and the problem."""
    if isinstance(problem, Problem):
        return "problem", problem
    if not isinstance(problem, str):
        raise TypeError(f"problem must be a name or a Problem, got {problem!r}")
    if problem not in PROBLEMS:
        raise unknown_name("problem", problem, PROBLEMS)
    return problem, PROBLEMS[problem]


def _differences(law: NormGrowth, recipe: Recipe, used: Mapping[str, Any]) -> tuple[str, ...]:
    """The respects in which a run is another one than the law's."""
    traced = law.step.traced
    run = bind(recipe).name
    other = [f"the law is that of {law.name}, the run that of {run}"] if law.name != run else []
    held = (
        f"the law was derived for {name} = {value!r}, the run has {used[name]!r}"
        for name, value in traced.structure.items()
        if name in used and used[name] != value
    )
    return (*other, *held)
