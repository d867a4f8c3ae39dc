"""Execute a run: bring it from wherever it stands to its end.

A run that was interrupted anywhere ends bit-identical to one that was not: order, augmentation and
noise are functions of keys (see `spherenorm_experiments.core.stream`), so that model, optimizer and
step are all that a checkpoint needs.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from spherenorm.support import located
from spherenorm_experiments.core import (
    PureTask,
    Task,
    preserved_randomness,
    seed_everything,
    stream,
)
from spherenorm_experiments.engine._loop import train
from spherenorm_experiments.engine._origin import keep_origin
from spherenorm_experiments.engine._processes import launch
from spherenorm_experiments.engine._ranks import ALONE, Ranks
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import USUAL, Outcome, Runner
from spherenorm_experiments.engine._sweep import sweep_rows
from spherenorm_experiments.files import Busy, StoreError
from spherenorm_experiments.store import delete_leftovers

SHARDED = (
    "; with fsdp a weight is whole only while its module runs: where another one uses it, as in "
    "`self.pos.weight[i]`, let `shards` of the task leave its module out"
)


def execute(
    run: Run, runner: Runner = USUAL, *, wait: float = 0.0, ranks: Ranks = ALONE
) -> Outcome:
    """Bring one run to its end, from its checkpoint if it has one.

    A recipe or task that raises fails its own run only.

    Args:
        runner: the flags. With several processes this one starts them and waits.
        wait: seconds to wait for another process that holds the run; -1 waits until it ends.
        ranks: the processes that work on the run together, this one among them.

    Raises:
        StoreError: the store cannot be written.
        KeyboardInterrupt, SystemExit: after it was noted in the run's status.
    """
    with one_thread():
        return _executed(run, runner, wait, ranks)


def _executed(run: Run, runner: Runner, wait: float, ranks: Ranks) -> Outcome:
    if runner.distributed and ranks.parallel is None and isinstance(run.task, Task):
        return _launched(run, runner, wait)
    if not ranks.first:
        state = ranks.broadcast(None)
        return _computed(run, runner, ranks) if state is None else Outcome(run.id, state)
    try:
        with run.folder.lock(wait):
            delete_leftovers(run.folder.path)
            summary = run.folder.summary()
            ranks.broadcast(None if summary is None else _state(summary))
            return _computed(run, runner, ranks) if summary is None else _cached(run, summary)
    except Busy:
        return Outcome(run.id, ranks.broadcast("busy"))


@contextmanager
def one_thread() -> Iterator[None]:
    """One process per core; and the number of threads decides the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _launched(run: Run, runner: Runner, wait: float) -> Outcome:
    """Start the processes of a run, unless it has ended, and read what they left."""
    started = time.perf_counter()
    if (summary := run.folder.summary()) is not None:
        return _cached(run, summary)
    log = launch(run, runner, wait)
    seconds = time.perf_counter() - started
    if (summary := run.folder.summary()) is not None:
        return Outcome(run.id, _state(summary), seconds=seconds)
    if run.folder.held():
        return Outcome(run.id, "busy", seconds=seconds)
    status = run.folder.status()
    error = status.get("error") or f"its processes ended without a result: {log}"
    return Outcome(run.id, "failed", seconds=seconds, error=error)


def _cached(run: Run, summary: Mapping[str, Any]) -> Outcome:
    """The outcome of a run that had ended; what else is missing in its folder is written again."""
    if run.folder.config() is None:
        run.folder.write_config(run.config)
    if not run.folder.status():
        run.folder.write_status(_state(summary))
    return Outcome(run.id, _state(summary), cached=True, runs=len(run.rows))


def _computed(run: Run, runner: Runner, ranks: Ranks) -> Outcome:
    """Compute a run that rank 0 has locked; its status says at any time how far it is."""
    started, folder = time.perf_counter(), run.folder
    about = {"host": socket.gethostname(), "started": time.time()}

    def note(state: str, **more: Any) -> None:
        if ranks.first:
            folder.write_status(state, **more, **about)

    if ranks.first:
        folder.write_config(run.config)
    note("running")
    try:
        with preserved_randomness():
            _compute(run, runner, ranks)
    except (KeyboardInterrupt, SystemExit):  # the latter ends a job that Slurm preempts
        note("interrupted")
        raise
    except StoreError:
        raise
    except Exception as error:  # a user's code may raise anything
        text = located(error)
        if ranks.parallel == "fsdp" and "DTensor" in text:
            text += SHARDED
        note("failed", error=text, traceback=traceback.format_exc())
        return Outcome(run.id, "failed", seconds=time.perf_counter() - started, error=text)
    summary = folder.summary()
    assert summary is not None
    seconds = time.perf_counter() - started
    note(_state(summary), seconds=seconds)
    return Outcome(run.id, _state(summary), seconds=seconds, runs=len(run.rows))


def _compute(run: Run, runner: Runner, ranks: Ranks) -> None:
    """Compute the run's result and write it, by the kind of its task."""
    seed_everything(stream(run.spec.every_seed[0], "init"), ranks.device(run.spec.device))
    if isinstance(run.task, PureTask):
        keep_origin(run)
        sweep_rows(run, run.task)
    else:
        train(run, run.task, runner, ranks)


def _state(summary: Mapping[str, Any]) -> str:
    return "finished" if summary["diverged_at"] is None else "diverged"
