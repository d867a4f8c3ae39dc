"""The trials of a plan; a run that is asked for again is not computed again."""

import importlib
import linecache
import sys
from dataclasses import replace

import pytest
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Arm, Results, Trial
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Store, rows_in
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.report.page import sections
from spherenorm_experiments.study import (
    Campaign,
    Plan,
    Study,
    apply_plan,
    find_study,
    read_requests,
)


class Few(Study):
    """Two points of a toy and of a network"""

    name = "few"

    def trials(self, plan, results):
        points = {"lr": [0.01, 0.1], "momentum": [0.0, 0.9]}
        common = {"seeds": tuple(self.chosen_seeds(plan)), "epochs": 3, "probes": ()}
        return [
            Trial(Arm(task, "sgd"), Spec(task, "sgd", points, **common))
            for task in ("cosine", "network")
        ]


class More(Few):
    """A third point of the toy"""

    def trials(self, plan, results):
        trial, _ = super().trials(plan, results)
        points = {"lr": [0.01, 0.1, 1.0], "momentum": [0.0, 0.9, 0.9]}
        return [replace(trial, spec=replace(trial.spec, hyper_parameters=points))]


class Twice(Few):
    """A run in two arms"""

    def trials(self, plan, results):
        trial, _ = super().trials(plan, results)
        point = {"lr": 0.1, "momentum": 0.9}
        spec = replace(trial.spec, hyper_parameters=point, seeds=())
        return [trial, Trial(Arm("alone", "sgd"), spec)]


FEW = Few()


def campaign(store, seeds, study):
    return Campaign([study], Plan("smoke", seeds), Door(store))


def computed(store, seeds, study=FEW):
    """The number of runs that a request for these seeds computes."""
    counts = []
    outcomes = campaign(store, seeds, study).run(lambda outcome, *_: counts.append(outcome.runs))
    assert all(outcome.state != "failed" for outcome in outcomes.values()), outcomes
    return sum(counts)


def names(store):
    """Of the runs in a store."""
    return [row.name for folder in store.folders() for row in rows_in(folder)]


def test_a_third_seed_costs_a_third(tmp_path):
    """Of two tasks with two points each."""
    store, whole = Store(tmp_path / "grown"), Store(tmp_path / "whole")
    assert [computed(store, seeds) for seeds in ((0, 1), (0, 1, 2))] == [8, 4]
    assert [computed(store, seeds) for seeds in ((0, 1, 2), (2, 1))] == [0, 0]
    assert computed(whole, (0, 1, 2)) == 12
    assert sorted(names(store)) == sorted(names(whole))


def test_points_that_lack_other_seeds_than_the_rest_are_computed_too(tmp_path):
    store, seeds = Store(tmp_path), (0, 1, 2)
    assert computed(store, (0, 1)) == 8
    assert computed(store, seeds, More()) == 2 * 1 + 3  # the new seed, and the new point
    _, results = campaign(store, seeds, More()).trials(More())
    assert len(results) == 9


def test_a_run_that_two_arms_ask_for_is_computed_once(tmp_path):
    store = Store(tmp_path)
    assert computed(store, (0, 1), Twice()) == 4
    _, results = campaign(store, (0, 1), Twice()).trials(Twice())
    assert len(results.arm("alone")) == 1


EDITED = """
from spherenorm import chain, rules as r
from spherenorm_experiments.analysis import Arm, Trial
from spherenorm_experiments.core import Spec
from spherenorm_experiments.study import Study

def mine(lr=0.1):
    return chain(r.StepSize({factor} * lr))

class Mine(Study):
    "A recipe that is edited"

    name = "mine"

    def trials(self, plan, results):
        seeds = tuple(self.chosen_seeds(plan))
        points = {{"lr": [0.01, 0.1]}}
        spec = Spec("cosine", "rows_edited:mine", points, seeds=seeds, epochs=3, probes=())
        return [Trial(Arm("mine", "rows_edited:mine"), spec)]
"""


def test_runs_of_an_edited_recipe_replace_those_of_the_one_before(tmp_path, monkeypatch):
    """In later requests for other seeds, too: else an arm would be a mixture of two recipes."""
    monkeypatch.syspath_prepend(tmp_path)
    store = Store(tmp_path / "runs")
    for factor, seeds in (("1.0", (0, 1)), ("1.0", (2,)), ("10.00", (3, 4)), ("10.00", (5,))):
        (tmp_path / "rows_edited.py").write_text(EDITED.format(factor=factor))
        sys.modules.pop("rows_edited", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        computed(store, seeds, find_study("rows_edited:Mine"))
        requests = read_requests(store)[0]
        (section,) = sections(store, requests)
        found = sorted({item.spec.seed for item in section.results})
        assert found == {1: [0, 1], 2: [0, 1, 2], 3: [3, 4], 4: [3, 4, 5]}[len(requests)]
        assert section.older == []


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
