"""Nothing that happens to the process of a run changes its result; what cannot run is refused."""

import errno
import importlib.metadata
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import assert_same_end, ended, folder_of, run_of, stop_after
from spherenorm_tiny import TASK, tiny_spec

from spherenorm_experiments import store as store_module
from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import Store, StoreError, StoreWarning
from tests.harness import refuses


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of `tiny_spec()` that nothing happens to."""
    root = tmp_path_factory.mktemp("whole")
    execute_spec(tiny_spec(), root)
    return ended(tiny_spec(), root)


@pytest.mark.parametrize("failing", [1, 3, 8])
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, whole, monkeypatch, failing):
    spec, calls, real = tiny_spec(), [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) >= failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        execute_spec(spec, tmp_path, checkpoint_seconds=0.0)
    assert not list(tmp_path.rglob(".*.*"))  # no half-written files
    monkeypatch.setattr(os, "fsync", real)
    assert execute_spec(spec, tmp_path).state == "finished"
    assert_same_end(ended(spec, tmp_path), whole)


def test_a_recipe_that_raises_fails_its_run_and_says_where(tmp_path):
    spec = tiny_spec("spherenorm_tiny:raising", lr=0.1)
    outcome = execute_spec(spec, tmp_path)
    assert outcome.state == "failed"
    assert re.search(r"this recipe gave up \(spherenorm_tiny.py, line \d+\)", outcome.error)
    status = folder_of(spec, tmp_path).status()
    assert status["state"] == "failed"
    assert "spherenorm_tiny.py" in status["traceback"]
    assert not execute_spec(spec, tmp_path).cached  # tried again


@pytest.mark.parametrize(
    ("task", "options", "state", "named"),
    [
        ("Unscored", {}, "failed", "'area'"),
        ("Unscored", {"explode": True}, "diverged", ""),
        ("Picky", {}, "failed", "the metric refuses"),
        ("Picky", {"explode": True}, "diverged", ""),
        ("Picky", {"explode": True, "at_once": True}, "diverged", ""),
        ("Plain", {}, "failed", "'score'"),
        ("Unnamed", {}, "failed", "must return the metrics by name"),
        ("Unreduced", {}, "failed", "must return a scalar tensor, such as the mean over"),
    ],
)
def test_what_is_no_metric_or_loss_is_an_error_of_its_task_unless_the_model_diverged(
    tmp_path, task, options, state, named
):
    spec = replace(tiny_spec(), task=f"spherenorm_tiny:{task}", options=options)
    outcome = execute_spec(spec, tmp_path)
    assert (outcome.state, named in outcome.error) == (state, True)


def test_what_a_killed_process_left_half_written_is_deleted(tmp_path):
    spec = tiny_spec(epochs=1)
    folder = folder_of(spec, tmp_path).path
    folder.mkdir(parents=True)
    (folder / ".checkpoint.pt.1-1").write_text("half")
    execute_spec(spec, tmp_path)
    assert not (folder / ".checkpoint.pt.1-1").exists()


def test_a_row_has_the_versions_the_hardware_and_the_code_it_was_trained_with(tmp_path):
    spec = tiny_spec("spherenorm_tiny:careful", epochs=1)
    execute_spec(spec, tmp_path)
    (row,) = folder_of(spec, tmp_path).rows()
    assert row.about["torch"] == importlib.metadata.version("torch")
    assert {"python", "platform", "cpu", "gpu", "executor", "seconds"} <= row.about.keys()
    (name,) = row.code
    kept = json.loads((tmp_path / "code" / f"{name}.json").read_text())
    here = Path(sys.modules["spherenorm_tiny"].__file__).read_text()
    assert kept["sources"]["spherenorm_tiny"] == here
    assert "spherenorm_tiny" in kept["files"]
    assert not any(name.startswith("spherenorm.") for name in kept["files"])
    assert kept["release"] == row.about["spherenorm"]


@pytest.fixture
def edit(monkeypatch):
    """Calling it edits a file that the tiny task has loaded."""
    digest = store_module.file_digest

    def edited(path):
        return "edited" if path.name == "spherenorm_tiny.py" else digest(path)

    return lambda: monkeypatch.setattr(store_module, "file_digest", edited)


@pytest.mark.parametrize("accept", [True, False])
def test_a_checkpoint_of_other_code_is_gone_on_from_only_if_it_is_accepted(tmp_path, edit, accept):
    """The row then names both."""
    spec = tiny_spec()
    stop_after(spec, tmp_path, 5)
    edit()
    execute_spec(spec, tmp_path, accept_code=accept)
    (row,) = folder_of(spec, tmp_path).rows()
    assert len(row.code) == 1 + accept
    assert Store(tmp_path).is_current(row.code) != accept


def test_a_row_that_cannot_be_read_is_named_and_made_again(tmp_path, whole):
    spec = tiny_spec()
    execute_spec(spec, tmp_path)
    path = folder_of(spec, tmp_path).path / "rows.json"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.warns(StoreWarning, match=r"rows\.json"):
        assert execute_spec(spec, tmp_path).state == "finished"
    assert_same_end(ended(spec, tmp_path), whole)


def test_a_loss_that_is_not_finite_ends_the_run_with_a_result(tmp_path):
    spec = tiny_spec("spherenorm_tiny:exploding", lr=0.1)
    outcome = execute_spec(spec, tmp_path)
    summary = folder_of(spec, tmp_path).summary()
    assert outcome.state == "diverged"
    assert (
        summary["diverged_at"] == 0
    )  # in float32 the first step's norm overflows, before any loss does
    assert summary["validation"] is None
    assert execute_spec(spec, tmp_path).cached
    unwatched = replace(spec, probes=())
    assert execute_spec(unwatched, tmp_path).state == "diverged"
    assert 1 <= folder_of(unwatched, tmp_path).summary()["diverged_at"] <= 3


RECURRENT = {"layers": 2, "width": 8, "heads": 2, "inner": 8, "segment": 96, "recurrent": True}


@pytest.mark.parametrize(
    ("task", "options"), [("spherenorm_odd:Warmed", {}), ("language", RECURRENT)]
)
def test_buffers_that_are_not_persistent_are_in_a_checkpoint(tmp_path, task, options):
    """Among them the memory of a language model that goes on from batch to batch."""
    spec = replace(tiny_spec(epochs=1), task=task, options=options)
    assert execute_spec(spec, tmp_path / "whole").state == "finished"
    assert stop_after(spec, tmp_path, 3) == [1, 2, 3]
    assert execute_spec(spec, tmp_path).state == "finished"
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


def test_the_number_of_threads_is_the_callers_again(tmp_path):
    """A run uses one, whose number decides the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        execute_spec(tiny_spec(epochs=1), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("task", "probes", "steps"),
    [
        (TASK, ("norms",), 1),
        (TASK, (), 2),
        ("spherenorm_odd:Signs", (), 1),
        ("spherenorm_odd:Bounded", ("norms",), 2),
        ("spherenorm_odd:Bounded", (), 1),
    ],
)
def test_a_run_that_explodes_in_its_last_step_has_diverged(tmp_path, task, probes, steps):
    """No loss is computed of the last weights; that of normalized ones would even be finite.

    So is a score that counts signs, and one of bounded outputs.
    """
    fields = {"epochs": 1, "batch_size": 64 // steps, "probes": probes}
    spec = Spec(task, "spherenorm_tiny:exploding", {"lr": 0.1}, **fields)
    assert execute_spec(spec, tmp_path).state == "diverged"
    folder = folder_of(spec, tmp_path)
    assert folder.summary()["diverged_at"] < steps
    assert folder.summary()["test"] is None
    for path in (folder.path / "metrics.jsonl", folder.path / "rows.json"):
        assert "Infinity" not in path.read_text()


@pytest.mark.parametrize(
    ("task", "options"),
    [("Redrawn", {}), ("StatefulItems", {}), ("StatefulItems", {"known": True})],
)
def test_data_that_differ_on_each_call_are_refused(task, options):
    """The number of workers would decide them, and no checkpoint has their state."""
    with refuses():
        run_of(replace(tiny_spec(), task=f"spherenorm_odd:{task}", options=options))
