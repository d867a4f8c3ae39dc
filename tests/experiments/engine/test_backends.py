"""The same runs on processes and submitit; one that dies or is killed costs nothing but itself."""

import os
import signal
import threading
import time

import pytest
from kills import WAYS, check
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import Runner, find_backend
from spherenorm_experiments.engine.door import execute_spec
from tests.harness import refuses

SPECS = [tiny_spec(recipe, delay=0.03) for recipe in ("sgd", "sgdp")]


def summaries(specs, root):
    return [(folder_of(spec, root).path / "summary.json").read_bytes() for spec in specs]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Of runs in this process."""
    root = tmp_path_factory.mktemp("expected")
    for spec in SPECS:
        execute_spec(spec, root)
    return summaries(SPECS, root)


def outcomes_of(backend, specs, root, jobs, checkpoint_seconds=10.0, **flags):
    runs = [run_of(spec, root) for spec in specs]
    runner = Runner(checkpoint_seconds, **flags)
    found = list(find_backend(backend)(runs, jobs, runner))
    assert sorted(outcome.id for outcome in found) == sorted(run.id for run in runs)
    return {outcome.id: outcome for outcome in found}


def test_a_process_that_dies_fails_its_own_run_and_the_others_are_as_here(tmp_path, expected):
    dying = tiny_spec("spherenorm_tiny:dying", lr=0.1)
    found = outcomes_of("local", [dying, *SPECS], tmp_path, 2)
    died = found.pop(run_of(dying, tmp_path).id)
    assert (died.state, "SIGSEGV" in died.error) == ("failed", True)
    assert folder_of(dying, tmp_path).status()["error"] == died.error
    assert {outcome.state for outcome in found.values()} == {"finished"}
    assert summaries(SPECS, tmp_path) == expected


def test_a_run_that_takes_longer_than_its_limit_is_stopped(tmp_path):
    endless = tiny_spec(epochs=10**6, delay=0.1)
    (found,) = outcomes_of("local", [endless], tmp_path, 1, time_limit=0.5).values()
    assert (found.state, "0.5 s" in found.error) == ("failed", True)
    assert folder_of(endless, tmp_path).status()["error"] == found.error
    with refuses("time_limit", 0):
        Runner(time_limit=0)


@pytest.mark.long
def test_a_preempted_slurm_job_is_requeued_and_goes_on(tmp_path, expected):
    """On submitit's local processes, which get Slurm's signal and are requeued as its jobs are."""
    pytest.importorskip("submitit")
    folder, preempted = folder_of(SPECS[0], tmp_path), []

    def preempt():
        deadline = time.monotonic() + 300
        while not preempted and time.monotonic() < deadline:
            checkpoint = folder.load_checkpoint()
            if checkpoint is not None and 0 < checkpoint["done"] < 8:
                os.kill(folder.status()["pid"], signal.SIGUSR2)
                preempted.append(checkpoint["done"])
            time.sleep(0.01)

    watcher = threading.Thread(target=preempt)
    watcher.start()
    (found,) = outcomes_of("slurm", SPECS[:1], tmp_path, 1, 0.0).values()
    watcher.join()
    assert preempted
    assert found.state == "finished", found
    assert summaries(SPECS[:1], tmp_path) == expected[:1]
    assert any("preempt" in log.read_text() for log in (tmp_path / "slurm").glob("*_log.*"))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way.name)
def test_a_run_that_is_killed_equals_one_that_is_not(tmp_path, forkserver, way):
    assert check(forkserver, way, 3, 2, tmp_path)
