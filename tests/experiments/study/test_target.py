"""Steps and time to a target that is fixed before the runs, and comparisons at several sizes."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from scipy import stats

from spherenorm_experiments.comparison import (
    CompareRequest,
    build_comparison,
    find_study,
    name_of,
)
from spherenorm_experiments.design import Target, runs_to_target
from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.runs import Place, Result, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import Store
from tests.experiments.fabricated import result
from tests.harness import refuses

PER_EPOCH = 4
SGD = Place("", "sgd")
ACCURACY = [60.0, 70.0, 80.0, 90.0]


def run_with(scores, place=SGD, seed=0, lr=0.1, losses=None, task="digits", **summary):
    """A run with these validation scores after its epochs, and a training loss at each step."""
    losses = losses or [1.0] * PER_EPOCH * len(scores)
    records = [{"step": k + 1, "loss": loss} for k, loss in enumerate(losses)]
    for epoch, score in enumerate(scores):
        end = records[(epoch + 1) * PER_EPOCH - 1]
        end |= {"validation": score, "validation/top 5": score + 5}
    numbers = {"steps": len(records), "steps_per_epoch": PER_EPOCH, "score": "accuracy (%)"}
    numbers |= {"test": scores[-1], "validation": scores[-1], "metric": "accuracy (%)", **summary}
    spec = Spec(task, place.arm, {"lr": lr}, seed=seed)
    return replace(result(place, seed, spec, records, **numbers), about={"seconds": 8.0})


@pytest.mark.parametrize(
    ("target", "steps"),
    [
        (("validation", 70.0), 8),
        (("accuracy (%)", 80.0), 12),
        (("accuracy (%)", 80.1), 16),
        (("validation", 91.0), math.inf),
        (("top 5", 75.0), 8),
        (("loss", 0.75), 8),
        (("loss", 0.5), math.inf),
    ],
)
def test_the_steps_to_a_target_are_those_of_the_first_epoch_that_has_it(target, steps):
    """The training loss is an epoch's mean: one low batch is no target that was reached."""
    losses = [1.0, 0.1, 1.0, 1.0, 0.9, 0.7, 0.7, 0.7, *[1.0] * 8]
    item = run_with(ACCURACY, losses=losses)
    assert Target(*target).steps(item) == steps
    assert Target(*target).seconds(item) == pytest.approx(steps * 8.0 / 16)


def test_a_file_of_rows_has_the_steps_without_the_records():
    item, target = run_with(ACCURACY), Target("validation", 70.0)
    assert target.steps(item) == 2 * PER_EPOCH
    without_records = replace(item, recorded=())
    assert target.steps(without_records) == 2 * PER_EPOCH
    assert without_records.metrics == []


def test_a_metric_that_falls_is_reached_from_above():
    metric = {"better": "lower", "score": "perplexity", "metric": "perplexity"}
    item = run_with([4.0, 3.0, 2.0], task="nowhere:Task", **metric)
    assert Target("perplexity", 3.0).steps(item) == 2 * PER_EPOCH
    assert Target("perplexity", 1.9).steps(item) == math.inf


def test_an_unknown_metric_is_an_error_that_names_those_of_the_run():
    with refuses("--target 'speed'", "accuracy (%)", "loss"):
        Target("speed", 1.0).steps(run_with(ACCURACY, test_metrics={"accuracy (%)": 90.0}))


def test_a_run_that_diverged_has_reached_what_it_reached_before(tmp_path):
    """The summary of a diverged run names its score, which has no value at the end."""
    summaries = {}
    for rate in (0.5, 1.0, 1e30):
        spec = Spec("spherenorm_falling:Cliff", "sgd", {"lr": rate}, epochs=3, batch_size=8)
        execute_spec(replace(spec, schedule="constant"), tmp_path / str(rate))
        (row,) = Store(tmp_path / str(rate)).rows()
        summaries[rate] = Result.of(SGD, row)
    target = Target("loss", 1.0)
    assert [run.diverged for run in summaries.values()] == [False, True, True]
    assert [target.steps(run) for run in summaries.values()] == [1, 1, math.inf]
    assert [run.summary["score"] for run in summaries.values()] == ["loss"] * 3


def study_with(*recipes, target=("validation", 80.0)):
    request = CompareRequest(
        task="digits", optimizers=recipes, search={"lr": (0.1, 0.2)}, trials=2, target=target
    )
    study = build_comparison(request)
    assert find_study(name_of(study)).target == Target(*target)
    return study


