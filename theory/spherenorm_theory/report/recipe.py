"""Reports: on a recipe, its law and equilibrium and runs that check both; on the paper, proofs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.claims import Claim, Kind, Proof, Refutation
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe, structure_of
from spherenorm_theory.algebra.trace import TraceError
from spherenorm_theory.checks.norm_growth import check, switch_on
from spherenorm_theory.checks.random_gradients import check_equilibrium
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.report.rows import Job, Row

PROBLEMS = ("network", "convolutions", "toy-3d")
"""The problems on which the assumptions of the laws hold."""
STEPS = 60
"""Of a run on one of them."""
MATRIX: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
UNITS: dict[str, Any] = {"shape": (32, 256), "steps": 300}
"""A run of a recipe that orthogonalizes, and of another one."""
SETTLES, SLOWEST = 0.01, 0.004
"""kappa of a run, at which 600 steps of warm-up hold several relaxation times; the least one."""


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
    name, running = law.name, {**switch_on(function, law.step.traced), **given}
    failed = [claim.about for claim in law.claims if not claim.holds]
    status = f"NOT shown: {', '.join(failed)}" if failed else ""
    stated = Row(name, "law", law.proposition(), status, not failed)

    def trained(problem: str) -> list[Row]:
        result = check(function, problem, law=law, steps=STEPS, **running)
        # A law does not apply where units are others than the rule's; other weights still check it.
        good = all(each.passed or not each.applies for each in result.weights.values())
        kind = "; identity only, the cross term was measured" if law.open_because else ""
        off = ((n, x) for n, x in result.weights.items() if not x.passed)
        why = [kind, *(f"; {n}: {note}" for n, x in off for note in x.notes)]
        status = f"{Kind.CHECKED}: {result.verdict} in {STEPS} steps{''.join(why)}"
        return [Row(name, f"{name} on {problem}", "", status, good)]

    problems = PROBLEMS if not law.step.traced.letters else ()
    return [
        Job(name, f"law of {name}", lambda: [stated]),
        *(Job(name, f"{name} on {each}", partial(trained, each)) for each in problems),
        Job(name, f"equilibrium of {name}", lambda: equilibrium_rows(function, given)),
    ]


def equilibrium_rows(function: Recipe, given: dict[str, Any]) -> list[Row]:
    """The equilibrium, and a run of random gradients that checks it.

    Args:
        function: the recipe.
        given: hyper-parameters to hold at a value.
    """
    name, held = bind(function).name, {**structure_of(given), **without_eps(function)}
    try:
        law = equilibrium(function, **held)
    except (NoEquilibriumError, TraceError) as error:
        return [Row(name, "Equilibrium", "", f"not applicable: {error}")]
    stated = Row(name, "equilibrium", law.proposition(), "")
    try:
        values = _values_that_settle(law, given)
        result = check_equilibrium(function, **(MATRIX if law.factor else UNITS), **values)
    except ValueError as error:
        return [stated, Row(name, "Run", "", f"not checked: {error}")]
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    status = f"{Kind.CHECKED if result.passed else 'FAILS'}: {result}"
    return [stated, Row(name, "Run", shown, status, result.passed)]


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


def paper_jobs() -> list[Job]:
    """The paper's statements, statements beyond them, and the reports on its recipes.

    Example:
        >>> [job.name for job in paper_jobs()][:3]
        ['equation_4', 'effective_step', 'lemma_2_1']
    """

    def run(recipe: str) -> list[Row]:
        return [row for job in recipe_jobs(recipe) for row in job.run()]

    proofs = ((section, prove) for section, each in STATEMENTS.items() for prove in each)
    return [
        *(Job(name, prove.__name__, partial(_proof_rows, name, prove)) for name, prove in proofs),
        *(Job(recipe, recipe, partial(run, recipe)) for recipe in CHECKED),
    ]


def _proof_rows(section: str, prove: Callable[[], Proof]) -> list[Row]:
    """The statement with its status, then the claims that it rests on and other readings."""
    proof = prove()
    first, *steps = proof.claims
    note = f"{proof.status}. Note: {proof.remark}" if proof.remark else proof.status
    parts: list[tuple[str, Claim | Refutation]] = [(f"{proof.name}: ", each) for each in steps]
    parts += [(f"{proof.name}, another reading: ", each) for each in proof.readings]
    return [
        Row(section, f"{proof.name}: {first.about}", first.relation, note, proof.proved),
        *(Row(section, name + x.about, x.relation, x.how, x.holds) for name, x in parts),
    ]
