"""Jobs: the processes that execute runs, on this machine or on a cluster.

A run knows everything from its spec and the store, so that a backend only has to call
`execute_in_worker` somewhere, and to say when the call has ended. Whatever ends a process costs its
own job alone, and nothing but the work since the last checkpoint; who asks again goes on from
there.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.execute import execute, execute_in_worker
from spherenorm_experiments.lookup import FOLDER, require_extra
from spherenorm_experiments.run import DEFAULT_RUNNER, Job, Outcome, Run, Runner, die_with_parent
from spherenorm_experiments.spec import is_number
from spherenorm_experiments.store import StoreError
from spherenorm_experiments.task import Task

ROWS = 512
"""The most runs that train as one computation."""

TRIES = 3
"""Times that a pool is begun for jobs whose pool has broken."""

SECONDS_BETWEEN_LOOKS = 1.0
"""At a pool of which no call ends: if it has broken."""

ONE_THREAD = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")]

Call = Callable[[], Outcome]
"""`execute_in_worker` of a job."""

Ended = tuple[Job, Call]
"""A job whose call has ended; the second gives its outcome, or raises what has ended it."""


def jobs_of(runs: Sequence[Run]) -> list[Job]:
    """Runs on batches one by one; those of a pure task together, points times seeds.

    Points train together that lack the same seeds, and that differ in numbers alone.
    """
    points: dict[tuple[str, str], list[Run]] = {}
    for run in (run for run in runs if not isinstance(run.task, Task)):
        content = {"hyper_parameters": {}, **run.spec.to_json(), "seed": None}
        values = content["hyper_parameters"]
        kinds = {name: "number" if is_number(x) else x for name, x in values.items()}
        family = [content | {"hyper_parameters": kinds}, run.name.rpartition("-")[2]]
        place = json.dumps(family, sort_keys=True), json.dumps(values, sort_keys=True)
        points.setdefault(place, []).append(run)
    grids: dict[tuple[str, tuple[int, ...]], list[list[Run]]] = {}
    for (family_name, _), runs_of_point in points.items():
        seeds = tuple(run.spec.seed for run in runs_of_point)
        grids.setdefault((family_name, seeds), []).append(runs_of_point)
    jobs = []
    for (_, seeds), grid in grids.items():
        size = max(1, ROWS // len(seeds))
        for part in (grid[start : start + size] for start in range(0, len(grid), size)):
            jobs.append(Job([run for runs_of_point in part for run in runs_of_point]))
    return jobs + [Job([run]) for run in runs if isinstance(run.task, Task)]


def outcomes(
    jobs: Sequence[Job],
    count: int,
    runner: Runner = DEFAULT_RUNNER,
    backend: str = "local",
    wait: float = 0,
) -> Iterator[Outcome]:
    """Execute jobs of one store; the outcomes as they come, in any order.

    Args:
        count: jobs at a time; 0 executes them in this process.
        wait: seconds to wait for another process that holds a run.

    Raises:
        StoreError: the store cannot be written; the other jobs are stopped.
    """
    for job, result in find_backend(backend)(jobs, count, runner, wait):
        try:
            outcome = result()
        except (KeyboardInterrupt, StoreError):
            raise
        except BaseException as error:  # a dead process, a time limit, a lost node
            reason = _reason(error, runner)
            job.folder.write_status("failed", error=reason, names=job.names)
            outcome = Outcome(job.name, "failed", error=reason)
        if outcome.state == "lost":
            raise StoreError(outcome.error)
        yield replace(outcome, name=job.name, runs=len(job.runs))


def _reason(error: BaseException, runner: Runner) -> str:
    """Why a call has ended without an outcome."""
    code = getattr(error, "exitcode", None)
    if isinstance(error, TimeoutError):
        return f"stopped after its time limit of {runner.time_limit:g} s"
    if isinstance(code, int) and code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""  # which Windows does not define
        return f"its process was killed by {name}{hint}"
    if isinstance(code, int):
        return f"its process ended with the exit code {code}"
    lines = str(error).strip().splitlines() or [""]
    return f"its job has ended: {type(error).__name__}: {lines[0]}"


def _call(job: Job, runner: Runner, wait: float) -> Call:
    store, specs = job.first.store, [run.spec.to_json() for run in job.runs]
    where = str(store.root.resolve()), replace(runner, time_limit=None)
    more: dict[str, Any] = {"accept_code": store.accept_code, "wait": wait}
    return functools.partial(execute_in_worker, specs, job.names, *where, **more)


def local(jobs: Sequence[Job], count: int, runner: Runner, wait: float) -> Iterator[Ended]:
    """This process, or `count` processes of one torch thread each."""
    if count == 0 and runner.time_limit is None:
        for job in jobs:
            yield job, functools.partial(execute, job, runner, wait=wait)
        return
    pending = list(jobs)
    for _ in range(TRIES):
        for job, future in _run_in_pool(list(pending), max(1, count), runner, wait):
            pending.remove(job)
            yield job, future.result
        if not pending:
            return
    yield from ((job, _not_started_outcome) for job in pending)


def _not_started_outcome() -> Outcome:
    raise RuntimeError("no process has lived long enough to take it")


def _run_in_pool(
    jobs: Sequence[Job], count: int, runner: Runner, wait: float
) -> Iterator[tuple[Job, Any]]:
    """Yield the jobs whose calls have ended, with the futures of these.

    A process that dies while none has a job breaks pebble's pool: it aborts the calls that it has
    taken, refuses others, and forgets those between. All of these are left.
    """
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    with _pool(min(count, len(jobs) or 1)) as pool:
        try:
            futures: dict[Any, Job] = {}
            with suppress(RuntimeError):  # it has broken
                for job in jobs:
                    call = _call(job, runner, wait)
                    futures[pool.schedule(_run_and_record, [call], timeout=runner.time_limit)] = job
            while futures:
                ended, _ = wait_for(futures, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                if not ended and not pool.active:
                    break
                for future in ended:
                    job = futures.pop(future)
                    if not isinstance(future.exception(), BrokenProcessPool):
                        yield job, future
        except BaseException:  # Ctrl-C, a store that cannot be written, a consumer that stops
            pool.stop()
            pool.join()
            raise


def _pool(count: int) -> Any:
    """Processes that are forked from one which has imported torch, where there can be such."""
    from pebble import ProcessPool

    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(["spherenorm_experiments.execute", "torch._dynamo"])
    return ProcessPool(
        count, initializer=_init_worker, initargs=(os.environ.get(FOLDER),), context=context
    )


def _init_worker(folder: str | None) -> None:
    """Start a process of the pool: what a recipe prints goes to the standard error."""
    die_with_parent()
    os.dup2(2, 1)
    if folder is not None:
        os.environ[FOLDER] = folder


def _run_and_record(call: Call) -> Outcome:
    """Return the outcome of a call, in whose run it is noted if the pool stops it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return call()
    finally:
        signal.signal(signal.SIGTERM, before)


