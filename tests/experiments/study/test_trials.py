"""The trials of a study with a plan's device and overrides."""

import pytest
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Arm, Results, Trial
from spherenorm_experiments.core import Spec
from spherenorm_experiments.study import Plan, apply_plan


def trials_of(study, plan):
    """The first round, as the plan wants it."""
    return apply_plan(plan, study.trials(plan, Results([])))


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


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({"lr": 0.5, "weight_decay": 0.3}, {"lr": [0.5], "weight_decay": [0.3]}),
        ({"weight_decay": 0.3, "lr": 0.5}, {"lr": [0.5], "weight_decay": [0.3]}),
        ({"lr": 0.5}, {"lr": [0.5, 0.5], "weight_decay": [0.0, 0.1]}),
        ({"weight_decay": 0.3, "lr": [1.0, 2.0, 3.0]},
         {"lr": [1.0, 2.0, 3.0], "weight_decay": [0.3] * 3}),
    ],
)  # fmt: skip
def test_each_of_several_settings_holds_at_the_points_of_a_sweep(settings, points):
    grid = {"lr": [0.1, 0.2, 0.1, 0.2], "weight_decay": [0.0, 0.0, 0.1, 0.1]}
    trial = Trial(Arm("SGD", "sgd"), Spec("cosine", "sgd", grid, seeds=(0,)))
    (applied,) = apply_plan(Plan(overrides=settings), [trial])
    assert applied.spec.hyper_parameters == points
