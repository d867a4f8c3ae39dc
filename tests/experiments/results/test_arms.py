"""Arms are records: equal if they are the same, and the same after a store has held them."""

import json

import pytest

from experiments.results import Arm, Result, Results

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
