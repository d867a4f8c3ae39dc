"""Execute a run: bring it from wherever it stands to its end.

    store = Store("runs")
    outcome = execute(resolve(Spec("digits", "sgdp", {"lr": 0.1}), store))

A run that was interrupted anywhere ends bit-identical to one that was not: order, augmentation and
noise are functions of keys (see `spherenorm_experiments.task.stream`), so that model, optimizer
and step are all that a checkpoint needs.

`spherenorm run --processes 8` starts processes that train a run together on this machine. On
several machines, start torchrun on each, with a request that all of them see, and a store that all
of them see:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m spherenorm_experiments.execute request.json

The request is a JSON document: "spec" (`Spec.to_json`), "root" of the store, and flags of `Runner`,
such as "workers". Without torchrun around it, this module starts torchrun here.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from spherenorm import __version__
from spherenorm.support import describe_with_user_line
from spherenorm_experiments.lookup import FOLDER, find_task, recipes_of, users_code
from spherenorm_experiments.probes import find_probe
from spherenorm_experiments.run import (
    DEFAULT_RUNNER,
    SINGLE_PROCESS,
    Job,
    Outcome,
    Ranks,
    Run,
    Runner,
    die_with_parent,
    joined,
)
from spherenorm_experiments.spec import Spec, run_name
from spherenorm_experiments.store import Busy, Store, StoreError
from spherenorm_experiments.task import (
    AnyTask,
    PureTask,
    Task,
    data_fingerprint,
    preserved_randomness,
    require_better,
    seed_everything,
    stream,
)
from spherenorm_experiments.train import sweep_rows, train

WORKER = "spherenorm_experiments.execute"
"""The module of processes that train a run together: this one."""

RESTARTS = 3
"""Of these processes, after one of them is killed."""

PACKAGES = ("torch", "numpy", "scikit-learn", "triton")


class Resolver:
    """Tasks and runs by name; each is looked up once in the life of the resolver."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._tasks: dict[tuple[str, str | None], tuple[AnyTask, str]] = {}
        self._runs: dict[tuple[str, str | None], Run] = {}

    def resolve(self, spec: Spec) -> Run:
        """Look up everything that a spec names.

        Raises:
            RecipeError: there is no such recipe.
            ValueError: an unknown task, option, hyper-parameter or probe, a value that does not
                fit, micro-batches of a loss that is no mean over items, data that are drawn anew
                on each call, or a score of which it is not known in which direction it is better.
        """
        folder = os.environ.get(FOLDER)  # another one has other data
        key = spec.text, folder
        if key not in self._runs:
            bound, other_recipe = recipes_of(spec)
            task, data = self._task(spec, folder)
            parts = spec.regime.micro_batches
            if parts > 1 and isinstance(task, Task) and not task.is_mean:
                lack = f"the loss of task {spec.task!r} is no mean over the items of a batch"
                raise ValueError(f"micro_batches={parts}: {lack}, so that its parts have another")
            probes = [find_probe(name) for name in spec.probes]
            name = run_name(spec, data)
            self._runs[key] = Run(spec, task, bound, other_recipe, name, self.store, probes)
        return self._runs[key]

    def _task(self, spec: Spec, folder: str | None) -> tuple[AnyTask, str]:
        """Return the task of a spec, and the fingerprint of its data."""
        key = json.dumps([spec.task, dict(spec.options)], sort_keys=True), folder
        if key not in self._tasks:
            with users_code("task", spec.task):
                task = find_task(spec.task, spec.options)
                data = data_fingerprint(task)
                if isinstance(task, Task):
                    require_better(task)
            self._tasks[key] = task, data
        return self._tasks[key]


def resolve(spec: Spec, store: Store) -> Run:
    """Look up everything that one spec names; see `Resolver.resolve`."""
    return Resolver(store).resolve(spec)


def execute(
    run: Run | Job,
    runner: Runner = DEFAULT_RUNNER,
    *,
    wait: float = 0.0,
    ranks: Ranks = SINGLE_PROCESS,
) -> Outcome:
    """Bring a run, or the runs of one computation, to the end, from a checkpoint if there is one.

    A recipe or task that raises fails its own run only.

    Args:
        runner: the flags. With several processes this one starts them and waits.
        wait: seconds to wait for another process that holds the run; -1 waits until it ends.
        ranks: the processes that work on the run together, this one among them.

    Raises:
        StoreError: the store cannot be written.
        KeyboardInterrupt, SystemExit: after it was noted in the run's status.
    """
    job = run if isinstance(run, Job) else Job([run])
    with one_thread():
        if runner.processes > 1 and not ranks.distributed and isinstance(job.first.task, Task):
            return _launch_torchrun(job, runner, wait)
        if not ranks.first:
            state = ranks.broadcast(None)
            return _run_locked(job, runner, ranks) if state is None else Outcome(job.name, state)
        try:
            with job.folder.lock(wait):
                job.folder.delete_leftovers()
                state = ranks.broadcast(job.state())
                return (
                    _run_locked(job, runner, ranks)
                    if state is None
                    else _outcome_of_finished(job, state)
                )
        except Busy:
            return Outcome(job.name, ranks.broadcast("busy"))


