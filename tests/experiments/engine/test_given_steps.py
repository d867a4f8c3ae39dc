"""Effective steps that a run takes from another one (`Regime.steps_of`)."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from interrupted import assert_same_end, ended, stop_after
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm import as_view, metrics
from spherenorm_experiments.core import Regime, Spec
from spherenorm_experiments.engine import execute
from spherenorm_experiments.engine._given_steps import find_factor, turn_by

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
        ({"probe_every": 2, "epochs": 6}, "that run has 6 measured steps, not 12"),
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


@pytest.mark.parametrize("view", ["channel", "layer"])
def test_units_turn_in_their_own_direction_to_their_own_norm(view):
    generator = torch.Generator().manual_seed(0)
    units = as_view(view)
    for size in (1e-6, 0.1, 1.0):
        before = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        after = before + size * torch.randn(5, 4, generator=generator, dtype=torch.float64)
        own = metrics.angular_update(before, after, view)
        target = float((2 * torch.sin(0.7 * own / 2)).mean())
        new = turn_by(units, before, after, target)
        close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-15)
        close(metrics.angular_update(before, new, view), 0.7 * own)
        close(metrics.norm(new, view), metrics.norm(after, view))
        # before, new and after lie in a plane, in this order
        close(metrics.angular_update(new, after, view), 0.3 * own)


def test_a_step_that_is_nearly_radial_still_turns_as_far_as_is_asked():
    before = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    new = turn_by(as_view("channel"), before, before + torch.tensor([[7e-4, 3e-5]]), 0.05)
    assert float(metrics.effective_step(before, new)) == pytest.approx(0.05, rel=1e-9)
    assert float(metrics.norm(new)) == pytest.approx(1.0007, rel=1e-6)


def test_a_unit_that_did_not_turn_takes_its_norm_and_too_far_is_refused():
    before, after = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]), torch.ones(3, 2)
    after[0] = torch.tensor([3.0, 0.0])
    new = turn_by(as_view("channel"), before, after, 0.1)
    assert torch.equal(new[:2], after[:2])
    assert metrics.effective_step(before, new).tolist() == pytest.approx([0, 0, 0.3], rel=1e-5)
    assert torch.equal(turn_by(as_view("layer"), before, 2 * before, 0.1), 2 * before)
    with pytest.raises(ValueError, match="its units cannot turn by an effective step"):
        find_factor(np.array([0.1, 0.3]), 1.9)


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="steps_of must be the name of a run, got ''"):
        Regime(steps_of="")
    assert "regime" not in tiny_spec().to_json()
