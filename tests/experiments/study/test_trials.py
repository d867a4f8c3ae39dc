"""The trials of a study with a plan's device and overrides."""

import pytest
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.study import Plan, apply_plan


def trials_of(study, plan):
    """The first round, as the plan wants it."""
    return apply_plan(plan, study.trials(plan, Results([])), Door(Store("nowhere")))


def test_settings_reach_the_runs_that_know_them():
    study = TinyStudy()
    settings = {"lr": 0.3, "epochs": 1, "delta": 0.2, "scale": 2.0}
    trials = trials_of(study, Plan("smoke", overrides=settings))
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgd"].hyper_parameters == {"lr": 0.3, "momentum": 0.9}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.3, "momentum": 0.9, "delta": 0.2}
    assert by_recipe["sgd"].epochs == 1
    assert by_recipe["sgd"].options == {"scale": 2.0}
    with pytest.raises(ValueError, match="no run has a setting 'momentun'; did you mean momentum"):
        trials_of(study, Plan("smoke", overrides={"momentun": 0.3}))


@pytest.mark.parametrize("name", ["t1", "f2", "g1"])
def test_a_study_of_fixed_methods_refuses_optimizers_and_names_compare(name, tmp_path):
    for optimizers in (("sgd",), ("spherenorm_tiny:careful",)):
        with pytest.raises(ValueError, match=f"'{name}' is of fixed methods; `compare "):
            run_study(name, Store(tmp_path), optimizers=optimizers)
    assert not list(tmp_path.iterdir())
