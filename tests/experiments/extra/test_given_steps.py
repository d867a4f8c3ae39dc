"""Runs whose weights turn as far as in another run; units turn in the direction of their step."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from running import run_of
from spherenorm_tiny import Wide

from spherenorm import as_view, metrics
from spherenorm_experiments.execute import execute
from spherenorm_experiments.extra.given_steps import GivenSteps, turn_by
from spherenorm_experiments.spec import Spec

SETTING = {"lr": 0.05, "weight_decay": 0.1}


@dataclass(frozen=True)
class GivenWide(GivenSteps, Wide):
    pass


def records(recipe, root, steps_of="", **changed):
    fields = {"epochs": 3, "batch_size": 16, "probes": ("norms", "steps"), **changed}
    run = run_of(Spec("spherenorm_tiny:Wide", recipe, SETTING, **fields), root)
    if steps_of:
        run = replace(run, task=GivenWide(steps_of=steps_of), name=f"{run.name}-given")
    outcome = execute(run)
    return run, outcome.error or run.folder.records()


def test_a_run_takes_the_effective_steps_of_another_one(tmp_path):
    recipe, other = "adam", "adamp"
    reference, theirs = records(other, tmp_path)
    _, own = records(recipe, tmp_path)
    _, given = records(recipe, tmp_path, reference.name)
    views = reference.folder.summary()["views"]
    assert [views[name] for name in theirs[0]["steps"]] == ["channel", "layer"]
    for a, b in zip(given, theirs, strict=True):
        assert a["steps"] == pytest.approx(b["steps"], rel=1e-9)
    apart = [a["effective_step"] / b["effective_step"] for a, b in zip(own, theirs, strict=True)]
    assert max(abs(np.log(apart))) > 0.1  # by itself it takes others
    assert given[-1]["loss"] != theirs[-1]["loss"]  # its directions are its own


def test_a_run_that_lacks_steps_gives_none(tmp_path):
    reference, _ = records("adamp", tmp_path, epochs=2)
    _, error = records("adam", tmp_path, reference.name)
    assert "8 measured steps, not 12" in error
    _, error = records("adam", tmp_path, "nobody")
    assert "0 measured steps" in error


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
