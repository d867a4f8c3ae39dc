"""The trials of a study with a plan's optimizers and settings."""

import pytest
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Arm, Results
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Plan, apply_plan, find_study


def trials_of(study, plan):
    """The first round, as the plan wants it."""
    return apply_plan(plan, study.trials(plan, Results([])), Door(Store("nowhere")))


def test_a_recipe_of_ones_own_takes_the_setting_of_its_kin(tmp_path):
    _, trials, results = run_study(
        TinyStudy(), Store(tmp_path), optimizers=("sgd", "spherenorm_tiny:careful")
    )
    assert {run.spec.recipe for _, run in trials} == {"sgd", "spherenorm_tiny:careful"}
    own = results.where(lambda item: item.spec.recipe == "spherenorm_tiny:careful").items
    assert own[0].spec.hyper_parameters == {"lr": 0.1, "momentum": 0.9}
    assert own[0].arm == Arm("SGDP", "sgdp").substitute("spherenorm_tiny:careful")
    assert own[0].arm.label == "spherenorm_tiny:careful as SGDP"
    assert own[0].arm.substitutes_for.label == "SGDP"


def test_settings_reach_the_runs_that_know_them():
    study = TinyStudy()
    settings = {"lr": 0.3, "epochs": 1, "delta": 0.2, "scale": 2.0}
    trials = trials_of(study, Plan("smoke", settings=settings))
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgd"].hyper_parameters == {"lr": 0.3, "momentum": 0.9}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.3, "momentum": 0.9, "delta": 0.2}
    assert by_recipe["sgd"].epochs == 1
    assert by_recipe["sgd"].options == {"scale": 2.0}
    with pytest.raises(ValueError, match="no run has a setting 'momentun'; did you mean momentum"):
        trials_of(study, Plan("smoke", settings={"momentun": 0.3}))


def test_arms_that_are_one_run_are_one_arm(tmp_path):
    study = find_study("t1")
    plan = Plan("smoke", optimizers=("spherenorm_tiny:careful",))
    trials = trials_of(study, plan)
    assert len(trials) == 1
    own = Plan("smoke", settings={"weight_decay": 0.0})
    # The study's own arms keep their names.
    assert len({trial.arm for trial in trials_of(study, own)}) == 6
