"""Nothing that happens to the process of a run changes its result."""

import errno
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from interrupted import assert_same_end, ended, stop_after
from running import folder_of, run_of
from spherenorm_tiny import TASK, tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import CorruptFileWarning, Store, StoreError, execute
from spherenorm_experiments.engine.door import execute_spec

GAVE_UP = r"RuntimeError: this recipe gave up \(spherenorm_tiny.py, line \d+\)"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of `tiny_spec()` that nothing happens to."""
    root = tmp_path_factory.mktemp("whole")
    execute_spec(tiny_spec(), root)
    return ended(tiny_spec(), root)


def test_resuming_does_not_start_again(tmp_path, whole):
    spec = tiny_spec()
    stop_after(spec, tmp_path, 9)
    checkpoint = folder_of(spec, tmp_path).load_checkpoint()
    assert checkpoint["done"] == 9
    execute_spec(spec, tmp_path)
    assert_same_end(ended(spec, tmp_path), whole)


@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.jsonl", "status.json", "config.json"])
def test_a_corrupt_file_of_an_unfinished_run_does_not_count(tmp_path, whole, name):
    spec = tiny_spec()
    stop_after(spec, tmp_path, 7)
    flip_a_byte(folder_of(spec, tmp_path).path / name)
    folder = folder_of(spec, tmp_path)
    read = {"status.json": folder.status, "config.json": folder.config}.get(
        name, lambda: execute_spec(spec, tmp_path)
    )
    with pytest.warns(CorruptFileWarning, match=name):
        read()
    execute_spec(spec, tmp_path)
    assert_same_end(ended(spec, tmp_path), whole)


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
def test_a_run_is_done_again_if_one_of_its_files_is_corrupt(tmp_path, name):
    spec = tiny_spec()
    execute_spec(spec, tmp_path)
    before = ended(spec, tmp_path)
    flip_a_byte(folder_of(spec, tmp_path).path / name)
    with pytest.warns(CorruptFileWarning, match=name):
        outcome = execute_spec(spec, tmp_path)
    assert not outcome.cached
    assert_same_end(before, ended(spec, tmp_path))


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


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
    assert re.fullmatch(GAVE_UP, outcome.error)
    status = folder_of(spec, tmp_path).status()
    assert status["state"] == "failed"
    assert "spherenorm_tiny.py" in status["traceback"]
    assert not execute_spec(spec, tmp_path).cached  # tried again


@pytest.mark.parametrize("later", ["def mine(:\n", None], ids=["half", "gone"])
def test_a_file_that_is_saved_while_runs_go_on_changes_neither_run_nor_origin(
    tmp_path, monkeypatch, later
):
    """The code in memory runs, and its origin is that code."""
    source = "from spherenorm_tiny import careful\ndef mine(lr=0.1):\n    return careful(lr)\n"
    module = tmp_path / f"spherenorm_saved_{later is None}.py"
    monkeypatch.syspath_prepend(tmp_path)
    module.write_text(source)
    run = run_of(tiny_spec(f"{module.stem}:mine", lr=0.1), tmp_path)
    module.unlink() if later is None else module.write_text(later)
    assert execute(run).state == "finished"
    kept = Store(tmp_path).read_json(run.folder.read_json("origin.json")[0]["sources"])
    assert kept[module.stem] == source


def tiny_with(task, **options):
    spec = tiny_spec()
    return replace(spec, task=f"spherenorm_tiny:{task}", options={**spec.options, **options})


def test_a_metric_that_is_no_number_is_an_error_of_its_task_and_no_divergence(tmp_path):
    outcome = execute_spec(tiny_with("Unscored"), tmp_path)
    assert outcome.state == "failed"
    assert "the metric 'area' is not a number, although all outputs" in outcome.error
    outcome = execute_spec(tiny_with("Unscored", explode=True), tmp_path)
    assert outcome.state == "diverged"


def test_files_of_another_run_do_not_count(tmp_path, whole):
    """They are intact, but they are not this run's."""
    one, other = tiny_spec(seed=0), tiny_spec(seed=1)
    stop_after(one, tmp_path, 5)
    execute_spec(other, tmp_path)
    mine, theirs = folder_of(one, tmp_path), folder_of(other, tmp_path)
    for name in ("checkpoint.pt", "metrics.jsonl", "summary.json", "status.json", "config.json"):
        shutil.copyfile(theirs.path / name, mine.path / name)
    with pytest.warns(CorruptFileWarning, match="this run"):
        assert not execute_spec(one, tmp_path).cached
    assert_same_end(ended(one, tmp_path), whole)


def test_what_a_killed_process_left_half_written_is_deleted(tmp_path):
    spec = tiny_spec(epochs=1)
    folder = folder_of(spec, tmp_path).path
    folder.mkdir(parents=True)
    (folder / ".checkpoint.pt.1-1").write_text("half")
    execute_spec(spec, tmp_path)
    assert not (folder / ".checkpoint.pt.1-1").exists()


