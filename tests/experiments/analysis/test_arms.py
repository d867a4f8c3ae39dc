"""Results by arm, and all runs of a store as one frame."""

import numpy as np
import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

import spherenorm_experiments
from spherenorm_experiments.execute import execute, execute_spec
from spherenorm_experiments.jobs import jobs_of
from spherenorm_experiments.results import Arm, Results, metric_on_test
from spherenorm_experiments.study import trials_of
from tests.experiments.fabricated import result

ARM = Arm("SGDP, wd 1e-5", "sgdp", {"weight_decay": 1e-5, "nu": None, "schedule": "step"})


def test_results_are_picked_by_arm_label_and_settings():
    own = Arm("mine", "mine:recipe", ARM.settings)
    results = Results([result(arm) for arm in (ARM, own)])
    assert results.arms == [ARM, own]
    assert results.arm(own).items == [results.items[1]] == results.arm(own.label).items
    assert len(results.having(schedule="step")) == 2
    assert own.has(schedule="step", nu=None)
    assert not own.has(stage="search")


def test_a_curve_holds_the_steps_that_all_runs_have():
    """A probe may lack a number at some steps of some runs."""
    rows = [{1: 10, 2: 20, 3: 30, 4: 40}, {1: 11, 3: 31, 4: None, 5: 51}]
    runs = [
        result(ARM, seed, records=[{"step": step, "norm": value} for step, value in row.items()])
        for seed, row in enumerate(rows)
    ]
    steps, values = Results([*runs, result(ARM, 2, records=[{"step": 1}])]).curves("norm")
    np.testing.assert_array_equal(steps, [1, 3])
    np.testing.assert_array_equal(values, [[10, 30], [11, 31]])


def test_an_infinite_score_is_lost_and_not_left_out():
    """Its seed left out, the mean of an optimizer would gain by the failure."""
    lost = {"test": None, "test_metrics": {"accuracy": 50.0, "perplexity": None}}
    known = {"test": 1.0, "test_metrics": {"accuracy": 60.0, "perplexity": 3.0}}
    results = Results([result(ARM, 0, **lost), result(ARM, 1, **known)])
    for sample in (results.values("test"), results.values(metric_on_test("perplexity"))):
        assert (list(sample), sample.diverged) == ([1], {0})
    assert results.values(metric_on_test("accuracy")) == {0: 50.0, 1: 60.0}
    assert not results.values("norm_last").diverged


def test_a_frame_has_a_row_for_each_run_however_it_was_computed(tmp_path):
    pytest.importorskip("pandas")
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
    trials = trials_of(ARM, "cosine", points, seeds, epochs=3, probes=())
    (job,) = jobs_of([run_of(trial.spec, root) for trial in trials])
    execute(job)


def test_a_run_that_two_commands_have_computed_at_once_is_one_row(tmp_path):
    pytest.importorskip("pandas")
    for seeds in ((0, 1), (1, 2)):
        _computed(tmp_path, {"lr": [0.01]}, seeds)
    assert sorted(spherenorm_experiments.load(tmp_path).seed) == [0, 1, 2]
