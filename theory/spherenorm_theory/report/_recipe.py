"""The report on one recipe: its law, derived and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.algebra import (
    ANY,
    DIMENSION,
    Kind,
    Trace,
    TraceError,
    resolve_hyper_parameters,
    resolve_recipe,
    show,
    structure_of,
    trace,
)
from spherenorm_theory.checks import RunCheck, check, check_equilibrium, switch_on
from spherenorm_theory.laws import (
    NoEquilibriumError,
    NormGrowth,
    drop_transients,
    equilibrium,
    norm_growth,
    without_eps,
)
from spherenorm_theory.report._formats import Job, Row

PROBLEMS = ("network", "convolutions", "toy-2d", "toy-3d")
"""The problems on which the assumptions of the laws hold."""


def show_values(hyper_parameters: dict[str, Any]) -> str:
    """Hyper-parameters in text: lr=0.1, momentum=0.9."""
    return ", ".join(f"{name}={value}" for name, value in hyper_parameters.items())


def training_jobs(
    recipe: str | Recipe,
    hyper_parameters: dict[str, Any],
    section: str,
    law: Callable[[], NormGrowth],
) -> list[Job]:
    """One check of a norm-growth law per problem.

    Args:
        recipe: of the runs.
        hyper_parameters: of the runs.
        section: of the rows.
        law: derives the recipe's law, or returns it.
    """

    def rows(problem: str) -> list[Row]:
        result = check(recipe, problem, law=law(), **hyper_parameters)
        # A law does not apply where units move each other; the other weights still check it.
        applies = {name: each for name, each in result.weights.items() if not each.apart}
        passed = bool(applies) and all(each.passed for each in applies.values())
        status = "FAILS"
        if passed:
            kind = "; identity only, the cross term was measured" if result.identity else ""
            detail = ", ".join(f"{name} {each.residual:.0e}" for name, each in applies.items())
            worst = max(max(each.residual, each.step_error) for each in applies.values())
            alone = all(each.alone for each in applies.values())
            what = "norms, and no step of several units," if alone else "norms and steps"
            status = f"{Kind.CHECKED}: {what} to {worst:.1e} in 200 steps ({detail}{kind})"
        if not result.passed:
            status += f"; {'; '.join(result.failed_assumptions) or f'off by {result.residual:.1e}'}"
        formula = "|w_t|^2 at every step, predicted from |w_0|^2 and |s_t|^2"
        return [Row(section, f"{result.recipe} on {problem}", formula, status, good=passed)]

    name = bind(recipe).name
    return [Job(section, f"{name} on {each}", partial(rows, each)) for each in PROBLEMS]


def run_row(section: str, name: str, values: dict[str, Any], result: RunCheck) -> Row:
    """A check of a law on a run with given values."""
    status = f"{Kind.CHECKED if result.passed else 'FAILS'}: {result}"
    return Row(section, name, show_values(values), status, good=result.passed)


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
    values = resolve_hyper_parameters(function, given)
    running = {**{name: values[name] for name in given}, **switch_on(function, law)}
    name = law.name
    return [
        Job(name, f"law of {name}", lambda: list(_law_rows(law))),
        *training_jobs(function, running, name, lambda: law),
        Job(name, f"equilibrium of {name}", lambda: _equilibrium_law_rows(function, given)),
        Job(name, f"equilibrium of {name}, measured", lambda: _measured_rows(function, running)),
    ]


def _law_rows(law: NormGrowth) -> Iterator[Row]:
    """The law, the split of a step, the cross term with its recursion, and the closed form."""
    yield _law_row(law)
    if law.constant:
        yield Row(
            law.name, "momentum's growth term", "none", f"{Kind.DERIVED}: the norm is constant"
        )
        return
    yield Row(law.name, "step", f"w' = {law.kept} + s, s = {law.drive}", Kind.DERIVED)
    gone = "gone: the step is orthogonal to the weight"
    term = f"{Kind.DERIVED}: {gone if law.cross == 0 else 'there'}"
    term = f"identity only: {law.open_because}" if law.open_because else term
    yield Row(law.name, "momentum's growth term", f"<w,s> = {show(law.cross)}", term)
    for unknown, after in law.recursion.items():
        yield Row(law.name, "recursion", f"{unknown}' = {show(after)}", Kind.DERIVED)
    if law.first is not None and not law.starts_alike:
        formula = f"w' = {law.first.kept} + s, s = {law.first.drive}"
        status = f"{Kind.DERIVED}: differs from the later ones"
        yield Row(law.name, "first step", formula, status)
    yield _closed_form_row(law)


def _law_row(law: NormGrowth) -> Row:
    """The law: an identity in s, or derived where the norm is constant."""
    proved = law.residual == 0
    kind = Kind.DERIVED if law.constant else Kind.IDENTITY
    held = f"{kind} under {{{'; '.join(law.assumptions)}}}"
    status = held if proved else f"NOT an identity: off by {show(law.residual)}"
    return Row(law.name, "law", f"|w'|^2 = {show(law.law.rhs)}", status, law.latex(), proved)


def _closed_form_row(law: NormGrowth) -> Row:
    closed = law.closed_form()
    if closed is None:
        why = law.open_because or (
            "several unknowns (z_t is a sum of powers of the matrix A), or another first step: "
            "see repr(norm_growth(...))"
        )
        return Row(law.name, "closed form", "", f"not applicable: {why}")
    failed = [name for name, residual in law.induction().items() if residual != 0]
    status = f"NOT proved: {failed}" if failed else f"{Kind.INDUCTION} for every t"
    formula = f"{show(closed.lhs)} = {show(closed.rhs)}"
    return Row(law.name, "closed form", formula, status, good=not failed)


def _equilibrium_law_rows(function: Recipe, given: dict[str, Any]) -> list[Row]:
    name = bind(function).name
    try:
        law = equilibrium(function, **{**given, **without_eps(function)})
    except NoEquilibriumError as error:
        return [Row(name, "equilibrium", "", f"not applicable: {error}")]
    assumed = ["random gradients"]
    if law.fourth_power.has(DIMENSION):
        assumed.append("entries of equal second moment, eps = 0")
    status = f"{Kind.MEAN_FIELD} under {{{', '.join([*assumed, *law.open])}}}"
    return [
        Row(name, f"equilibrium: {quantity}", formula, status)
        for quantity, formula in law.formulas().items()
    ]


def _measured_rows(function: Recipe, running: dict[str, Any]) -> list[Row]:
    """The equilibrium law of the recipe, in symbols, against a run."""
    name, title = bind(function).name, "equilibrium, measured"
    try:
        traced = trace(function, **structure_of(running))
    except TraceError as error:
        return [Row(name, title, "", f"not checked in symbols: {error}")]
    try:
        values = _values_that_settle(traced, running)
        if values is None:
            why = "not applicable: no weight_decay in kappa to set a time scale by"
            return [Row(name, title, "", why)]
        return [run_row(name, title, values, check_equilibrium(function, **values))]
    except NoEquilibriumError as error:
        return [Row(name, title, "", f"not checked: {error}")]


def _values_that_settle(traced: Trace, running: dict[str, Any]) -> dict[str, Any] | None:
    """Hyper-parameters of a run that settles within the warm-up; None if there is no decay.

    The decay is such that kappa = 1 %: then 600 steps of warm-up hold several relaxation times.
    """
    law = norm_growth(traced)
    kappa, decay = drop_transients(law.kappa, law.step), traced.symbols.get("weight_decay")
    if decay is None or not kappa.has(decay):
        return None
    adaptive = traced.intervals.get("eps", ANY) != ANY or structure_of(running).get("eps") == 0
    values = {**running, **({"lr": 0.01, "eps": 0.0} if adaptive else {"lr": 0.1})}
    if "betas" in bind(traced.recipe).defaults:
        values["betas"] = (0.9, 0.99)
    others = {s: value for s, value in traced.values(**values).items() if s != decay}
    per_decay = kappa.subs(others).coeff(decay)
    return {**values, "weight_decay": round(float(0.01 / per_decay), 9)}
