"""Effective steps: AdamP's under Adam's directions and the reverse, and their link to scores."""

import math

import numpy as np
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
from spherenorm_experiments.extra.mechanism import answer_table, grow, scores_picture, scores_table
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Results
from spherenorm_experiments.samples import Sample
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
            arm = STRIPES.arm(direction, length, rate)
            for seed in range(seeds):
                score = 50 + rate * 100 + seed + gains[0] * (direction == ADAMP)
                score += gains[1] * (length == ADAMP) + 0.03 * math.cos(7 * seed + 3 * place)
                path = 1.0 + (length == ADAMP) + 1e-6 * math.cos(5 * seed + place)
                diverged = 3 if (direction, length, seed) in lost else None
                spec = Spec("debiasing", arm.recipe, {"lr": rate}, seed=seed)
                numbers = {
                    "test": score,
                    "validation": -abs(rate - RATES[seed % 3]),
                    "total_effective_step": path,
                    **summary,
                }
                numbers |= {"norm_start": 1.0, "norm_last": 2.0, "diverged_at": diverged}
                items.append(result(arm, seed, spec, name=f"{arm}-{seed}", **numbers))
    return Results(items)


def test_the_parts_add_up_over_the_seeds_that_all_four_have():
    """As when a run with given steps diverged or has not ended."""
    scores = {
        kind: Sample({seed: (seed + 1) ** place for seed in range(4)})
        for place, kind in enumerate(KINDS)
    }
    scores[KINDS[1]] = Sample({0: 1.0, 1: 2.0}, diverged=frozenset({3}))
    cells = [difference(*pair) for pair in gap_in_parts(scores)]
    gap, length, direction = (cell.value for cell in cells)
    assert (gap, length + direction) == pytest.approx((3.5, 3.5))  # of 1 - 1 and 8 - 1
    assert {cell.n for cell in cells} == {2}


@pytest.mark.parametrize(
    ("gains", "verdicts"),
    [
        ((0.0, 5.0), ("equivalent", "holds", "holds")),  # a schedule
        ((5.0, 0.0), ("holds", "equivalent", "equivalent")),  # more than one
        ((-5.0, 0.0), ("does not hold", "equivalent", "equivalent")),
    ],
)
def test_the_claims_tell_a_schedule_from_a_direction(gains, verdicts):
    decided = {d.claim.name: d.verdict for d in MatchedStep().decided(made(gains))}
    names = ("direction", "steps", "reverse")
    assert tuple(decided[f"stripes-rho-0.5.{name}"] for name in names) == verdicts
    assert decided["stripes-rho-0.5.given"] == "holds"
    assert decided["keywords.direction"] == "inconclusive"  # which has no runs


def test_a_table_has_the_mean_over_rates_and_the_rate_of_each_seed():
    over, best = MatchedStep().tables(made((0.0, 5.0)))[0].rows
    seeds = range(6)
    assert over[1].value == pytest.approx(50 + 100 * sum(RATES) / 3 + 2.5, abs=0.03)
    chosen = [50 + 100 * RATES[seed % 3] + seed for seed in seeds]  # by its validation set
    assert best[1].value == pytest.approx(sum(chosen) / 6, abs=0.03)
    for row in (over, best):
        gap, by_steps, by_direction = (float(cell.value) for cell in row[-3:])
        assert (gap, by_steps, by_direction) == pytest.approx((5, 5, 0), abs=0.06)


def test_the_second_round_takes_the_steps_of_the_runs_that_finished():
    study, plan = MatchedStep(), Plan("small", seeds=(0, 1))
    first = study.trials(plan, Results([]))
    assert len(first) == 3 * 3 * 2 * 2  # benchmarks, rates, optimizers, seeds
    ended = made(lost=[(ADAMP, ADAMP, 1)], seeds=2)
    ended = ended.where(lambda item: item.arm.settings["direction"] == item.arm.settings["length"])
    later = study.trials(plan, ended)[len(first) :]
    given = [(t.arm.settings["direction"], t.spec.recipe, t.spec.seed) for t in later]
    by_rate = [(ADAM, "adam", 0), (ADAMP, "adamp", 0), (ADAMP, "adamp", 1)]
    assert sorted(given) == sorted(by_rate * 3)
    for trial in later:
        length, rate = trial.arm.settings["length"], trial.arm.settings["lr"]
        own = STRIPES.arm(length, length, rate)
        assert trial.spec.regime.steps_of == f"{own}-{trial.spec.seed}"
        assert trial.spec.hyper_parameters["lr"] == rate


def test_by_hand_a_projected_step_grows_the_norm_by_its_turn():
    turns = [0.3, 0.2, 0.1]
    norms = 2.0 / np.cumprod([1.0, *np.cos(turns)])
    spec = Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0})
    assert grow(spec, norms, np.array(turns), 3) == pytest.approx((norms[-1] / 2,) * 2, rel=1e-12)


def framed(score):
    """Two optimizers of which the second takes twice the step at an equal rate."""
    rows = [
        {"condition": "c", "optimizer": name, "lr": lr, "seed": seed, "step_last": lr * factor,
         "test": score(lr * factor, name) + seed}
        for name, factor in (("adam", 1.0), ("adamp", 2.0))
        for lr in (0.01, 0.02, 0.04, 0.08)
        for seed in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("score", "at_rate", "at_step"),
    [
        (lambda step, _: 10 * np.log(step), 10 * np.log(2), 0.0),  # the step alone decides
        (lambda step, name: np.log(step) + 5 * (name == "adamp"), np.log(2) + 5, 5.0),
    ],
)
def test_a_gain_that_is_a_matter_of_the_step_is_gone_at_an_equal_step(score, at_rate, at_step):
    frame = framed(score)
    (row,) = scores_table(frame).rows
    assert [float(cell.value) for cell in row[-2:]] == pytest.approx([at_rate, at_step], abs=1e-9)
    assert min(float(row[3].value), float(row[4].value)) > 0.98  # ranks within an optimizer
    scattered = scores_picture(frame).figure.data
    assert sum(len(trace.x) for trace in scattered) == len(frame) / 4  # seeds


def test_one_curve_of_the_step_explains_all_where_the_step_alone_decides():
    """And not where the optimizer decides: by hand, of scores without any other difference."""
    follows = answer_table(framed(lambda step, _: 10 * np.log(step))).rows
    assert float(follows[0][1].value) == pytest.approx(1.0)
    assert float(follows[1][1].value) < 0.95
    own = answer_table(framed(lambda _, name: 5.0 * (name == "adamp"))).rows
    assert float(own[1][1].value) == pytest.approx(0.0, abs=1e-9)  # both have every rate
    assert float(own[2][1].value) == pytest.approx(float(own[0][1].value))