def execute_spec(
    spec: Spec, root: Path | str, *, ranks: Ranks = SINGLE_PROCESS, **flags: Any
) -> Outcome:
    """Resolve and execute a spec.

    Args:
        root: the store's.
        ranks: see `execute`.
        **flags: fields of `Runner`, such as `checkpoint_seconds`; `wait`; and `accept_code`.
    """
    wait, accept = flags.pop("wait", 0.0), flags.pop("accept_code", False)
    run = resolve(spec, Store(root, accept))
    return execute(run, Runner(**flags), wait=wait, ranks=ranks)


@functools.lru_cache(maxsize=1)
def _resolver(root: str, accept_code: bool) -> Resolver:
    return Resolver(Store(root, accept_code))


def execute_in_worker(
    specs: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    root: str,
    runner: Runner,
    *,
    accept_code: bool = False,
    wait: float = 0.0,
) -> Outcome:
    """Resolve and execute the specs of one job in a process that was sent them as JSON content.

    Args:
        names: of the runs, as whoever sends them has resolved them. A process that resolves them to
            others sees other data, and refuses.
    """
    try:
        resolver = _resolver(root, accept_code)
        job = Job([resolver.resolve(Spec.from_json(content)) for content in specs])
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        return Outcome(names[0], "failed", error=describe_with_user_line(error))
    if job.names != list(names):
        changed = "its data have changed since it was asked for, or differ between processes"
        return Outcome(names[0], "failed", error=f"{changed}; ask again")
    try:
        return execute(job, runner, wait=wait)
    except StoreError as error:
        return Outcome(names[0], "lost", error=str(error))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the number of threads decides the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _launch_torchrun(job: Job, runner: Runner, wait: float) -> Outcome:
    """Start the processes of a run, unless it has ended, and read what they left.

    torchrun starts all of them again if one is killed, and they go on from the checkpoint. If this
    process is killed, they end with it.
    """
    if (state := job.state()) is not None:
        return _outcome_of_finished(job, state)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(launch_request(job.first, runner, wait), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", WORKER, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    if (state := job.state()) is not None or job.folder.is_held():
        return Outcome(job.name, state or "busy")
    why = lines[-1] if lines else f"exit code {ended.returncode}"
    error = job.folder.status().get("error") or f"its processes ended without a result: {why}"
    return Outcome(job.name, "failed", error=error)


def launch_request(run: Run, runner: Runner, wait: float = 0.0) -> str:
    """Return the request that the processes of a run read, as JSON."""
    root = str(run.store.root.resolve())
    flags = asdict(runner) | {"root": root, "wait": wait, "accept_code": run.store.accept_code}
    return json.dumps({"spec": run.spec.to_json(), **flags}, indent=1)


def _outcome_of_finished(job: Job, state: str) -> Outcome:
    """Return the outcome of runs that had ended."""
    if not job.folder.status():
        job.folder.write_status(state)
    return Outcome(job.name, state, cached=True)


def _run_locked(job: Job, runner: Runner, ranks: Ranks) -> Outcome:
    """Compute what rank 0 has locked; its status says at any time how far it is."""
    started, run, executor = time.perf_counter(), job.first, dict[str, str]()
    about = {"host": socket.gethostname(), "started": time.time(), "names": job.names}

    def note(state: str, **more: Any) -> None:
        if ranks.first:
            job.folder.write_status(state, **more, **about)

    note("running")
    try:
        with preserved_randomness():
            seed_everything(stream(run.spec.seed, "init"), ranks.device(run.spec.device))
            if isinstance(run.task, PureTask):
                rows, code = sweep_rows(job, run.task), [run.store.write_code()]
            else:
                rows, code, executor = train(run, run.task, runner, ranks)
        if ranks.first:
            spent = {"seconds": time.perf_counter() - started, **executor}
            job.folder.finish(rows, code, {**origin(run.spec.device), **spent})
        ranks.wait()
    except (KeyboardInterrupt, SystemExit):  # the latter ends a job that Slurm preempts
        note("interrupted")
        raise
    except StoreError:
        raise
    except Exception as error:  # a user's code may raise anything
        text = describe_with_user_line(error)
        note("failed", error=text, traceback=traceback.format_exc())
        return Outcome(job.name, "failed", error=text)
    state = job.state()
    assert state is not None
    note(state)
    return Outcome(job.name, state)


@functools.cache
def origin(device: str) -> dict[str, Any]:
    """Return the versions and the hardware of a run that is computed here."""
    versions = {"python": platform.python_version(), "spherenorm": __version__, "commit": _commit()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {**versions, "platform": platform.platform(), "cpu": _cpu(), "gpu": gpu}


def _commit() -> str:
    """Return the commit of a checkout that this code is run from, or ""; "+" is an edit since."""
    folder = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return ""
    git_command = ("git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+")
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(git_command, capture_output=True, text=True, check=True, timeout=10)
        return result.stdout.strip()
    return ""


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main(path: str) -> None:
    """Read a request and work on it with the other ranks, or let torchrun start all of them."""
    die_with_parent()
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    if "RANK" not in os.environ:
        from torch.distributed.run import main as torchrun

        count = f"--nproc-per-node={request.get('processes', 1)}"
        often = ["--monitor-interval=0.1", f"--max-restarts={RESTARTS}"]
        torchrun(["--standalone", count, *often, "-m", WORKER, path])
        return
    spec, root = Spec.from_json(request.pop("spec")), request.pop("root")
    with joined(spec.device) as ranks:
        execute_spec(spec, root, ranks=ranks, **request)


if __name__ == "__main__":
    main(*sys.argv[1:])
