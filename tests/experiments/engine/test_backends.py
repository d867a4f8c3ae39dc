"""The same runs on processes and submitit; one that dies costs its own run only."""

import os
import signal
import threading
import time

import pytest
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import Runner, StoreError, find_backend
from spherenorm_experiments.engine.door import execute_spec


def summaries(specs, root):
    return [(folder_of(spec, root).path / "summary.json").read_bytes() for spec in specs]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Four runs in this process."""
    specs = [tiny_spec(recipe, seed, delay=0.03) for recipe in ("sgd", "sgdp") for seed in (0, 1)]
    root = tmp_path_factory.mktemp("reference")
    for spec in specs:
        execute_spec(spec, root)
    return specs, summaries(specs, root)


def outcomes_of(backend, specs, root, jobs, checkpoint_seconds=10.0, **flags):
    runs = [run_of(spec, root) for spec in specs]
    runner = Runner(checkpoint_seconds, **flags)
    return list(find_backend(backend)(runs, jobs, runner))


@pytest.mark.parametrize("jobs", [1, 2])
def test_local(tmp_path, reference, jobs):
    specs, expected = reference
    outcomes = outcomes_of("local", specs, tmp_path, jobs)
    runs = [run_of(spec, tmp_path) for spec in specs]
    assert sorted(outcome.id for outcome in outcomes) == sorted(run.id for run in runs)
    assert summaries(specs, tmp_path) == expected


def test_a_process_that_dies_fails_its_own_run(tmp_path):
    """The limit lets one process execute all of them, and the next one after its death."""
    specs = [
        tiny_spec("spherenorm_tiny:dying", lr=0.1),
        tiny_spec("spherenorm_tiny:printing", lr=0.1),
        tiny_spec(epochs=1),
    ]
    found = outcomes_of("local", specs, tmp_path, 1, time_limit=600)
    assert [outcome.id for outcome in found] == [run_of(spec, tmp_path).id for spec in specs]
    assert [outcome.state for outcome in found] == ["failed", "finished", "finished"]
    assert found[0].error == "its process was killed by SIGSEGV"
    assert folder_of(specs[0], tmp_path).status()["error"] == found[0].error


def test_a_run_that_takes_longer_than_its_limit_is_stopped(tmp_path):
    endless = tiny_spec(epochs=10**6, delay=0.1)
    (found,) = outcomes_of("local", [endless], tmp_path, 1, time_limit=0.5)
    assert (found.state, found.error) == ("failed", "stopped after its time limit of 0.5 s")
    assert folder_of(endless, tmp_path).status()["error"] == found.error
    with pytest.raises(ValueError, match="time_limit must be positive seconds, got 0"):
        Runner(time_limit=0)


def test_a_store_that_cannot_be_written_stops_all(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        outcomes_of("local", [tiny_spec(), tiny_spec(seed=1)], tmp_path, 1, time_limit=600)


def test_a_worker_refuses_a_run_that_is_another_one_there(tmp_path):
    """Its sources were edited after the run was asked for: it would be stored under their name."""
    spec = tiny_spec(epochs=1)
    outcome = execute_spec(spec, tmp_path, expected="tiny-sgdp-0123456789abcdef")
    assert (outcome.id, outcome.state) == ("tiny-sgdp-0123456789abcdef", "failed")
    assert f"here it is {run_of(spec).id}" in outcome.error
    assert not list(tmp_path.iterdir())
    assert execute_spec(spec, tmp_path, expected=run_of(spec).id).state == "finished"


def test_the_time_limit_holds_on_a_cluster(tmp_path):
    """The process that a cluster starts stops the run; it is not asked to stop itself."""
    long = tiny_spec(epochs=40, delay=0.1)
    found = execute_spec(long, tmp_path, time_limit=0.5)
    assert (found.state, found.error) == ("failed", "stopped after its time limit of 0.5 s")
    assert folder_of(long, tmp_path).status()["error"] == found.error


def test_a_preempted_slurm_job_is_requeued_and_goes_on(tmp_path, reference):
    """On submitit's local processes, which get Slurm's signal and are requeued as its jobs are."""
    pytest.importorskip("submitit")
    specs, expected = reference
    preempted, folders = [], [folder_of(specs[0], tmp_path)]

    def preempt_one():
        deadline = time.monotonic() + 300
        while not preempted and time.monotonic() < deadline:
            for folder in folders:
                checkpoint = folder.load_checkpoint()
                if checkpoint is not None and 0 < checkpoint["done"] < 8:
                    os.kill(folder.status()["pid"], signal.SIGUSR2)
                    preempted.append(checkpoint["done"])
                    return
            time.sleep(0.01)

    watcher = threading.Thread(target=preempt_one)
    watcher.start()
    outcomes = outcomes_of("slurm", specs[:1], tmp_path, 1, 0.0)
    watcher.join()
    assert preempted
    assert {outcome.state for outcome in outcomes} == {"finished"}, outcomes
    assert summaries(specs[:1], tmp_path) == expected[:1]
    assert any("preempt" in log.read_text() for log in (tmp_path / "slurm").glob("*_log.*"))
