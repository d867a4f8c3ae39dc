"""The report on the paper: its statements, statements beyond it, and runs that check both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from spherenorm import bind
from spherenorm_theory.algebra.claims import Proof
from spherenorm_theory.checks.norm_growth import check
from spherenorm_theory.checks.problems import PROBLEMS
from spherenorm_theory.checks.random_gradients import (
    RunCheck,
    check_equilibrium,
    check_ratio,
    count_false_positives,
)
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.report.recipe import run_row, training_jobs
from spherenorm_theory.report.rows import Job, Row

RUNS = "Checked on float64 runs"

Case = tuple[str, dict[str, Any]]
"""A recipe and its hyper-parameters."""

TRAINING: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
NOISE: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
NOISE_ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0}
MATRIX: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
NO_DECAY = {**NOISE, "weight_decay": 0.0}

EQUILIBRIA: tuple[Case, ...] = (
    ("sgd", {**NOISE, "momentum": 0.0}),
    ("sgd", NOISE),
    ("sgd", {**NOISE, "nesterov": True}),
    ("sgdw", NOISE),
    ("sgdp", NOISE),
    ("adamw", {**NOISE_ADAM, "weight_decay": 1.0}),
    ("adamp", {**NOISE_ADAM, "weight_decay": 10.0}),
    ("lion", {"lr": 0.001, "weight_decay": 10.0}),
    ("muon", {**MATRIX, "lr": 0.02, "weight_decay": 0.5}),
)
RATIOS: tuple[Case, ...] = (
    ("sgd", NO_DECAY),
    ("sgd", {**NO_DECAY, "nesterov": True}),
    ("sgdw", NOISE),
    ("sgd", NOISE),
    ("sgdp", NOISE),
)
COUNTS: tuple[dict[str, Any], ...] = (
    {"dimension": 3},
    {"dimension": 64},
    {"dimension": 16, "channels": 4, "view": "layer"},
    {"dimension": 16, "channels": 4, "delta": 1.0},
)


def paper_jobs() -> list[Job]:
    """The paper's statements, statements beyond them, and runs that check both.

    Example:
        >>> [job.name for job in paper_jobs()][:3]
        ['equation_4', 'effective_step', 'lemma_2_1']
    """
    return [
        *(
            Job(section, prove.__name__, partial(_proof_rows, section, prove))
            for section, proofs in STATEMENTS.items()
            for prove in proofs
        ),
        *(job for name in ("sgd", "sgdp", "adamp", "sgdg") for job in _training(name)),
        Job(RUNS, "broken assumptions", _broken_rows),
        *_run_jobs(),
    ]


def _run_jobs() -> Iterator[Job]:
    """Runs under random gradients, one to a job."""
    for name, given in EQUILIBRIA:
        yield _run_job(f"equilibrium of {name}", partial(check_equilibrium, name), given)
    for name, given in RATIOS:
        yield _run_job(f"growth ratio of {name}", partial(check_ratio, name), given)
    for given in COUNTS:
        yield _run_job("false positives", count_false_positives, given)


def _run_job(name: str, check_law: Callable[..., RunCheck], given: dict[str, Any]) -> Job:
    return Job(RUNS, name, lambda: [run_row(RUNS, name, given, check_law(**given))])


def _training(recipe: str) -> list[Job]:
    """Runs at the values of `TRAINING` that a recipe has; on the sphere, at its defaults."""
    known = bind(recipe).defaults if recipe != "sgdg" else {}
    law = cache(partial(norm_growth, recipe))  # one for all of the problems
    return training_jobs(recipe, {n: v for n, v in TRAINING.items() if n in known}, RUNS, law)


def _proof_rows(section: str, prove: Callable[[], Proof]) -> list[Row]:
    """The statement with its status, then the claims that it rests on and other readings."""
    proof = prove()
    first, *steps = proof.claims
    note = f"{proof.status}. Note: {proof.remark}" if proof.remark else proof.status
    rows = [Row(section, f"{proof.name}: {first.about}", first.relation, note, proof.proved)]
    rows += [Row.of(section, f"{proof.name}: {each.about}", each) for each in steps]
    another = f"{proof.name}, another reading: "
    return [*rows, *(Row.of(section, f"{another}{each.about}", each) for each in proof.readings)]


def _broken_rows() -> list[Row]:
    """Runs that break an assumption: each must be noticed."""
    rows = [_broken_row(name) for name, problem in PROBLEMS.items() if problem.broken]
    plain = check("sgd", law=norm_growth("sgd", weight_decay=0.0), **TRAINING)
    off = f"off by {plain.residual:.1e}: the lemma is one without decay"
    return [*rows, Row(RUNS, "Lemma 2.2 with decay", plain.failed_assumptions[0], off)]


def _broken_row(problem: str) -> Row:
    result = check("sgdp", problem, **TRAINING)
    holds = f"law holds to {result.residual:.1e} all the same"
    verdict = holds if result.passed else f"law off by {result.residual:.1e}"
    noticed = "; ".join(result.failed_assumptions)
    formula = f"broken on purpose: {result.broken}"
    status = f"{verdict}; noticed: {noticed}"
    return Row(RUNS, f"sgdp on {problem}", formula, status, good=bool(noticed))