def slurm(jobs: Sequence[Job], count: int, runner: Runner, wait: float) -> Iterator[Ended]:
    """A Slurm job array, `count` at a time, through submitit; without Slurm, its local processes.

    Submitit's folder of logs is `<root>/slurm`. A job that is preempted or times out is requeued
    and resumes.
    """
    submitit = require_extra("submitit", "the backend slurm")
    # Called again with the same arguments after a preemption; what it did before is in the store.
    methods = {"__call__": lambda _, call: call()}
    again = type("Requeued", (submitit.helpers.Checkpointable,), methods)()
    folder = jobs[0].first.store.root.resolve() / "slurm"
    executor = submitit.AutoExecutor(folder=folder, slurm_max_num_timeout=10)
    resources = {"gpus_per_node": runner.gpus, "mem_gb": runner.memory}
    executor.update_parameters(
        cpus_per_task=max(runner.processes, 1 + runner.workers),
        timeout_min=runner.minutes,
        slurm_array_parallelism=max(1, count),
        **{name: value for name, value in resources.items() if value},
        **({} if runner.partition is None else {"slurm_partition": runner.partition}),
    )
    # Slurm itself keeps to `count` at a time; submitit's local processes would all start at once.
    size = len(jobs) if executor.cluster == "slurm" else max(1, count)
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        with executor.batch():
            submitted = [
                executor.submit(again, _call_with_timeout(job, runner, wait)) for job in part
            ]
        jobs_by_task = {id(task): job for task, job in zip(submitted, part, strict=True)}
        for ended_task in submitit.helpers.as_completed(submitted):
            yield jobs_by_task[id(ended_task)], ended_task.result


def ray(jobs: Sequence[Job], count: int, runner: Runner, wait: float) -> Iterator[Ended]:
    """Tasks of Ray, on the cluster that RAY_ADDRESS names, else on `count` cores here."""
    cluster: Any = require_extra("ray", "the backend ray")
    if not cluster.is_initialized():
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
        here: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": max(1, count)}
        cluster.init(runtime_env=paths, log_to_driver=False, include_dashboard=False, **here)
    memory = None if runner.memory is None else runner.memory * 2**30
    resources = {"num_cpus": runner.processes, "num_gpus": runner.gpus, "memory": memory}
    remote = cluster.remote(_run).options(max_retries=0, **resources)
    pending = {remote.remote(_call_with_timeout(job, runner, wait)): job for job in jobs}
    try:
        while pending:
            (ended, *_), _ = cluster.wait(list(pending))
            yield pending.pop(ended), functools.partial(cluster.get, ended)
    finally:
        for task in pending:
            cluster.cancel(task, force=True)


def _run(call: Call) -> Outcome:
    return call()


def _call_with_timeout(job: Job, runner: Runner, wait: float) -> Call:
    """The call of a job; with a time limit in a process of its own there, which can be stopped."""
    call = _call(job, runner, wait)
    return call if runner.time_limit is None else functools.partial(_run_with_timeout, call, runner)


def _run_with_timeout(call: Call, runner: Runner) -> Outcome:
    with _pool(1) as pool:
        outcome: Outcome = pool.schedule(
            _run_and_record, [call], timeout=runner.time_limit
        ).result()
    return outcome


BACKENDS = {"local": (local, ""), "slurm": (slurm, "submitit"), "ray": (ray, "ray")}
"""Each takes jobs, how many at a time, the flags, and the seconds to wait for a busy run; and the
package that it needs."""


def find_backend(name: str) -> Callable[[Sequence[Job], int, Runner, float], Iterator[Ended]]:
    """Return the backend called `name`.

    Raises:
        ValueError: there is none, or its package is missing.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    backend, package = BACKENDS[name]
    if package:
        require_extra(package, f"the backend {name}")
    return backend
