"""Effective steps: AdamP's under Adam's directions, and the reverse."""

import math

import pandas as pd
import pytest

from spherenorm_experiments.extra.matched_step import (
    ADAM,
    ADAMP,
    BENCHMARKS,
    KINDS,
    MatchedStep,
    gap_in_parts,
)
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.tables import difference
from tests.experiments.fabricated import result

STRIPES = BENCHMARKS[0]
RATES = STRIPES.rates


def made(gains=(0.0, 0.0), lost=(), seeds=6, **summary):
    """Runs whose scores gain by AdamP's direction and by AdamP's steps, on the first benchmark."""
    items = []
    for place, (direction, length) in enumerate(KINDS):
        for rate in STRIPES.rates:
            at = STRIPES.place(direction, length)
            for seed in range(seeds):
                score = 50 + rate * 100 + seed + gains[0] * (direction == ADAMP)
                score += gains[1] * (length == ADAMP) + 0.03 * math.cos(7 * seed + 3 * place)
                path = 1.0 + (length == ADAMP) + 1e-6 * math.cos(5 * seed + place)
                diverged = 3 if (direction, length, seed) in lost else None
                spec = Spec("debiasing", STRIPES.arm(direction).recipe, {"lr": rate}, seed=seed)
                numbers = {
                    "test": score,
                    "validation": -abs(rate - RATES[seed % 3]),
                    "total_effective_step": path,
                    **summary,
                }
                numbers |= {"norm_start": 1.0, "norm_last": 2.0, "diverged_at": diverged}
                items.append(result(at, seed, spec, name=f"{at}, {rate}-{seed}", **numbers))
    return Runs(items)


def test_the_parts_add_up_over_the_seeds_that_all_four_have():
    """As when a run with given steps diverged or has not ended."""
    scores = {
        kind: pd.Series({seed: float((seed + 1) ** place) for seed in range(4)})
        for place, kind in enumerate(KINDS)
    }
    scores[KINDS[1]] = pd.Series({0: 1.0, 1: 2.0})
    cells = [difference(*pair) for pair in gap_in_parts(scores)]
    gap, length, direction = (cell.value for cell in cells)
    assert (gap, length + direction) == pytest.approx((3.5, 3.5))  # of 1 - 1 and 8 - 1
    assert {cell.n for cell in cells} == {2}


@pytest.mark.parametrize(
    ("gains", "verdicts"),
    [
        ((0.0, 5.0), ("equivalent", "supported", "supported")),  # a schedule
        ((5.0, 0.0), ("supported", "equivalent", "equivalent")),  # more than one
        ((-5.0, 0.0), ("contradicted", "equivalent", "equivalent")),
    ],
)
def test_the_claims_tell_a_schedule_from_a_direction(gains, verdicts):
    decided = {d.claim.name: d.verdict for d in MatchedStep().decided(made(gains))}
    names = ("direction", "steps", "reverse")
    assert tuple(decided[f"stripes-rho-0.5.{name}"] for name in names) == verdicts
    assert decided["stripes-rho-0.5.given"] == "supported"
    assert decided["keywords.direction"] == "inconclusive"  # which has no runs


def test_a_table_has_the_mean_over_rates_and_the_rate_of_each_seed():
    over, best, *each = MatchedStep().tables(made((0.0, 5.0)))[0].rows
    assert [str(row[0]) for row in each] == [f"stripes, rho 0.5, rate {x:g}" for x in RATES]
    seeds = range(6)
    assert over[1].value == pytest.approx(50 + 100 * sum(RATES) / 3 + 2.5, abs=0.03)
    chosen = [50 + 100 * RATES[seed % 3] + seed for seed in seeds]  # by its validation set
    assert best[1].value == pytest.approx(sum(chosen) / 6, abs=0.03)
    for row in (over, best, *each):
        gap, by_steps, by_direction = (float(cell.value) for cell in row[-3:])
        assert (gap, by_steps, by_direction) == pytest.approx((5, 5, 0), abs=0.06)


def test_the_second_round_takes_the_steps_of_the_runs_that_finished():
    study, plan = MatchedStep(), Plan("small", seeds=(0, 1))
    first = study.trials(plan, Runs())
    assert len(first) == 3 * 3 * 2 * 2  # benchmarks, rates, optimizers, seeds
    ended = made(lost=[(ADAMP, ADAMP, 1)], seeds=2)
    ended = ended.where(lambda item: " with " not in item.place.arm)
    later = study.trials(plan, ended)[len(first) :]
    given = [(str(t.place), t.spec.recipe, t.spec.seed) for t in later]
    longer, shorter = (str(STRIPES.place(*kind)) for kind in ((ADAM, ADAMP), (ADAMP, ADAM)))
    by_rate = [(longer, "adam", 0), (shorter, "adamp", 0), (shorter, "adamp", 1)]
    assert sorted(given) == sorted(by_rate * 3)
    for trial in later:
        length, rate = (
            ADAM if trial.spec.recipe == "adamp" else ADAMP,
            trial.spec.hyper_parameters["lr"],
        )
        own = STRIPES.place(length, length)
        assert trial.spec.task == "debiasing-given-steps"
        assert trial.spec.options["steps_of"] == f"{own}, {rate}-{trial.spec.seed}"
