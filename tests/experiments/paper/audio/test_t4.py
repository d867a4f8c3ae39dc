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
    if not real:
        assert {s.epochs for s in mixed} == {s.epochs for s in others}


@pytest.mark.parametrize("real", [False, True])
def test_a_setting_of_adams_holds_for_the_sgd_that_follows(real, tmp_path):
    study = find_study("t4")
    plan = Plan("small", seeds=(0,), real=real, settings={"lr": 2e-3, "weight_decay": 0.5})
    asked = apply_plan(plan, study.trials(plan, Results([])), Door(Store(tmp_path)))
    mixed = [t.spec for t in asked if t.arm.settings["contender"] == "Adam + SGD"]
    assert len(mixed) == (3 if real else 6)  # the search has two seeds
    for spec in mixed:
        turns = spec.regime.then
        assert spec.hyper_parameters == {"lr": 2e-3, "weight_decay": 0.5}
        assert [turn["lr"] for turn in turns] == pytest.approx([2e-3, 2e-4, 2e-5])
        assert [turn["weight_decay"] for turn in turns] == [0.5] * 3


def test_the_papers_runs_have_the_papers_epochs():
    found = {
        (t.spec.options["data_set"], t.arm.settings["contender"]): t.spec.epochs
        for t in trials(real=True)
    }
    lengths = {"magnatagatune": 100, "speech_commands": 30, "dcase2017": 30}
    for data_set, epochs in lengths.items():
        for name in ("AdamW", "AdamP"):
            assert found[data_set, name] == epochs
        assert found[data_set, "Adam + SGD"] == 200
    for trial in trials(real=True):
        assert trial.spec.batch_size == 16
        assert trial.spec.hyper_parameters["lr"] == 1e-4


def test_claims_are_told_apart_by_their_texts():
    texts = [claim.text for claim in find_study("t4").claims(Results([]))]
    assert len(texts) == len(set(texts)) == 21


@pytest.mark.parametrize("real", [False, True], ids=["embedded", "real"])
def test_a_rate_for_all_is_that_of_the_mixtures_turns_too(real):
    plan = Plan("small", real=real, settings={"lr": 1e-2})
    rates = {
        tuple(turn["lr"] for turn in trial.spec.regime.then)
        for trial in find_study("t4").trials(plan, Results([]))
        if trial.spec.regime.then
    }
    assert rates == {(1e-2, 1e-3, 1e-4)}
