"""Backends: where runs are executed. Each yields the outcomes as they come, in any order.

A run knows everything from its spec and the store, so that a backend only has to call `execute` somewhere. A worker that
dies loses nothing but the work since its last checkpoint; whoever runs the spec again goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.extras import needed
from experiments.runner import CHECKPOINT_SECONDS, Outcome, execute
from experiments.spec import Spec, nearest

__all__ = ["BACKENDS", "find_backend"]

Backend = Callable[[Sequence[Spec], Path, int, float], Iterator[Outcome]]


def local(
    specs: Sequence[Spec], root: Path, jobs: int, checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> Iterator[Outcome]:
    """This process, or `jobs` processes of joblib's, each with one torch thread."""
    if jobs == 1 or len(specs) == 1:
        for spec in specs:
            yield execute(spec, root, checkpoint_seconds=checkpoint_seconds)
        return
    from joblib import Parallel, delayed

    pool = Parallel(
        n_jobs=min(jobs, len(specs)),
        return_as="generator_unordered",
        pre_dispatch="2*n_jobs",
        inner_max_num_threads=1,
    )
    yield from pool(
        delayed(execute)(spec, root, checkpoint_seconds=checkpoint_seconds) for spec in specs
    )


def ray(
    specs: Sequence[Spec], root: Path, jobs: int, checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> Iterator[Outcome]:
    """Ray tasks: on the cluster that Ray finds (RAY_ADDRESS), else one started here with `jobs` workers.

    The store must be on a disk that all of them see. A task whose worker dies is started again by Ray, up to three times.
    """
    ray_ = needed("ray", "the backend ray")
    if not ray_.is_initialized():
        here = "RAY_ADDRESS" not in os.environ
        ray_.init(num_cpus=jobs if here else None, include_dashboard=False, log_to_driver=False)
    remote: Any = ray_.remote(num_cpus=1, max_retries=3)(execute)
    waiting = [
        remote.remote(spec, Path(root).resolve(), checkpoint_seconds=checkpoint_seconds, wait=60.0)
        for spec in specs
    ]
    while waiting:
        ready, waiting = ray_.wait(waiting, num_returns=1)
        yield from ray_.get(ready)


def slurm(
    specs: Sequence[Spec], root: Path, jobs: int, checkpoint_seconds: float = CHECKPOINT_SECONDS
) -> Iterator[Outcome]:
    """A Slurm job array through submitit, `jobs` of it at a time; without Slurm, submitit's local processes.

    submitit's folder of logs is `<root>/slurm`. A job that is preempted or times out is requeued and resumes.
    """
    submitit = needed("submitit", "the backend slurm")
    folder = Path(root).resolve()

    def run(_: Any, spec: Spec) -> Outcome:
        return execute(spec, folder, checkpoint_seconds=checkpoint_seconds, wait=60.0)

    # Called again with the same arguments after a preemption; what it did before is in the store.
    job = type("Requeued", (submitit.helpers.Checkpointable,), {"__call__": run})()
    executor = submitit.AutoExecutor(folder=folder / "slurm", slurm_max_num_timeout=10)
    executor.update_parameters(cpus_per_task=1, timeout_min=240, slurm_array_parallelism=jobs)
    # Slurm itself keeps to `jobs` at a time; submitit's local processes would all start at once.
    size = len(specs) if executor.cluster == "slurm" else jobs
    for start in range(0, len(specs), size):
        with executor.batch():
            running = [executor.submit(job, spec) for spec in specs[start : start + size]]
        for done in submitit.helpers.as_completed(running):
            yield done.result()


BACKENDS: dict[str, Backend] = {"local": local, "ray": ray, "slurm": slurm}
PACKAGES = {"ray": "ray", "slurm": "submitit"}


def find_backend(name: str) -> Backend:
    """The backend called `name`; ValueError if there is none, or if its package is missing."""
    if name not in BACKENDS:
        raise ValueError(f"no backend is named {name!r}; {nearest(name, BACKENDS)}")
    if name in PACKAGES:
        needed(PACKAGES[name], f"the backend {name}")
    return BACKENDS[name]
