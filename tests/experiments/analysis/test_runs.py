"""`Runs`: frames by seed, the choice of each seed, and all runs of a store as one frame."""

import math
import statistics

import numpy as np
import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

import spherenorm_experiments
from spherenorm_experiments.execute import execute, execute_spec
from spherenorm_experiments.jobs import jobs_of
from spherenorm_experiments.runs import Place, Runs, curves_of, select_by_validation
from spherenorm_experiments.spec import Spec, points_of
from spherenorm_experiments.study import trials_of
from spherenorm_paper.shared import starts
from tests.experiments.fabricated import Made, result

RATES, SEEDS = (0.1, 0.3, 1.0), (4, 5, 6)
LOST = ("a", 1.0, 5)
"""An arm, a rate and a seed."""


def made(unscored=()):
    """Validation and test score and norm by arm, rate and seed; and the runs."""
    random, known, items = np.random.default_rng(3), {}, []
    for name in "ab":
        for rate in RATES:
            for seed in SEEDS:
                validation, test, norm = (float(x) for x in random.normal(size=3) + 5)
                lost = (name, rate, seed) == LOST or (name, seed) in unscored
                known[name, rate, seed] = (-math.inf if lost else validation, test, norm)
                numbers = {"validation": validation, "test": test, "norm_last": norm}
                summary = {**(dict.fromkeys(numbers) if lost else numbers),
                           "diverged_at": 3 if lost else None}  # fmt: skip
                spec = Spec("network", "sgd", {"lr": rate}, seed=seed)
                items.append(result(name, seed, spec, **summary))
    return known, Runs(items)


def best_rate(known, seed, name="a"):
    return max(RATES, key=lambda rate: known[name, rate, seed][0])


def test_each_seed_takes_the_point_that_its_own_validation_set_chooses():
    known, runs = made()
    expected = {s: known["a", best_rate(known, s), s][1] for s in SEEDS}
    assert runs.selected("", "a").test.to_dict() == expected
    expected = {s: known["b", best_rate(known, s), s][2] for s in SEEDS}
    assert runs.selected("", "b", rate_chosen_by="a").norm_last.to_dict() == expected


def test_a_run_that_diverged_has_the_worst_number_and_no_other_one():
    known, runs = made()
    norms = runs.at_point("", "b", lr=0.3).norm_last
    assert norms.to_dict() == {seed: known["b", 0.3, seed][2] for seed in SEEDS}
    lost = runs.at_point("", "a", lr=1.0)
    assert (lost.test[5], lost.norm_last[5]) == (-math.inf, math.inf)
    assert np.isfinite(lost.test[[4, 6]]).all()
    assert runs.at_point("", "a", lr=0.2).empty
    # Left out, the mean of an optimizer would gain by an infinite score.
    metrics = {"accuracy": 50.0, "perplexity": None}
    run = result("a", 0, test=None, test_metrics=metrics)
    (row,) = Runs([run, result("a", 1, test=1.0)]).frame[:1].to_dict("records")
    assert (row["test"], row["test.perplexity"]) == (-math.inf, -math.inf)
    assert row["test.accuracy"] == 50.0
    assert math.isnan(row["norm_last"])


def test_equal_points_are_compared_seed_by_seed():
    """The first's divergence counts, the second's drops its point."""
    known, runs = made()
    ratio = runs.median_over_common_rates(
        "", ("b", "a"), number=lambda a, b: a.norm_last / b.norm_last
    )
    expected = {
        seed: statistics.median(
            known["b", rate, seed][2] / known["a", rate, seed][2]
            for rate in RATES
            if ("a", rate, seed) != LOST
        )
        for seed in SEEDS
    }
    assert ratio.to_dict() == pytest.approx(expected)
    other = runs.median_over_common_rates(
        "", ("a", "b"), number=lambda a, b: a.norm_last - b.norm_last
    )
    assert other[5] == math.inf
    assert np.isfinite(other[[4, 6]]).all()


def test_a_seed_without_a_score_is_lost_wherever_it_had_to_choose():
    _, runs = made(unscored={("a", 4)})
    assert runs.selected("", "a").test[4] == -math.inf
    assert runs.selected("", "b", rate_chosen_by="a").norm_last[4] == math.inf
    assert np.isfinite(runs.selected("", "b", rate_chosen_by="a").norm_last[[5, 6]]).all()


def test_seeds_take_turns_among_points_that_tie():
    """With the first, an arm would take the low end of a plateau on every seed."""
    runs = [
        result("tied", seed, Spec("network", "sgd", {"lr": rate}, seed=seed), validation=score)
        for seed in range(12)
        for rate, score in ((0.1, 4.0), (0.2, 5.0), (0.4, 5.0), (0.8, 5.0), (1.6, None))
    ]
    taken = select_by_validation(Runs(runs).all_runs("", "tied")).lr.tolist()
    assert {rate: taken.count(rate) for rate in set(taken)} == {0.2: 4, 0.4: 4, 0.8: 4}


@pytest.mark.parametrize(
    ("ended_on", "rates", "seeds"),
    [
        ({1: 6, 2: 6, 3: 6}, [1, 2, 3], 6),
        ({1: 9, 2: 6, 3: 6}, [1, 2, 3], 6),  # a request for more seeds has stopped
        ({1: 9, 2: 8, 3: 6}, [1, 2, 3], 6),
        ({1: 3, 2: 3, 3: 3, 4: 12}, [1, 2, 3, 4], 3),  # one for few seeds came after it
        ({1: 6, 2: 6, 3: 6, 4: 2}, [1, 2, 3], 6),  # the grid grows, or grew on few seeds
        ({1: 6, 2: 3}, [1, 2], 3),
        ({}, [], 0),
    ],
)
def test_points_are_compared_on_the_same_seeds(ended_on, rates, seeds):
    """Else a seed would choose among other points than the rest."""
    runs = [
        result("a", seed, Spec("digits", "sgd", {"lr": lr}, seed=seed), validation=lr)
        for lr, count in ended_on.items() for seed in range(count)
    ]  # fmt: skip
    own = Runs(runs).complete_grid("", "a")
    assert sorted(set(own.lr)) == rates
    assert all(set(each.seed) == set(range(seeds)) for _, each in own.groupby("lr"))


