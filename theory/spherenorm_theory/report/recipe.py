"""Reports: on a recipe, its law and equilibrium and runs that check both; on the paper, proofs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.claims import Claim, Kind, Proof, Refutation
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe, structure_of
from spherenorm_theory.algebra.trace import TraceError
from spherenorm_theory.checks.norm_growth import check, switch_on
from spherenorm_theory.checks.random_gradients import check_equilibrium
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.report.rows import Row, Section

PROBLEMS = ("network", "convolutions", "toy-3d")
"""The problems on which the assumptions of the laws hold."""
STEPS = 60
"""Of a run on one of them."""
MATRIX: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
UNITS: dict[str, Any] = {"shape": (32, 256), "steps": 200, "warm_up": 500}
"""A run of a recipe that orthogonalizes, and of another one."""
SETTLES, SLOWEST = 0.01, 0.004
"""kappa of a run, at which 500 steps of warm-up hold several relaxation times; the least one."""


def recipe_report(recipe: str | Recipe, **given: Any) -> Section:
    """The law of one recipe, derived at once, and its checks.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: no such recipe or hyper-parameter, or its step cannot be traced.

    Example:
        >>> first, *checks = recipe_report("sgdp").rows
        >>> first.name, len(checks)
        ('law', 5)
    """
    function = resolve_recipe(recipe)
    law = norm_growth(function, **given)
    return Section(law.name, _recipe_rows(law, function, given))


def _recipe_rows(law: Law, function: Recipe, given: dict[str, Any]) -> Iterator[Row]:
    failed = [claim.about for claim in law.claims if not claim.holds]
    status = f"NOT shown: {', '.join(failed)}" if failed else ""
    yield Row("law", law.proposition(), status, not failed)
    running = {**switch_on(function, law.step.traced), **given}
    for problem in PROBLEMS if not law.step.traced.letters else ():
        yield _training_row(law, function, problem, running)
    yield from equilibrium_rows(function, given)


def _training_row(law: Law, function: Recipe, problem: str, running: dict[str, Any]) -> Row:
    """The check of a law on a problem; a recipe of one's own may take no such weights."""
    name = f"{law.name} on {problem}"
    try:
        result = check(function, problem, law=law, steps=STEPS, **running)
    except Exception as error:
        why = " ".join(str(error).split())
        return Row(name, "", f"FAILED: {type(error).__name__}: {why}", good=False)
    # A law does not apply where units are others than the rule's; other weights still check it.
    good = all(each.passed or not each.applies for each in result.weights.values())
    kind = "; identity only, the cross term was measured" if law.open_because else ""
    off = ((n, x) for n, x in result.weights.items() if not x.passed)
    why = "".join(f"; {n}: {note}" for n, x in off for note in x.notes)
    return Row(name, "", f"{Kind.CHECKED}: {result.verdict} in {STEPS} steps{kind}{why}", good)


def equilibrium_rows(function: Recipe, given: dict[str, Any]) -> Iterator[Row]:
    """The equilibrium, and a run of random gradients that checks it.

    Args:
        function: the recipe.
        given: hyper-parameters to hold at a value.
    """
    try:
        law = equilibrium(function, **structure_of(given), **without_eps(function))
    except (NoEquilibriumError, TraceError) as error:
        yield Row("Equilibrium", "", f"not applicable: {error}")
        return
    yield Row("equilibrium", law.proposition(), "")
    try:
        values = _values_that_settle(law, given)
        result = check_equilibrium(function, **(MATRIX if law.factor else UNITS), **values)
    except ValueError as error:
        yield Row("Run", "", f"not checked: {error}")
        return
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    status = f"{Kind.CHECKED if result.passed else 'FAILS'}: {result}"
    yield Row("Run", shown, status, result.passed)


def _values_that_settle(law: Equilibrium, given: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a run that settles within the warm-up, by its decay if that is free."""
    traced, defaults = law.traced, bind(law.traced.recipe).defaults
    usual: dict[str, Any] = {"lr": 0.01 if "eps" in defaults else 0.1}
    usual |= {"betas": (0.9, 0.99)} if "betas" in defaults else {}
    values = {**switch_on(traced.recipe, traced), **usual, **given, **without_eps(traced.recipe)}
    kappa = drop_transients(law.kappa, law.mean.step)
    if kappa.has(traced.symbols.get("weight_decay")):
        at_one = traced.values(**{**values, "weight_decay": 1.0})
        share = float(kappa.subs(traced.given).subs(at_one))  # kappa is linear in it
        values["weight_decay"] = given.get("weight_decay", round(SETTLES / share, 9))
        if share * values["weight_decay"] >= SLOWEST:
            return values
    raise NoEquilibriumError("no decay settles the norm in a run")


CHECKED = ("sgd", "sgdp", "adamp", "sgdg")
"""The recipes of which the report on the paper has the laws and the runs that check them."""


def paper_report() -> Iterator[Section]:
    """The paper's statements, statements beyond them, and the reports on its recipes.

    Example:
        >>> print(next(paper_report()).title)
        The paper's statements
    """
    for title, proofs in STATEMENTS.items():
        yield Section(title, (row for prove in proofs for row in _proof_rows(prove())))
    yield from map(recipe_report, CHECKED)


def _proof_rows(proof: Proof) -> Iterator[Row]:
    """The statement with its status, then the claims that it rests on and other readings."""
    first, *steps = proof.claims
    note = f"{proof.status}. Note: {proof.remark}" if proof.remark else proof.status
    yield Row(f"{proof.name}: {first.about}", first.relation, note, proof.proved)
    parts: tuple[Claim | Refutation, ...] = (*steps, *proof.readings)
    for each in parts:
        another = ", another reading" if isinstance(each, Refutation) else ""
        yield Row(f"{proof.name}{another}: {each.about}", each.relation, each.how, each.holds)
