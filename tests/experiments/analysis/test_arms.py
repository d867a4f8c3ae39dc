"""Arms are records: equal if they are the same, and the same after a store has held them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from spherenorm_experiments.analysis import Arm, Result, Results, metric_on_test
from spherenorm_experiments.core import Spec

ARM = Arm("SGDP, wd 1e-5", "sgdp", {"weight_decay": 1e-5, "nu": None, "schedule": "step"})


@pytest.mark.parametrize("arm", [ARM, ARM.substitute("mine:recipe"), Arm("SGD", "sgd")])
def test_an_arm_comes_back_from_json_as_it_was(arm):
    back = Arm.from_json(json.loads(json.dumps(arm.to_json())))
    assert back == arm
    assert hash(back) == hash(arm)


def test_a_substitute_is_another_arm_under_the_same_settings():
    own = ARM.substitute("mine:recipe")
    assert own != ARM
    assert own.substitutes_for == ARM
    assert own.label == str(own) == "mine:recipe as SGDP, wd 1e-5"
    assert own.has(schedule="step", nu=None)
    assert not own.has(stage="search")


def test_results_are_picked_by_arm_label_and_settings():
    own = ARM.substitute("mine:recipe")
    results = Results([Result(arm, None, {"diverged_at": None}, None) for arm in (ARM, own)])
    assert results.arms == [ARM, own]
    assert results.arm(own).items == [results.items[1]] == results.arm(own.label).items
    assert len(results.having(schedule="step")) == 2
    assert results.own.having(schedule="step").arms == [ARM]


def result(seed, records=(), **summary):
    """A finished run of a seed, with these records."""
    folder = SimpleNamespace(metrics=SimpleNamespace(read=lambda: records))
    spec = Spec("digits", "sgd", seed=seed)
    return Result(ARM, spec, {"diverged_at": None, **summary}, folder)


def test_a_curve_holds_the_steps_that_all_runs_have():
    """A probe may lack a number at some steps of some runs."""
    rows = [{1: 10, 2: 20, 3: 30, 4: 40}, {1: 11, 3: 31, 4: None, 5: 51}]
    runs = [
        result(seed, [{"step": step, "norm": value} for step, value in row.items()])
        for seed, row in enumerate(rows)
    ]
    steps, values = Results([*runs, result(2, [{"step": 1}])]).curves("norm")
    np.testing.assert_array_equal(steps, [1, 3])
    np.testing.assert_array_equal(values, [[10, 30], [11, 31]])


def test_an_infinite_score_is_lost_and_not_left_out():
    """Its seed left out, the mean of an optimizer would gain by the failure."""
    lost = {"test": None, "test_metrics": {"accuracy": 50.0, "perplexity": None}}
    known = {"test": 1.0, "test_metrics": {"accuracy": 60.0, "perplexity": 3.0}}
    results = Results([result(0, **lost), result(1, **known)])
    for sample in (results.values("test"), results.values(metric_on_test("perplexity"))):
        assert (list(sample), sample.diverged) == ([1], {0})
    assert results.values(metric_on_test("accuracy")) == {0: 50.0, 1: 60.0}
    assert not results.values("norm_last").diverged
