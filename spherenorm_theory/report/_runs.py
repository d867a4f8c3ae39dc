"""Rows of checks: laws against float64 runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.algebra import Kind
from spherenorm_theory.checks import check, check_equilibrium
from spherenorm_theory.laws import NormGrowth
from spherenorm_theory.report._rows import Job, Row

__all__ = ["equilibrium_rows", "show_values", "training_jobs"]

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
    name = bind(recipe).name
    return [
        Job(
            section,
            f"{name} on {problem}",
            partial(_training_rows, recipe, problem, hyper_parameters, section, law),
        )
        for problem in PROBLEMS
    ]


def _training_rows(
    recipe: str | Recipe,
    problem: str,
    hyper_parameters: dict[str, Any],
    section: str,
    law: Callable[[], NormGrowth],
) -> list[Row]:
    result = check(recipe, problem, law=law(), **hyper_parameters)
    # Where a unit does not move by itself the law does not apply; the other weights still check it.
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
        status += f"; {'; '.join(result.complaints) or f'off by {result.residual:.1e}'}"
    formula = "|w_t|^2 at every step, predicted from |w_0|^2 and |s_t|^2"
    return [Row(section, f"{result.recipe} on {problem}", formula, status, good=passed)]


def equilibrium_rows(
    recipe: str | Recipe, hyper_parameters: dict[str, Any], section: str
) -> list[Row]:
    """A check of an equilibrium law."""
    result = check_equilibrium(recipe, **hyper_parameters)
    status = (
        f"|w| {result.norm[0]:.4f} predicted, {result.norm[1]:.4f} measured; "
        f"effective step {result.rotation[0]:.5f}, {result.rotation[1]:.5f}: "
        f"{Kind.CHECKED} to {result.error:.2%} (tolerance 2 %)"
    )
    status = status if result.passed else f"FAILS: {status}"
    held = show_values(hyper_parameters)
    return [Row(section, f"equilibrium of {result.law.name}", held, status, good=result.passed)]