def test_a_curve_holds_the_steps_that_all_runs_have():
    """A probe may lack a number at some steps of some runs."""
    rows = [{1: 10, 2: 20, 3: 30, 4: 40}, {1: 11, 3: 31, 4: None, 5: 51}]
    runs = [
        result("a", seed, records=[{"step": step, "norm": value} for step, value in row.items()])
        for seed, row in enumerate(rows)
    ]
    lost = result("a", 3, records=[{"step": 1, "norm": 5.0}], diverged_at=1)
    every = [*runs, result("a", 2, records=[{"step": 1}]), lost]
    steps, values = curves_of(every, "norm")
    np.testing.assert_array_equal(steps, [1, 3])
    np.testing.assert_array_equal(values, [[10, 30], [11, 31]])


def test_a_curve_of_a_run_that_trained_with_others_is_read_by_step():
    items = [
        Made(name="made", spec=Spec("network", "sgd", {"lr": 0.1}, seed=seed), folder=None, index=0,
             summary={"diverged_at": None, "every": 7}, place=Place("", "x"),
             kept={"norm": scale * np.arange(3)})
        for seed, scale in enumerate((1.0, 3.0))
    ]  # fmt: skip
    assert items[1].curve("norm") == {0: 0.0, 7: 3.0, 14: 6.0}
    assert items[1].curve("loss") == {}
    steps, values = curves_of(items, "norm")
    assert steps.tolist() == [0, 7, 14]
    assert values.tolist() == [[0, 1, 2], [0, 3, 6]]


TOY = {"lr": [0.1, 0.1, 0.3, 0.3, 1.0, 1.0], "weight_decay": [0.0, 1.0] * 3, "momentum": 0.9}
GAPS = [[6, 1, 2], [7, 1, 2], [9, 1, 2], [5, 9, 9], [8, 1, None], [9, 1, 2]]


def descents(gaps=GAPS, diverged_at=None):
    """Of numbers by point and start."""
    specs = [Spec("cosine", "sgdw", point, seed=s) for point in points_of(TOY) for s in range(3)]
    rows = zip(specs, (x for row in gaps for x in row), strict=True)
    items = [result("x", 0, spec, gap=x, diverged_at=diverged_at) for spec, x in rows]
    return Runs(items).all_runs("", "x")


def chosen(own, *arguments):
    best = starts.at_best(own, "gap", *arguments)
    return best.weight_decay.iloc[0], best.lr.iloc[0], starts.is_at_edge(own, best)


def test_the_papers_start_chooses_and_the_others_are_scored():
    own = descents()
    assert chosen(own) == (1.0, 0.3, False)
    assert chosen(own, (0.0, 0.1)) == (0.0, 0.1, True)
    assert starts.beside(starts.at_best(own, "gap"), "gap").to_dict() == {1: 9.0, 2: 9.0}
    assert starts.from_papers_start(starts.at_rate(own, 1.0)).summary["gap"] == 8


def test_a_start_without_a_number_is_infinitely_far():
    own = starts.at_rate(descents(), 1.0)
    first = own[own.weight_decay == 0.0]
    assert starts.beside(first, "gap").to_dict() == {1: 1.0, 2: math.inf}
    for diverged_at in (None, 5):  # so that a claim about it is lost, not empty
        lost = descents([[None] * 3] * 6, diverged_at)
        assert chosen(lost)[:2] == (0.0, 0.1)
        assert set(starts.beside(starts.at_best(lost, "gap"), "gap")) == {math.inf}
    nothing = Runs().all_runs("", "x")
    assert starts.at_best(nothing, "gap").empty
    assert starts.beside(starts.at_best(nothing, "gap"), "gap").empty
    assert starts.from_papers_start(starts.at_rate(nothing, 0.1)) is None


def test_a_frame_has_a_row_for_each_run_however_it_was_computed(tmp_path):
    _computed(tmp_path, {"lr": [0.01, 1e300], "momentum": 0.9}, (0, 1, 2))
    execute_spec(tiny_spec(), tmp_path)
    frame = spherenorm_experiments.load(tmp_path)
    assert len(frame) == frame.run.nunique() == 7
    toys = frame[frame.task == "cosine"]
    assert sorted(toys.seed) == [0, 0, 1, 1, 2, 2]
    assert set(toys.lr) == {0.01, 1e300}
    pivot = toys.pivot_table("final_gap", "lr", "seed", dropna=False)
    assert pivot.loc[0.01].notna().all()
    assert toys[toys.lr == 0.01].diverged_at.isna().all()
    (tiny,) = frame[frame.task != "cosine"].to_dict("records")
    assert tiny["test"] == tiny["test.score"]


def _computed(root, points, seeds):
    """Train toys as one computation."""
    trials = trials_of(Place("", "SGDP"), "cosine", "sgdp", points, seeds, epochs=3, probes=())
    (job,) = jobs_of([run_of(trial.spec, root) for trial in trials])
    execute(job)


def test_a_run_that_two_commands_have_computed_at_once_is_one_row(tmp_path):
    for seeds in ((0, 1), (1, 2)):
        _computed(tmp_path, {"lr": [0.01]}, seeds)
    assert sorted(spherenorm_experiments.load(tmp_path).seed) == [0, 1, 2]
