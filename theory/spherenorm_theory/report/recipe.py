"""The report on one recipe: its law as a proposition, its equilibrium, and runs that check both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.claims import Kind
from spherenorm_theory.algebra.hyper_parameters import (
    is_number,
    numbers_by_name,
    resolve_recipe,
    structure_of,
)
from spherenorm_theory.algebra.trace import TraceError
from spherenorm_theory.checks.norm_growth import check, switch_on
from spherenorm_theory.checks.random_gradients import RunCheck, check_equilibrium
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.report.rows import Job, Row

PROBLEMS = ("network", "convolutions", "toy-3d")
"""The problems on which the assumptions of the laws hold."""
STEPS = 60
"""Of a run on one of them."""
MATRIX: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
"""A run of a recipe that orthogonalizes."""
SETTLES, SLOWEST = 0.01, 0.004
"""kappa of a run, at which 600 steps of warm-up hold several relaxation times; the least one."""


def training_jobs(
    recipe: str | Recipe, hyper_parameters: dict[str, Any], section: str, law: Callable[[], Law]
) -> list[Job]:
    """One check of a norm-growth law per problem.

    Args:
        recipe: of the runs.
        hyper_parameters: of the runs.
        section: of the rows.
        law: derives the recipe's law, or returns it.
    """

    def rows(problem: str) -> list[Row]:
        result = check(recipe, problem, law=law(), steps=STEPS, **hyper_parameters)
        # A law does not apply where units are others than the rule's; other weights still check it.
        applies = [each for each in result.weights.values() if each.passed or not each.units]
        kind = "; identity only, the cross term was measured" if result.identity else ""
        failed = f"; {'; '.join(result.failed_assumptions)}" if not result.passed else ""
        status = f"{Kind.CHECKED}: {result.verdict} in {STEPS} steps{kind}{failed}"
        good = all(each.passed for each in applies)
        return [Row(section, f"{result.recipe} on {problem}", "", status, good)]

    name = bind(recipe).name
    return [Job(section, f"{name} on {each}", partial(rows, each)) for each in PROBLEMS]


def run_row(section: str, name: str, values: Mapping[str, Any], result: RunCheck) -> Row:
    """A check of a law on a run with given values."""
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    status = f"{Kind.CHECKED if result.passed else 'FAILS'}: {result}"
    return Row(section, name, shown, status, result.passed)


def recipe_jobs(recipe: str | Recipe, **given: Any) -> list[Job]:
    """The law of one recipe: derived, and checked.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: no such recipe or hyper-parameter, or its step cannot be traced.

    Example:
        >>> jobs = recipe_jobs("sgdp")
        >>> print(jobs[0].name, jobs[0].run()[0].good)
        law of sgdp True
    """
    function = resolve_recipe(recipe)
    law = norm_growth(function, **given)
    name, running = law.name, {**given, **switch_on(function, law)}
    matrices = bool(law.step.traced.letters)
    runs = training_jobs(function, running, name, lambda: law) if not matrices else []
    return [
        Job(name, f"law of {name}", lambda: [law_row(law)]),
        *runs,
        Job(name, f"equilibrium of {name}", lambda: equilibrium_rows(function, given, running)),
    ]


def law_row(law: Law) -> Row:
    """The law as a proposition; it is good where all of its claims are shown."""
    failed = [claim.about for claim in law.claims if not claim.holds]
    status = f"NOT shown: {', '.join(failed)}" if failed else ""
    return Row(law.name, "law", law.proposition(), status, not failed)


def equilibrium_rows(function: Recipe, given: dict[str, Any], running: dict[str, Any]) -> list[Row]:
    """The equilibrium, and a run of random gradients that checks it."""
    name, held = bind(function).name, {**structure_of(given), **without_eps(function)}
    try:
        law = equilibrium(function, **held)
    except (NoEquilibriumError, TraceError) as error:
        return [Row(name, "Equilibrium", "", f"not applicable: {error}")]
    stated = Row(name, "equilibrium", law.proposition(), "")
    values = values_that_settle(law, given, {**running, **held})
    if values is None:
        return [stated, Row(name, "Run", "", "not checked: no decay settles the norm in a run")]
    try:
        result = check_equilibrium(function, **(MATRIX if law.factor else {}), **values)
    except ValueError as error:
        return [stated, Row(name, "Run", "", f"not checked: {error}")]
    return [stated, run_row(name, "Run", values, result)]


def values_that_settle(
    law: Equilibrium, given: dict[str, Any], running: dict[str, Any]
) -> dict[str, Any] | None:
    """Hyper-parameters of a run that settles within the warm-up; None if there is no such decay.

    Args:
        law: of the recipe.
        given: hyper-parameters that stay as they are.
        running: those of a run, the given ones among them.
    """
    traced = law.traced
    decay, defaults = traced.symbols.get("weight_decay"), bind(traced.recipe).defaults
    try:
        kappa = drop_transients(law.kappa, law.mean.step)
    except NoEquilibriumError:
        return None
    if decay is None or not kappa.has(decay):
        return None
    usual: dict[str, Any] = {"lr": 0.01 if "eps" in defaults else 0.1}
    usual |= {"betas": (0.9, 0.99)} if "betas" in defaults else {}
    values = {**usual, **running}
    values |= {"dampening": 0.0} if defaults.get("dampening") == given.get("dampening", 0) else {}
    named = numbers_by_name({**defaults, **values})
    numbers = {s: named[n] for n, s in traced.symbols.items() if s != decay and is_number(named[n])}
    per_decay = float(kappa.subs(traced.given).subs(numbers).coeff(decay))
    values = {"weight_decay": round(SETTLES / per_decay, 9), **values, **given}
    return values if per_decay * values["weight_decay"] >= SLOWEST else None