def test_a_file_that_cannot_be_read_is_an_error_of_the_store(tmp_path, monkeypatch):
    spec = tiny_spec(epochs=1)
    execute_spec(spec, tmp_path)
    folder = folder_of(spec, tmp_path)

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused)
        with pytest.raises(StoreError, match=r"cannot read .*Permission denied"):
            folder.summary()
    with pytest.raises(StoreError, match="File name too long"):
        execute_spec(spec, tmp_path / ("long" * 100))


def test_a_long_name_of_a_recipe_makes_no_path_that_is_too_long(tmp_path, monkeypatch):
    module = "spherenorm_" + "long_" * 30
    monkeypatch.syspath_prepend(tmp_path)
    name = "also_" * 20
    (tmp_path / f"{module}.py").write_text(f"from spherenorm_tiny import careful as {name}\n")
    assert execute_spec(tiny_spec(f"{module}:{name}"), tmp_path / "runs").state == "finished"


def test_a_run_keeps_its_sources_versions_and_hardware(tmp_path):
    spec = replace(tiny_spec("spherenorm_tiny:careful", epochs=1), seed=3)
    execute_spec(spec, tmp_path)
    execute_spec(replace(spec, seed=4), tmp_path)
    (origin,) = folder_of(spec, tmp_path).read_json("origin.json")
    assert origin["torch"] == torch.__version__
    assert {"python", "platform", "cpu", "gpu"} <= origin.keys()
    assert origin["backend"] in ("compiled", "rule")
    (kept,) = (tmp_path / "sources").iterdir()  # equal sources are kept once
    assert origin["sources"] == f"sources/{kept.name}"
    texts = Store(tmp_path).read_json(origin["sources"])
    assert texts["spherenorm_tiny"] == Path(sys.modules["spherenorm_tiny"].__file__).read_text()
    assert {"spherenorm.rules._momentum", "spherenorm_experiments.core._schedules"} <= texts.keys()


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


def test_two_processes_share_a_run_without_doing_it_twice(tmp_path, forkserver):
    spec = tiny_spec(epochs=20, delay=0.01)
    child = forkserver.Process(target=execute_spec, args=(spec, tmp_path))
    child.start()
    folder = folder_of(spec, tmp_path)
    while not (folder.path / "status.json").exists():
        time.sleep(0.01)
    assert execute_spec(spec, tmp_path).state == "busy"
    waited = execute_spec(spec, tmp_path, wait=-1)
    child.join()
    assert child.exitcode == 0
    assert waited.cached


@pytest.mark.parametrize("task", [TASK, "spherenorm_odd:Signs", "spherenorm_odd:Bounded"])
@pytest.mark.parametrize("probes", [("norms",), ()])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_that_explodes_in_its_last_step_has_diverged(tmp_path, task, probes, steps):
    """No loss is computed of the last weights; that of normalized ones would even be finite.

    So is a score that counts signs, and one of bounded outputs.
    """
    spec = Spec(
        task,
        "spherenorm_tiny:exploding",
        {"lr": 0.1},
        epochs=1,
        batch_size=64 // steps,
        probes=probes,
    )
    assert run_of(spec).steps == steps
    assert execute_spec(spec, tmp_path).state == "diverged"
    folder = folder_of(spec, tmp_path)
    assert folder.summary()["diverged_at"] < steps
    assert folder.summary()["test"] is None
    assert (
        "Infinity"
        not in folder.metrics.path.read_text() + (folder.path / "summary.json").read_text()
    )


def test_a_probe_without_a_number_is_no_divergence(tmp_path):
    own = "spherenorm_tiny:undefined_probe"
    spec = replace(tiny_spec(), probes=("norms", own))
    assert execute_spec(spec, tmp_path).state == "finished"
    records = folder_of(spec, tmp_path).metrics.read()
    assert all(record["moved"] == 1.0 and "ratio" not in record for record in records)


def test_buffers_that_are_not_persistent_are_in_a_checkpoint(tmp_path):
    spec = replace(tiny_spec(), task="spherenorm_odd:Warmed")
    assert execute_spec(spec, tmp_path / "whole").state == "finished"
    assert stop_after(spec, tmp_path, 3) == [1, 2, 3]
    assert execute_spec(spec, tmp_path).state == "finished"
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


def test_data_that_are_drawn_anew_on_each_call_are_refused():
    with pytest.raises(ValueError, match="Redrawn is drawn anew on each call"):
        run_of(replace(tiny_spec(), task="spherenorm_odd:Redrawn"))


@pytest.mark.parametrize("known", [False, True])
def test_items_with_a_generator_of_their_own_are_refused(known):
    """The number of workers would decide them, and no checkpoint has its state."""
    spec = replace(tiny_spec(), task="spherenorm_odd:StatefulItems", options={"known": known})
    with pytest.raises(ValueError, match=r"item 0 of .* is another one when it is read again"):
        run_of(spec)


def test_the_number_of_threads_is_the_callers_again(tmp_path):
    """A run uses one, whose number decides the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for spec in (tiny_spec(epochs=1), Spec("cosine", "sgd", {"lr": 0.1}, epochs=2, probes=())):
            assert execute_spec(spec, tmp_path).state == "finished"
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
