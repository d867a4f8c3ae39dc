"""Backends: the processes that execute runs. Each yields the outcomes as they come, in any order.

A run knows everything from its spec and the store, so that a backend only has to call a function
somewhere. In this process that is `execute`, of the run as it was resolved. Another process is sent
the spec, and resolves it at its own door; it refuses one that is another run there, since sources
have changed meanwhile. A worker that dies loses nothing but the work since its
last checkpoint; whoever runs the spec again goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.core import Spec, require_extra
from spherenorm_experiments.engine._execute import execute
from spherenorm_experiments.engine._processes import in_workers
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import USUAL, Outcome, Runner
from spherenorm_experiments.engine.door import execute_spec

Backend = Callable[[Sequence[Run], int, Runner], Iterator[Outcome]]
"""Executes runs of one store: (runs, jobs at a time, runner)."""


def local(runs: Sequence[Run], jobs: int, runner: Runner = USUAL) -> Iterator[Outcome]:
    """This process, or `jobs` processes of one torch thread each; those too for a time limit.

    A process that dies, or that takes longer than the limit, fails its own run.
    """
    if (jobs > 1 and len(runs) > 1) or runner.time_limit is not None:
        yield from in_workers(runs, jobs, runner)
        return
    for run in runs:
        yield execute(run, runner)


def slurm(runs: Sequence[Run], jobs: int, runner: Runner = USUAL) -> Iterator[Outcome]:
    """A Slurm job array, `jobs` at a time, through submitit; without Slurm, its local processes.

    Submitit's folder of logs is `<root>/slurm`. A job that is preempted or times out is requeued
    and resumes.
    """
    import submitit

    def execute_there(_: Any, spec: Spec, root: Path, flags: dict[str, Any]) -> Outcome:
        return execute_spec(spec, root, wait=60.0, **flags)

    # Called again with the same arguments after a preemption; what it did before is in the store.
    job = type("Requeued", (submitit.helpers.Checkpointable,), {"__call__": execute_there})()
    root, flags = runs[0].store.root.resolve(), asdict(runner)
    executor = submitit.AutoExecutor(folder=root / "slurm", slurm_max_num_timeout=10)
    executor.update_parameters(
        cpus_per_task=runner.processes, timeout_min=240, slurm_array_parallelism=jobs
    )
    # Slurm itself keeps to `jobs` at a time; submitit's local processes would all start at once.
    size = len(runs) if executor.cluster == "slurm" else jobs
    for start in range(0, len(runs), size):
        with executor.batch():
            running = [
                executor.submit(job, run.spec, root, {**flags, "expected": run.id})
                for run in runs[start : start + size]
            ]
        for done in submitit.helpers.as_completed(running):
            yield done.result()


BACKENDS: dict[str, Backend] = {"local": local, "slurm": slurm}


def find_backend(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        ValueError: there is none, or its package is missing.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "slurm":
        require_extra("submitit", "the backend slurm")
    return BACKENDS[name]
