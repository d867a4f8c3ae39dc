"""Jobs: the processes that execute runs, on this machine or on a cluster.

A run knows everything from its spec and the store, so that a backend only has to call
`execute_there` somewhere, and to say when the call has ended. Whatever ends a process costs its own
job alone, and nothing but the work since the last checkpoint; who asks again goes on from there.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.execute import execute, execute_there
from spherenorm_experiments.ranks import die_with_parent
from spherenorm_experiments.run import USUAL, Job, Outcome, Run, Runner
from spherenorm_experiments.store import StoreError
from spherenorm_experiments.sweep import is_number
from spherenorm_experiments.task import FOLDER, PureTask

ROWS = 512
"""The most runs that train as one computation."""

TRIES = 3
"""Times that a pool is begun for jobs whose pool has broken."""

SECONDS_BETWEEN_LOOKS = 1.0
"""At a pool of which no call ends: if it has broken."""

ONE_THREAD = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")]

Call = Callable[[], Outcome]
"""`execute_there` of a job."""

Ended = tuple[Job, Call]
"""A job whose call has ended; the second gives its outcome, or raises what has ended it."""


def jobs_of(runs: Sequence[Run]) -> list[Job]:
    """Runs on batches one by one; those of a pure task together, points times seeds.

    Points train together that lack the same seeds, and that differ in numbers alone.
    """
    jobs: list[Job] = []
    seeds: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if isinstance(run.task, PureTask):
            point = json.dumps(dict(run.spec.hyper_parameters), sort_keys=True)
            seeds.setdefault((_family(run), point), []).append(run)
        else:
            jobs.append(Job([run]))
    groups: dict[tuple[str, tuple[int, ...]], list[list[Run]]] = {}
    for (family, _), of in seeds.items():
        parts = groups.setdefault((family, tuple(run.spec.seed for run in of)), [])
        if parts and len(parts[-1]) + len(of) <= ROWS:
            parts[-1] += of
        else:
            parts.append([*of])
    return [Job(part) for parts in groups.values() for part in parts] + jobs


def _family(run: Run) -> str:
    """All that runs share which may train together."""
    content = run.spec.to_json()
    content.pop("seed", None)
    given = content.get("hyper_parameters", {})
    content["hyper_parameters"] = {n: "number" if is_number(x) else x for n, x in given.items()}
    return json.dumps([content, run.name.rpartition("-")[2]], sort_keys=True)


def outcomes(
    jobs: Sequence[Job], count: int, runner: Runner = USUAL, backend: str = "local", wait: float = 0
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
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-code).name}{hint}"
    if isinstance(code, int):
        return f"its process ended with the exit code {code}"
    lines = str(error).strip().splitlines() or [""]
    return f"its job has ended: {type(error).__name__}: {lines[0]}"


def _call(job: Job, runner: Runner, wait: float) -> functools.partial[Outcome]:
    store = job.first.store
    return functools.partial(
        execute_there,
        [run.spec.to_json() for run in job.runs],
        job.names,
        str(store.root.resolve()),
        runner,
        accept_code=store.accept_code,
        wait=wait,
    )


def local(jobs: Sequence[Job], count: int, runner: Runner, wait: float) -> Iterator[Ended]:
    """This process, or `count` processes of one torch thread each."""
    if count == 0 and runner.time_limit is None:
        for job in jobs:
            yield job, functools.partial(execute, job, runner, wait=wait)
        return
    left = list(jobs)
    for _ in range(TRIES):
        for job, future in _pooled(list(left), max(1, count), runner, wait):
            left.remove(job)
            yield job, future.result
        if not left:
            return
    yield from ((job, _never_called) for job in left)


def _never_called() -> Outcome:
    raise RuntimeError("no process has lived long enough to take it")


def _pooled(
    jobs: Sequence[Job], count: int, runner: Runner, wait: float
) -> Iterator[tuple[Job, Any]]:
    """The jobs whose calls have ended, with the futures of these.

    A process that dies while none has a job breaks pebble's pool: it aborts the calls that it has
    taken, refuses others, and forgets those between. All of these are left.
    """
    from pebble import ProcessPool

    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    with ProcessPool(
        min(count, max(1, len(jobs))),
        initializer=_begin,
        initargs=(os.environ.get(FOLDER),),
        context=_context(),
    ) as pool:
        try:
            futures: dict[Any, Job] = {}
            ended: SimpleQueue[Any] = SimpleQueue()
            with suppress(RuntimeError):  # it has broken
                for job in jobs:
                    call = _call(job, replace(runner, time_limit=None), wait)
                    future = pool.schedule(_noted, [call], timeout=runner.time_limit)
                    futures[future] = job
                    future.add_done_callback(ended.put)
            while futures:
                try:
                    future = ended.get(timeout=SECONDS_BETWEEN_LOOKS)
                except Empty:
                    if pool.active:
                        continue
                    break
                job = futures.pop(future)
                if not isinstance(future.exception(), BrokenProcessPool):
                    yield job, future
        except BaseException:  # Ctrl-C, a store that cannot be written, a consumer that stops
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()
            raise


@functools.cache
def _context() -> Any:
    """Processes that are forked from one which has imported torch, where there can be such."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spherenorm_experiments.execute", "torch._dynamo"])
    return context


