"""Table 4: the mixture of Adam and SGD, and the paper's runs."""

import pytest

from spherenorm.recipes import adam
from spherenorm_experiments.analysis import Results
from spherenorm_experiments.paper.audio.t4 import RATES, adam_before_sgd
from spherenorm_experiments.study import Plan, find_study


def trials(real):
    return find_study("t4").trials(Plan("small", real=real), Results([]))


@pytest.mark.parametrize("real", [False, True])
def test_sgd_takes_over_from_adam_at_a_factor_of_its_rate_and_lowers_it_twice(real):
    mixed = [t.spec for t in trials(real) if t.arm.settings["contender"] == "Adam + SGD"]
    assert mixed
    for spec in mixed:
        rate = spec.hyper_parameters["lr"] * spec.hyper_parameters["sgd_factor"]
        turns = spec.regime.then
        assert spec.schedule == "constant"
        assert [turn["recipe"] for turn in turns] == ["sgd"] * 3
        assert [turn["after"] * 200 for turn in turns] == pytest.approx([60, 80, 100])
        assert [turn["lr"] for turn in turns] == pytest.approx([rate, rate / 10, rate / 100])
        assert spec.hyper_parameters["weight_decay"] == turns[0]["weight_decay"] == 1e-4
    others = [t.spec for t in trials(real) if t.arm.settings["contender"] != "Adam + SGD"]
    assert all(s.schedule == "cosine" and not s.regime.then for s in others)
    assert (
        {s.hyper_parameters["sgd_factor"] for s in mixed} == {1.0} if real else {1.0, 10.0, 100.0}
    )
    assert ({s.epochs for s in others}, {s.epochs for s in mixed}) == (
        ({30, 100}, {200}) if real else ({8}, {16})
    )


def test_the_adam_of_the_mixture_is_adam():
    given = {"lr": 0.1, "weight_decay": 0.2}
    assert adam_before_sgd(**given, sgd_factor=10.0) == adam(**given)


def test_all_have_one_grid_of_rates():
    study = find_study("t4")
    assert {tuple(study.search(each).over["lr"]) for each in study.contenders} == {RATES}
