"""The same runs on processes, Slurm and Ray; one that dies or is killed costs but itself."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
from kills import WAYS, check
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.jobs import jobs_of, outcomes
from spherenorm_experiments.run import Runner
from spherenorm_experiments.spec import Spec
from tests.harness import refuses

SPECS = [tiny_spec(recipe, delay=0.03) for recipe in ("sgd", "sgdp")]


def summaries(specs, root):
    return [folder_of(spec, root).summary() for spec in specs]


pytestmark = pytest.mark.usefixtures("forkserver")


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
    found = list(outcomes(jobs_of(runs), jobs, runner, backend))
    assert sorted(outcome.name for outcome in found) == sorted(run.name for run in runs)
    return {outcome.name: outcome for outcome in found}


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "backend", ["local", pytest.param("slurm", marks=LONG), pytest.param("ray", marks=LONG)]
)
def test_a_process_that_dies_fails_its_own_run_and_the_others_are_as_here(
    tmp_path, expected, backend
):
    """Slurm's is submitit's own local cluster, Ray's has two workers."""
    if backend != "local":
        pytest.importorskip({"slurm": "submitit"}.get(backend, backend))
    dying = tiny_spec("spherenorm_tiny:dying", lr=0.1)
    found = outcomes_of(backend, [dying, *SPECS], tmp_path, 2)
    died = found.pop(run_of(dying, tmp_path).name)
    assert died.state == "failed"
    assert backend != "local" or "SIGSEGV" in died.error
    assert folder_of(dying, tmp_path).status()["error"] == died.error
    assert {outcome.state for outcome in found.values()} == {"finished"}
    assert summaries(SPECS, tmp_path) == expected


@pytest.mark.parametrize("moment", ["at the start", "as it trains"])
def test_a_process_of_the_pool_that_is_killed_costs_its_run_alone(tmp_path, expected, moment):
    """One that dies before it has a job, too, which ends pebble's pool."""
    killed = []

    def kill():
        deadline = time.monotonic() + 300
        while not killed and time.monotonic() < deadline:
            children = multiprocessing.active_children()
            status = folder_of(SPECS[0], tmp_path).status()
            if moment == "at the start" and children:
                os.kill(children[0].pid, signal.SIGKILL)
                killed.append(children[0].pid)
            elif moment != "at the start" and status.get("state") == "running":
                os.kill(status["pid"], signal.SIGKILL)
                killed.append(status["pid"])
            time.sleep(0.01)

    watcher = threading.Thread(target=kill)
    watcher.start()
    found = outcomes_of("local", SPECS, tmp_path, 2)
    watcher.join()
    assert killed
    failed = [outcome for outcome in found.values() if outcome.state == "failed"]
    assert len(failed) <= 1
    assert all("SIGKILL" in outcome.error for outcome in failed)
    outcomes_of("local", SPECS, tmp_path, 0)
    assert summaries(SPECS, tmp_path) == expected


def test_a_run_that_takes_longer_than_its_limit_is_stopped(tmp_path):
    endless = tiny_spec(epochs=10**6, delay=0.1)
    (found,) = outcomes_of("local", [endless], tmp_path, 1, time_limit=3.0).values()
    assert (found.state, "3 s" in found.error) == ("failed", True)
    assert folder_of(endless, tmp_path).status()["error"] == found.error
    with refuses("time_limit", 0):
        Runner(time_limit=0)


def test_runs_of_a_pure_task_train_together_by_points_and_the_seeds_that_they_lack():
    def spec(lr, seed, recipe="sgd", **more):
        return Spec("cosine", recipe, {"lr": lr, **more}, seed=seed, probes=())

    grid = [spec(lr, seed) for lr in (0.1, 0.2) for seed in (0, 1)]
    others = [spec(0.4, 1), spec(0.1, 0, "adamp"), spec(0.1, 0, nesterov=True)]
    batches = jobs_of([run_of(each) for each in [*grid, *others]])
    assert [[run.spec for run in job.runs] for job in batches] == [grid, *([x] for x in others)]


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


@pytest.mark.parametrize(
    "way",
    [way if way in (WAYS[0], WAYS[2]) else pytest.param(way, marks=LONG) for way in WAYS],
    ids=[way.name for way in WAYS],
)
def test_a_run_that_is_killed_equals_one_that_is_not(tmp_path, forkserver, way):
    assert check(forkserver, way, 3, 2, tmp_path)