def _begin(folder: str | None) -> None:
    """Of a process of the pool: what a recipe prints goes to the standard error."""
    die_with_parent()
    os.dup2(2, 1)
    if folder is not None:
        os.environ[FOLDER] = folder


def _noted(call: Call) -> Outcome:
    """The outcome of a call, in whose run it is noted if the pool stops it."""
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
    import submitit

    # Called again with the same arguments after a preemption; what it did before is in the store.
    called = {"__call__": lambda _, call: call()}
    again = type("Requeued", (submitit.helpers.Checkpointable,), called)()
    folder = jobs[0].first.store.root.resolve() / "slurm"
    executor = submitit.AutoExecutor(folder=folder, slurm_max_num_timeout=10)
    asked = {"gpus_per_node": runner.gpus, "mem_gb": runner.memory}
    executor.update_parameters(
        cpus_per_task=max(runner.processes, 1 + runner.workers),
        timeout_min=runner.minutes,
        slurm_array_parallelism=max(1, count),
        **{name: value for name, value in asked.items() if value},
        **({} if runner.partition is None else {"slurm_partition": runner.partition}),
    )
    # Slurm itself keeps to `count` at a time; submitit's local processes would all start at once.
    size = len(jobs) if executor.cluster == "slurm" else max(1, count)
    for start in range(0, len(jobs), size):
        part = jobs[start : start + size]
        with executor.batch():
            begun = [executor.submit(again, _limited(job, runner, wait)) for job in part]
        of = {id(each): job for each, job in zip(begun, part, strict=True)}
        for done in submitit.helpers.as_completed(begun):
            yield of[id(done)], done.result


def ray(jobs: Sequence[Job], count: int, runner: Runner, wait: float) -> Iterator[Ended]:
    """Tasks of Ray, on the cluster that RAY_ADDRESS names, else on `count` cores here."""
    cluster: Any = require_extra("ray", "the backend ray")

    if not cluster.is_initialized():
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
        here: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": max(1, count)}
        cluster.init(runtime_env=paths, log_to_driver=False, include_dashboard=False, **here)
    options: dict[str, Any] = {"num_cpus": runner.processes, "num_gpus": runner.gpus}
    if runner.memory is not None:
        options["memory"] = runner.memory * 2**30
    remote = cluster.remote(_called).options(max_retries=0, **options)
    left = {remote.remote(_limited(job, runner, wait)): job for job in jobs}
    try:
        while left:
            (done, *_), _ = cluster.wait(list(left))
            yield left.pop(done), functools.partial(cluster.get, done)
    finally:
        for each in left:
            cluster.cancel(each, force=True)


def _called(call: Call) -> Outcome:
    return call()


def _limited(job: Job, runner: Runner, wait: float) -> Call:
    """The call of a job; with a time limit in a process of its own there, which can be stopped."""
    call = _call(job, replace(runner, time_limit=None), wait)
    return call if runner.time_limit is None else functools.partial(_stopped, call, runner)


def _stopped(call: Call, runner: Runner) -> Outcome:
    from pebble import ProcessPool

    with ProcessPool(1, initializer=_begin, initargs=(None,), context=_context()) as pool:
        outcome: Outcome = pool.schedule(_noted, [call], timeout=runner.time_limit).result()
    return outcome


BACKENDS = {"local": local, "slurm": slurm, "ray": ray}
"""Each takes jobs, how many at a time, the flags, and the seconds to wait for a busy run."""


def find_backend(name: str) -> Callable[[Sequence[Job], int, Runner, float], Iterator[Ended]]:
    """The backend called `name`.

    Raises:
        ValueError: there is none, or its package is missing.
    """
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name in ("slurm", "ray"):
        require_extra("submitit" if name == "slurm" else "ray", f"the backend {name}")
    return BACKENDS[name]
