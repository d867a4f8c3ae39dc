"""Table 4: the mixture of Adam and SGD, and the paper's runs."""

import pytest

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Plan, find_study
from spherenorm_experiments.study._trials import apply_plan


def trials(real):
    return find_study("t4").trials(Plan("small", real=real), Results([]))


@pytest.mark.parametrize("real", [False, True])
def test_sgd_takes_over_from_adam_at_its_rate_and_lowers_it_twice(real):
    mixed = [t.spec for t in trials(real) if t.arm.settings["contender"] == "Adam + SGD"]
    assert mixed
    for spec in mixed:
        rate = spec.hyper_parameters["lr"]
        turns = spec.regime.then
        assert (spec.recipe, spec.schedule) == ("adam", "constant")
        assert [turn["recipe"] for turn in turns] == ["sgd"] * 3
        assert [turn["after"] * 200 for turn in turns] == pytest.approx([60, 80, 100])
        assert [turn["lr"] for turn in turns] == pytest.approx([rate, rate / 10, rate / 100])
        assert spec.hyper_parameters["weight_decay"] == turns[0]["weight_decay"] == 1e-4
    others = [t.spec for t in trials(real) if t.arm.settings["contender"] != "Adam + SGD"]
    assert all(s.schedule == "cosine" and not s.regime.then for s in others)
    assert {s.epochs for s in mixed} == ({200} if real else {s.epochs for s in others})


@pytest.mark.parametrize("real", [False, True])
def test_a_setting_of_adams_holds_for_the_sgd_that_follows(real, tmp_path):
    study = find_study("t4")
    plan = Plan("small", seeds=(0,), real=real, overrides={"lr": 2e-3, "weight_decay": 0.5})
    asked = apply_plan(plan, study.trials(plan, Results([])), Door(Store(tmp_path)))
    mixed = [t.spec for t in asked if t.arm.settings["contender"] == "Adam + SGD"]
    assert len(mixed) == (3 if real else 6)  # the search has two seeds
    for spec in mixed:
        turns = spec.regime.then
        assert spec.hyper_parameters == {"lr": 2e-3, "weight_decay": 0.5}
        assert [turn["lr"] for turn in turns] == pytest.approx([2e-3, 2e-4, 2e-5])
        assert [turn["weight_decay"] for turn in turns] == [0.5] * 3
