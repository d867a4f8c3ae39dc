"""The trials of a plan; a run that is asked for again is not computed again."""

from dataclasses import replace

import pytest
from spherenorm_tiny import TASK, TinyStudy

from spherenorm_experiments import store as store_module
from spherenorm_experiments.campaign import Campaign
from spherenorm_experiments.execute import Resolver
from spherenorm_experiments.plan import Plan, Request, apply_plan
from spherenorm_experiments.report import sections
from spherenorm_experiments.runs import Place, Runs, Trial
from spherenorm_experiments.spec import Spec, run_name
from spherenorm_experiments.store import Store
from spherenorm_experiments.study import Study, trials_of


class Few(Study):
    """Two points of a toy and of a network"""

    name = "few"

    def trials(self, plan, runs):
        points = {"lr": [0.01, 0.1], "momentum": [0.0, 0.9]}
        common = {"epochs": 3, "probes": ()}
        seeds = self.chosen_seeds(plan)
        made = [
            trials_of(Place("", task), task, "sgd", points, seeds, **common)
            for task in ("cosine", "network")
        ]
        return [*made[0], *made[1]]


class More(Few):
    """A third point of the toy"""

    def trials(self, plan, runs):
        points = {"lr": [0.01, 0.1, 1.0], "momentum": [0.0, 0.9, 0.9]}
        seeds = self.chosen_seeds(plan)
        place = Place("", "cosine")
        return trials_of(place, "cosine", "sgd", points, seeds, epochs=3, probes=())


class Twice(Few):
    """A run in two arms"""

    def trials(self, plan, runs):
        made = [t for t in super().trials(plan, runs) if t.spec.task == "cosine"]
        (again,) = (
            t.spec for t in made if (t.spec.hyper_parameters["lr"], t.spec.seed) == (0.1, 0)
        )
        return [*made, Trial(Place("", "alone"), again)]


FEW = Few()


def campaign(store, seeds, study):
    return Campaign([study], Plan("smoke", seeds), Resolver(store))


def computed(store, seeds, study=FEW):
    """The number of runs that a request for these seeds computes."""
    found = campaign(store, seeds, study).run()
    assert all(outcome.state != "failed" for outcome in found.values()), found
    return sum(outcome.runs for outcome in found.values())


def names(store):
    """Of the runs in a store."""
    return [row.name for row in store.rows()]


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
    assert len(results.all_runs("", "alone")) == 1


class Failing(Study):
    """Many runs of a recipe that raises, and of one that does not"""

    name = "failing"

    def trials(self, plan, runs):
        made = []
        for recipe in ("spherenorm_tiny:raising", "sgd"):
            points = {"lr": [0.1, 0.2, 0.3]}
            place = Place("", recipe)
            made += trials_of(place, TASK, recipe, points, (0, 1), batch_size=16)
        return made


def test_where_the_first_run_of_a_recipe_fails_the_others_are_left_out(tmp_path):
    study, store = Failing(), Store(tmp_path)
    found = campaign(store, None, study).run()
    states = [outcome.state for outcome in found.values()]
    assert (states.count("failed"), states.count("finished")) == (1, 6)


def edited(monkeypatch, word):
    """An edit of the tiny task's module."""
    digest = store_module.file_digest

    def other(path):
        return word if path.name == "spherenorm_tiny.py" else digest(path)

    monkeypatch.setattr(store_module, "file_digest", other)


def test_a_report_takes_the_newest_rows_and_marks_those_of_other_code(tmp_path, monkeypatch):
    """Rows that an edit has made old are trained again by the next request."""
    computed(Store(tmp_path), (0, 1), TinyStudy())
    requests = [Request(["spherenorm_tiny:TinyStudy"], Plan("smoke", seeds=(0, 1)))]
    with monkeypatch.context() as patch:
        edited(patch, "once more")
        (section,) = sections(Store(tmp_path), requests)
        assert len(section.results) == section.results.planned
        assert section.older == [["spherenorm_tiny"]] * section.results.planned
        assert computed(Store(tmp_path, accept_code=True), (0, 1), TinyStudy()) == 0
        assert computed(Store(tmp_path), (0, 1), TinyStudy()) == 6
        (section,) = sections(Store(tmp_path), requests)
        assert section.older == []
    (section,) = sections(Store(tmp_path), requests)
    assert section.older


def test_rows_of_other_data_are_not_compared_with_those_of_the_newest(tmp_path):
    """Half of an arm that was trained on other data is missing, and no part of the comparison."""
    store, spec = Store(tmp_path), Spec(TASK, "sgd", {"lr": 0.1})
    for seed, data in ((0, "old"), (1, "old"), (0, "new")):
        own = replace(spec, seed=seed)
        name = run_name(own, data)
        store.folder(name).finish([(name, own, {"diverged_at": None, "test": 1.0})], [], {})
    found = store.newest([spec, replace(spec, seed=1)])
    assert [row.name for row in found.values()] == [run_name(spec, "new")]
    failed = replace(spec, seed=2, options={"scale": 2.0})
    store.folder(run_name(failed, "data")).write_status("failed", error="it gave up")
    assert store.newest([failed]) == {}


def planned(study, plan):
    """The first round, as the plan wants it."""
    return apply_plan(plan, study.trials(plan, Runs()))


def test_settings_reach_the_runs_that_know_them():
    study = TinyStudy()
    settings = {"lr": 0.3, "epochs": 1, "delta": 0.2, "scale": 2.0}
    trials = planned(study, Plan("smoke", overrides=settings))
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgd"].hyper_parameters == {"lr": 0.3, "momentum": 0.9}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.3, "momentum": 0.9, "delta": 0.2}
    assert by_recipe["sgd"].epochs == 1
    assert by_recipe["sgd"].options == {"scale": 2.0}
    with pytest.raises(ValueError, match="no run has a setting 'momentun'; did you mean momentum"):
        planned(study, Plan("smoke", overrides={"momentun": 0.3}))


@pytest.mark.parametrize(
    ("settings", "points"),
    [
        ({"lr": 0.5, "weight_decay": 0.3}, [(0.5, 0.3)]),
        ({"lr": 0.5}, [(0.5, 0.0), (0.5, 0.1)]),
        ({"weight_decay": 0.3, "lr": [1.0, 2.0, 3.0]}, [(1.0, 0.3), (2.0, 0.3), (3.0, 0.3)]),
    ],
)
def test_settings_hold_at_every_point_and_equal_points_are_one(settings, points):
    grid = {"lr": [0.1, 0.2, 0.1, 0.2], "weight_decay": [0.0, 0.0, 0.1, 0.1]}
    trials = trials_of(Place("", "SGD"), "cosine", "sgd", grid, (0,))
    applied = apply_plan(Plan(overrides=settings), trials)
    found = [tuple(t.spec.hyper_parameters[name] for name in grid) for t in applied]
    assert found == points
