"""Effective steps that a run takes from another one (`Regime.steps_of`)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from interrupted import assert_same_end, ended, stop_after
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Regime, Spec
from spherenorm_experiments.engine import execute
from spherenorm_experiments.engine._given_steps import find_factor

SETTING = {"lr": 0.05, "weight_decay": 0.1}


def wide_spec(recipe, steps_of=None, **changed):
    fields = {"epochs": 3, "batch_size": 16, "probes": ("norms", "steps"), **changed}
    regime = Regime(steps_of=steps_of)
    return Spec("spherenorm_tiny:Wide", recipe, SETTING, regime=regime, **fields)


def records(spec, root):
    run = run_of(spec, root)
    outcome = execute(run)
    assert outcome.state == "finished", outcome.error
    return run, run.folder.metrics.read()


@pytest.mark.parametrize(("recipe", "other"), [("adam", "adamp"), ("adamp", "adamw")])
def test_a_run_takes_the_effective_steps_of_another_one(tmp_path, recipe, other):
    reference, theirs = records(wide_spec(other), tmp_path)
    _, own = records(wide_spec(recipe), tmp_path)
    _, given = records(wide_spec(recipe, reference.id), tmp_path)
    views = reference.folder.summary()["views"]
    assert [views[name] for name in theirs[0]["steps"]] == ["channel", "layer"]
    for a, b in zip(given, theirs, strict=True):
        assert a["steps"] == pytest.approx(b["steps"], rel=1e-9)
    apart = [a["effective_step"] / b["effective_step"] for a, b in zip(own, theirs, strict=True)]
    assert max(abs(np.log(apart))) > 0.1  # by itself it takes others
    assert given[-1]["loss"] != theirs[-1]["loss"]  # its directions are its own


def test_a_run_with_its_own_steps_stays_as_it_is_and_only_invariant_weights_are_scaled(tmp_path):
    reference, theirs = records(wide_spec("adamw"), tmp_path)
    _, again = records(wide_spec("adamw", reference.id), tmp_path)
    for name in ("loss", "norm"):
        np.testing.assert_allclose([x[name] for x in again], [x[name] for x in theirs], rtol=1e-9)
    one = {"epochs": 1, "batch_size": 64}
    first, _ = records(wide_spec("adamp", **one, schedule="constant"), tmp_path)
    specs = [wide_spec("sgd", name, **one) for name in (None, first.id)]
    plain, scaled = (records(replace(s, hyper_parameters={"lr": 0.1}), tmp_path)[0] for s in specs)
    ends = [run.folder.load_checkpoint()["model"] for run in (plain, scaled)]
    same = {name: torch.equal(x, ends[1][name]) for name, x in ends[0].items()}
    assert {name for name, equal in same.items() if not equal} == {"0.weight", "3.weight"}


def test_its_identity_has_the_other_run_and_it_goes_on_where_it_was_interrupted(tmp_path):
    reference, _ = records(wide_spec("adamp"), tmp_path)
    spec = wide_spec("adam", reference.id)
    assert len({run_of(wide_spec("adam", name)).id for name in (None, "a", reference.id)}) == 3
    assert Regime.from_json(spec.to_json()["regime"]) == spec.regime
    stop_after(spec, tmp_path, 5)
    for root in (tmp_path, tmp_path / "whole"):
        records(wide_spec("adamp"), root)
        execute(run_of(spec, root))
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "'nobody': no run of this name has ended"),
        ({"probe_every": 4}, "that run has 3 measured steps, not 12; run it to its end, with"),
        ({"probes": ()}, "that run has 0 measured steps, not 12"),
        ({"epochs": 2}, "that run has 8 measured steps, not 12"),
        ({"task": "spherenorm_tiny:Tiny"}, "other scale-invariant weights, such as 3.weight"),
    ],
)
def test_a_run_without_fitting_steps_is_refused_by_name(tmp_path, changed, message):
    other = replace(wide_spec("adamp"), **changed)
    name = records(other, tmp_path)[0].id if changed else "nobody"
    outcome = execute(run_of(wide_spec("adam", name), tmp_path))
    assert outcome.state == "failed"
    assert message in outcome.error
    assert not folder_of(wide_spec("adam", name), tmp_path).metrics.path.exists()


def test_the_factor_is_that_of_the_mean_effective_step_of_all_units():
    generator = np.random.default_rng(0)
    for _ in range(200):
        along, across = generator.normal(0, 0.1, 9), generator.exponential(0.1, 9)
        factor = generator.uniform(0.01, 4)
        after = np.stack([1 + factor * along, factor * across])
        turned = after / np.linalg.norm(after, axis=0) - np.array([[1.0], [0.0]])
        target = np.linalg.norm(turned, axis=0).mean()
        assert find_factor(along, across, target) == pytest.approx(factor, rel=1e-9)
    with pytest.raises(ValueError, match="no multiple of its change is an effective step"):
        find_factor(np.ones(3), np.ones(3), 1.9)


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="steps_of must be the name of a run, got ''"):
        Regime(steps_of="")
    assert "regime" not in tiny_spec().to_json()
