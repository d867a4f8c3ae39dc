"""Sides of claims about grids, held against plain loops over made-up runs and toys."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from spherenorm_experiments.paper.shared.grid import Choice, Grid, grid_of
from spherenorm_experiments.results import Arm, Result, Results
from spherenorm_experiments.spec import Spec, points_of
from spherenorm_experiments.tuning import (
    choose,
    grid_arm,
    of_best,
    of_equal_points,
    of_point,
    of_point_chosen_by,
)
from tests.experiments.fabricated import Made, result

RATES, SEEDS = (0.1, 0.3, 1.0), (4, 5, 6)
LOST = ("a", 1.0, 5)
"""An arm, a rate and a seed."""


def made(unscored=()):
    """Validation and test score and norm by arm, rate and seed; and the results."""
    random, known, items = np.random.default_rng(3), {}, []
    for name in "ab":
        arm = grid_arm(Arm(name, "sgd"), ["lr"])
        for rate in RATES:
            for seed in SEEDS:
                validation, test, norm = (float(x) for x in random.normal(size=3) + 5)
                lost = (name, rate, seed) == LOST or (name, seed) in unscored
                known[name, rate, seed] = (-math.inf if lost else validation, test, norm)
                numbers = {"validation": validation, "test": test, "norm_last": norm}
                summary = {**(dict.fromkeys(numbers) if lost else numbers),
                           "diverged_at": 3 if lost else None}  # fmt: skip
                spec = Spec("network", "sgd", {"lr": rate}, seed=seed)
                items.append(result(arm, seed, spec, **summary))
    return known, Results(items)


def best_rate(known, seed, names="a", rates=RATES):
    return max(
        ((name, rate) for name in names for rate in rates), key=lambda x: known[(*x, seed)][0]
    )


def test_each_seed_has_the_best_point_of_one_grid_or_of_several():
    known, results = made()
    for names in ("a", "ab"):
        expected = {s: known[(*best_rate(known, s, names), s)][1] for s in SEEDS}
        assert dict(of_best(*names)(results)) == expected
    expected = {s: known[(*best_rate(known, s, rates=(0.1, 0.3)), s)][1] for s in SEEDS}
    assert dict(of_best("a", among=(0.1, 0.3))(results)) == expected


def test_a_point_is_that_rate_and_one_where_a_run_diverged_says_so():
    known, results = made()
    assert dict(of_point("b", "norm_last", lr=0.3)(results)) == {
        seed: known["b", 0.3, seed][2] for seed in SEEDS
    }
    lost = of_point("a", "test", lr=1.0)(results)
    assert (set(lost), lost.diverged) == ({4, 6}, {5})
    nothing = of_point("a", "test", lr=0.2)(results)
    assert not nothing
    assert nothing.performance


def test_a_point_that_another_arm_chooses():
    known, results = made()
    expected = {s: known["b", best_rate(known, s)[1], s][2] for s in SEEDS}
    assert dict(of_point_chosen_by("a", "b", "norm_last")(results)) == expected


def test_equal_points_are_compared_seed_by_seed():
    known, results = made()
    ratio = of_equal_points(("b", "a"), key="norm_last")(results)
    # The first's divergence would count, the second's drops its point.
    assert dict(ratio) == pytest.approx(
        {
            seed: statistics.median(
                known["b", rate, seed][2] / known["a", rate, seed][2]
                for rate in RATES
                if ("a", rate, seed) != LOST
            )
            for seed in SEEDS
        }
    )
    other = of_equal_points(("a", "b"), key="norm_last", how="difference")(results)
    assert (set(other), other.diverged) == ({4, 6}, {5})


def test_a_seed_without_a_score_is_lost_wherever_it_had_to_choose():
    _, results = made(unscored={("a", 4)})
    for side in (of_best("a"), of_point_chosen_by("a", "b", "norm_last")):
        assert side(results).diverged == {4}
    assert not of_best("a", "b")(results).diverged  # it may choose the other
    runs = [item for item in results if item.spec.seed == 4 and item.arm.label.startswith("a")]
    assert choose(runs).diverged


def test_seeds_take_turns_among_points_that_tie():
    """With the first, an arm would take the low end of a plateau on every seed."""
    arm, taken = grid_arm(Arm("tied", "sgd"), ["lr"]), []
    for seed in range(12):
        runs = [
            result(arm, seed, Spec("network", "sgd", {"lr": rate}, seed=seed),
                   validation=score, test=rate, diverged_at=None)
            for rate, score in ((0.1, 4.0), (0.2, 5.0), (0.4, 5.0), (0.8, 5.0), (1.6, -math.inf))
        ]  # fmt: skip
        taken.append(choose(runs).summary["test"])
    assert {rate: taken.count(rate) for rate in set(taken)} == {0.2: 4, 0.4: 4, 0.8: 4}


TOY_RATES = [0.1, 0.1, 0.3, 0.3, 1.0, 1.0]
DECAYS = [0.0, 1.0] * 3
ARM = Arm("x", "sgdw")
TOY = ("cosine", "sgdw", {"lr": TOY_RATES, "weight_decay": DECAYS, "momentum": 0.9})
GAPS = [[6, 1, 2], [7, 1, 2], [9, 1, 2], [5, 9, 9], [8, 1, None], [9, 1, 2]]


def grid(gaps=GAPS, lists=TOY, seeds=(0, 1, 2)):
    """Of numbers by point and seed."""
    task, recipe, columns = lists
    specs = [Spec(task, recipe, point, seed=s) for point in points_of(columns) for s in seeds]
    numbers = [x for row in gaps for x in row]
    rows = [(spec, {"diverged_at": None, "gap": x}) for spec, x in zip(specs, numbers, strict=True)]
    return Grid([Result("", spec, summary, None, arm=ARM) for spec, summary in rows], 0)


def test_the_papers_start_chooses_and_the_others_are_scored():
    own = grid()
    assert own.tuned("gap", min) == Choice(3, 0.3, False)
    assert own.tuned("gap") == Choice(2, 0.3, False)
    assert own.tuned("gap", min, (0.0, 0.1)) == Choice(3 - 3, 0.1, False)
    assert dict(own.sample("gap", 3)) == {1: 9.0, 2: 9.0}


def test_a_seed_without_a_number_has_diverged():
    own = grid().sample("gap", 4)
    assert (dict(own), own.diverged) == ({1: 1.0}, {2})
    lost = grid([[None, 1, 1]] * 6)
    # so that a claim about it is lost, not empty
    assert lost.tuned("gap", min) == Choice(0, 0.1, lost=True)
    assert str(lost.tuned("gap", min).cell) == "none"
    assert Grid().tuned("gap").index is None
    assert math.isnan(Grid().tuned("gap").rate)


def test_an_arm_that_diverged_at_all_points_stays():
    items = [replace(item, summary={**item.summary, "diverged_at": 5})
             for item in grid([[None] * 3] * 6).items]  # fmt: skip
    own = grid_of(Results(items), ARM, 0)
    assert own.sample("gap", own.tuned("gap", min).index).diverged == {1, 2}


def test_a_curve_of_a_run_that_trained_with_others_is_read_by_step():
    spec = Spec("network", "sgdw", {"lr": 0.1})
    items = []
    for seed, scale in enumerate((1.0, 3.0)):
        summary = {"diverged_at": None, "every": 7}
        kept = {"norm": scale * np.arange(5)}
        own = replace(spec, seed=seed)
        items.append(Made("made", own, summary, None, 0, arm=ARM, kept=kept))
    assert items[1].curve("norm") == {0: 0.0, 7: 3.0, 14: 6.0, 21: 9.0, 28: 12.0}
    assert items[1].curve("loss") == {}
    steps, values = Results(items).curves("norm")
    assert steps.tolist() == [0, 7, 14, 21, 28]
    assert values.tolist() == [[0, 1, 2, 3, 4], [0, 3, 6, 9, 12]]
