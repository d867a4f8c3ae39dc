"""Processes that execute runs, one at a time each: one that dies costs its own run only.

A process is `python -m spherenorm_experiments.engine.worker`. It reads requests and writes
outcomes, a line of JSON each. What a recipe prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spherenorm_experiments.engine._execute import Outcome
from spherenorm_experiments.engine._files import StoreError
from spherenorm_experiments.engine._launch import WORKER, launch_request, worker_environment
from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import Runner

__all__ = ["in_workers"]

SECONDS_TO_STOP = 10.0
"""A process that is interrupted has so long to note it in the store."""

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


def in_workers(
    runs: Sequence[Run], root: Path, jobs: int, runner: Runner, wait: float = 0.0
) -> Iterator[Outcome]:
    """Execute runs in `jobs` processes; the outcomes as they come.

    Args:
        wait: seconds to wait for another process that holds a run.

    Raises:
        StoreError: the store cannot be written; the other runs are interrupted.
    """
    pool = _Pool(root, runner, wait)
    ends: queue.Queue[Outcome | BaseException] = queue.Queue()

    def work(run: Run) -> None:
        try:
            ends.put(pool.execute(run))
        except BaseException as error:
            ends.put(error)

    threads = ThreadPoolExecutor(min(jobs, len(runs)))
    try:
        for run in runs:
            threads.submit(work, run)
        for _ in runs:
            end = ends.get()
            if isinstance(end, BaseException):
                raise end
            yield end
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.stop()
        threads.shutdown()


class _Pool:
    """The processes; each belongs to one thread, which waits for it."""

    def __init__(self, root: Path, runner: Runner, wait: float) -> None:
        self.root, self.runner, self.wait = root, runner, wait
        self._own = threading.local()
        self._all: list[subprocess.Popen[str]] = []
        self._stopped = False

    def execute(self, run: Run) -> Outcome:
        """Execute a run in this thread's process."""
        process = self._process()
        timer = _Timer(process, self.runner.time_limit)
        try:
            answer = _ask(process, launch_request(run, self.root, self.runner, self.wait))
        finally:
            timer.cancel()
        if answer is None:
            return self._died(run, process, timer)
        if "store_error" in answer:
            raise StoreError(answer["store_error"])
        return Outcome(**answer)

    def stop(self) -> None:
        """Interrupt the processes, and kill those that do not end."""
        self._stopped = True
        for process in self._all:
            process.terminate()  # its handler notes the interruption
        for process in self._all:
            try:
                process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _process(self) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER],
                env={**worker_environment(), **ONE_THREAD},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which then stops the others
            )
            self._own.process = process
            self._all.append(process)
            if self._stopped:
                process.terminate()
        return process

    def _died(self, run: Run, process: subprocess.Popen[str], timer: _Timer) -> Outcome:
        code = process.wait()
        if self._stopped:
            return Outcome(run.id, "interrupted")
        if timer.expired:
            error = f"stopped after its time limit of {self.runner.time_limit:g} s"
        elif code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            error = f"its process was killed by {signal.Signals(-code).name}{hint}"
        else:
            error = f"its process ended with the exit code {code}"
        run.folder.write_status("failed", error=error)
        return Outcome(run.id, "failed", error=error)


class _Timer:
    """Kills a process after so many seconds, unless it is cancelled."""

    def __init__(self, process: subprocess.Popen[str], seconds: float | None) -> None:
        self.process, self.expired = process, False
        self._timer = None if seconds is None else threading.Timer(seconds, self._expire)
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self.expired = True
        self.process.kill()


def _ask(process: subprocess.Popen[str], request: str) -> dict[str, Any] | None:
    """The answer of a process to a request; None if it ends instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(" ".join(request.splitlines()) + os.linesep)
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:  # it ended before it could read
        return None
    return json.loads(line) if line.endswith("\n") else None
