"""The tables, claims and notes of `compare`, of fabricated runs."""

import pytest

from spherenorm_experiments.analysis import Arm, Result, Results, decide
from spherenorm_experiments.core import Spec, Task
from spherenorm_experiments.study import Comparing, Comparison


class Folder:
    """The files of a run, in memory."""

    name = "a run"


def comparison(numbers, metric="accuracy (%)"):
    """A comparison of arms with these test scores; None for a seed on which the run diverged."""
    study = Comparison(Comparing("digits", tuple(numbers), {"lr": (0.1, 1.0)}, 1))
    items = []
    for arm in study.arms:
        tuning = Arm(f"{arm.label}, tuning", arm.recipe, {"stage": "tuning"})
        runs = [(tuning, seed, 1.0) for seed in (10_000, 10_001)]
        runs += [(arm, seed, number) for seed, number in enumerate(numbers[arm.recipe])]
        for each, seed, number in runs:
            summary = {"diverged_at": 3 if number is None else None, "metric": metric}
            summary |= {"validation": number, "test": number, "score": "score"}
            summary["test_metrics"] = {} if number is None else {"score": number}
            spec = Spec("digits", arm.recipe, {"lr": 0.5}, seed=seed)
            items.append(Result(each, spec, summary, Folder()))
    return study, Results(items)


def test_the_seeds_of_an_arm_that_diverged_are_counted():
    lost = [None, 72.0, 73.0, None, 71.0, 74.0, 70.0]
    study, results = comparison({"sgd": [71.0] * 7, "adam": lost})
    table = study.tables(results)[0]
    place = [str(column) for column in table.columns].index("seeds")
    assert [str(row[place]) for row in table.rows] == ["7", "7"]


def test_scores_that_nobody_calls_percent_have_no_margin_of_a_point():
    """Shares between 0 and 1 would be equivalent whatever they are."""
    scores = {"sgd": [0.51, 0.62, 0.43, 0.55, 0.61, 0.48], "adam": [0.9, 0.4, 0.7, 0.5, 0.8, 0.4]}
    study, results = comparison(scores, Task.metric)
    (claim,) = decide(study.claims(results))
    assert (claim.verdict, claim.p_equivalent) == ("inconclusive", None)
    assert not claim.ours.endswith("pp")


def test_tasks_of_two_modules_have_pages_of_their_own():
    ranges = {"lr": (0.1, 1.0)}
    a, b = (Comparison(Comparing(f"{of}:Mine", ("sgd", "sgdp"), ranges)) for of in ("a.x", "b"))
    assert (a.name, b.name) == ("compare-a.x-Mine", "compare-b-Mine")


@pytest.mark.parametrize(
    ("rates", "mark", "said"),
    [
        ((0.001, 0.01, 1.0), "(edge)", "is at an edge of its range"),
        ((0.03, 0.1), "(outermost)", "is the outermost of its trials, within its range"),
    ],
)
def test_the_edge_of_a_range_is_told_from_the_last_trial(rates, mark, said):
    """The best is always the largest rate of the trials; the range goes up to 1."""
    study = Comparison(Comparing("digits", ("sgd", "adam"), {"lr": (0.001, 1.0)}, len(rates)))
    items = []
    for arm in study.arms:
        tuning = Arm(f"{arm.label}, tuning", arm.recipe, {"stage": "tuning"})
        runs = [(tuning, seed, lr) for lr in rates for seed in (10_000, 10_001)]
        runs += [(arm, seed, max(rates)) for seed in range(2)]
        for each, seed, lr in runs:
            summary = {"diverged_at": None, "metric": "m", "score": "score", "validation": lr}
            summary |= {"test": lr, "test_metrics": {"score": lr}}
            spec = Spec("digits", arm.recipe, {"lr": lr}, seed=seed)
            items.append(Result(each, spec, summary, Folder()))
    results = Results(items)
    (tuning,) = (table for table in study.tables(results) if table.title == "Tuning")
    assert all(any(mark in str(cell) for cell in row) for row in tuning.rows)
    assert said in study.claims(results)[0].detail