def grid(arm, seed, *epochs):
    """The runs of a seed at two rates, which reach the target after so many epochs; 0 for never."""
    curves = [[80.0 if n and epoch >= n - 1 else 50.0 for epoch in range(6)] for n in epochs]
    return [
        run_with(curve, Place("", arm), seed, lr)
        for curve, lr in zip(curves, (0.1, 0.2), strict=True)
    ]


def test_each_seed_takes_the_trial_that_is_first_and_is_censored_if_none_gets_there():
    runs = Runs([*grid("sgd", 0, 3, 2), *grid("sgd", 1, 0, 5), *grid("sgd", 2, 0, 0)])
    frame = runs_to_target(runs.complete_grid("", "sgd"), Target("validation", 80.0))
    assert frame.steps.to_dict() == {0: 8, 1: 20, 2: math.inf}


def decisions_of(epochs_of_sgd, epochs_of_adam):
    study = study_with("sgd", "adam")
    pairs = enumerate(zip(epochs_of_sgd, epochs_of_adam, strict=True))
    items = [
        item
        for seed, (first, second) in pairs
        for item in (*grid("sgd", seed, first, 0), *grid("adam", seed, second, 0))
    ]
    runs = Runs(items)
    _, speed = study.evaluate_claims(runs)
    return speed, study.tables(runs)[1]


def test_the_ratio_of_steps_is_paired_and_tested_by_its_logarithm():
    slow, fast = [6, 5, 6, 4, 6, 5], [2, 2, 3, 2, 3, 3]
    speed, table = decisions_of(slow, fast)
    logs = (pd.Series(fast) / pd.Series(slow)).map(math.log)
    assert speed.verdict == "supported"
    assert speed.p == pytest.approx(stats.ttest_1samp(logs, 0.0).pvalue)
    assert speed.numbers[0].value == pytest.approx(math.exp(logs.mean()))
    assert table.title == "Steps to validation 80"
    assert str(table.rows[1][-1]) == str(speed.numbers[0])
    assert [str(row[2]) for row in table.rows] == ["22", "10"]


def test_a_seed_that_never_gets_there_counts_by_its_sign():
    """Six seeds: only adam gets there on all; sgd on none, so that no ratio has a size."""
    speed, table = decisions_of([0] * 6, [3, 3, 4, 4, 5, 5])
    assert speed.verdict == "supported"
    assert speed.p == pytest.approx(2 / 2**6)
    assert [str(row[1]) for row in table.rows] == ["0 of 6", "6 of 6"]
    assert [str(row[2]) for row in table.rows] == ["∞", "16"]
    speed, _ = decisions_of([3, 3, 4, 4, 5, 5], [0] * 6)
    assert speed.verdict == "contradicted"
    speed, _ = decisions_of([0] * 6, [0] * 6)
    assert speed.verdict == "not tested"


@pytest.mark.parametrize(
    ("option", "text"),
    [("target", "loss"), ("target", "=2"), ("target", "loss=x"), ("sizes", "width"),
     ("sizes", "width=16"), ("sizes", "width=a,b")],
)  # fmt: skip
def test_a_wrong_word_is_refused_before_anything_runs(option, text):
    with refuses(f"--{option} {text!r}"):
        CompareRequest(task="digits", optimizers="sgd,adam", search=["lr=0.1:1"], **{option: text})


def test_each_size_is_a_condition_of_its_own():
    request = CompareRequest(
        task="spherenorm_tiny:Tiny", optimizers="sgd,adam", search=["lr=0.1:1"], sizes="scale=1,2"
    )
    request.require()
    study = find_study(name_of(build_comparison(request)))
    assert [each.label for each in study.conditions] == ["scale 1", "scale 2"]
    assert [each.setup.options for each in study.conditions] == [{"scale": 1}, {"scale": 2}]
    assert len(study.claims) == 2
    with refuses("no option 'width'"):
        CompareRequest(
            task="spherenorm_tiny:Tiny", optimizers="sgd,adam", search=["lr=0.1:1"],
            sizes="width=1,2",
        ).require()  # fmt: skip
    with refuses("no metric of --target is named 'msee'", "mse"):
        CompareRequest(
            task="spherenorm_falling:Falling", optimizers="sgd,adam", search=["lr=0.1:1"],
            target="msee=1",
        ).require()  # fmt: skip
