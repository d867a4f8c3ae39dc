"""Processes that execute runs: those of a pool one by one, or several together, by torchrun.

A process of the pool is `python -m spherenorm_experiments.engine.worker`. It reads requests and
writes outcomes, a line of JSON each; one that dies costs its own run only. What a recipe prints
goes to the standard error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import Outcome, Runner
from spherenorm_experiments.files import StoreError

WORKER = "spherenorm_experiments.engine.worker"
"""The module of other processes; see there for runs on several machines."""

SECONDS_TO_STOP = 10.0
"""A process that is interrupted has so long to note it in the store."""

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


def launch_request(run: Run, runner: Runner, wait: float = 0.0) -> str:
    """The request that the processes of a run read, as JSON.

    It has no time limit: the process that starts them keeps it.
    """
    root = str(run.store.root.resolve())
    flags = asdict(runner) | {"root": root, "wait": wait, "expected": run.id}
    del flags["time_limit"]
    return json.dumps({"spec": run.spec.to_json(), **flags}, indent=1)


def _environment() -> dict[str, str]:
    """The environment of this process, with its import path."""
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": paths}


def launch(run: Run, runner: Runner, wait: float) -> str:
    """Start the processes of a run and wait for their end.

    torchrun starts all of them again if one is killed, and they go on from the checkpoint. If this
    process is killed, they end with it.

    Returns:
        The last line that they printed.

    Raises:
        KeyboardInterrupt: after they have ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(launch_request(run, runner, wait))
        ended = subprocess.run(
            [sys.executable, "-m", WORKER, str(path)],
            env=_environment(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {ended.returncode}"


def in_workers(
    runs: Sequence[Run], jobs: int, runner: Runner, wait: float = 0.0
) -> Iterator[Outcome]:
    """Execute runs in `jobs` processes; the outcomes as they come.

    Args:
        wait: seconds to wait for another process that holds a run.

    Raises:
        StoreError: the store cannot be written; the other runs are interrupted.
    """
    workers = [_Worker(runner.time_limit) for _ in range(min(jobs, len(runs)))]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work(run: Run) -> Outcome:
        worker = idle.get()
        try:
            return worker.execute(run, launch_request(run, runner, wait))
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as threads:
        ends = [threads.submit(work, run) for run in runs]
        try:
            for end in as_completed(ends):
                yield end.result()
        finally:
            for end in ends:
                end.cancel()
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.wait()


class _Worker:
    """A process, and the next one after its death."""

    def __init__(self, time_limit: float | None) -> None:
        self.time_limit, self._stopped = time_limit, False
        self._process = self._start()

    def execute(self, run: Run, request: str) -> Outcome:
        """Execute a run; the calling thread waits for it."""
        if self._process.poll() is not None:
            self._process = self._start()
            if self._stopped:
                self._process.terminate()
        process, expired = self._process, threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self.time_limit or 0, expire)
        if self.time_limit is not None:
            timer.start()
        try:
            answer = _ask(process, request)
        finally:
            timer.cancel()
        if answer is None:
            return self._died(run, process.wait(), expired.is_set())
        if "store_error" in answer:
            raise StoreError(answer["store_error"])
        return Outcome(**answer)

    def stop(self) -> None:
        """Interrupt the process: its handler notes that in the store."""
        self._stopped = True
        self._process.terminate()

    def wait(self) -> None:
        """Wait until the process that was interrupted ends; kill it if it does not."""
        try:
            self._process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", WORKER],
            env={**_environment(), **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which then stops the others
        )

    def _died(self, run: Run, code: int, expired: bool) -> Outcome:
        if self._stopped:
            return Outcome(run.id, "interrupted")
        if expired:
            error = f"stopped after its time limit of {self.time_limit:g} s"
        elif code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            error = f"its process was killed by {signal.Signals(-code).name}{hint}"
        else:
            error = f"its process ended with the exit code {code}"
        run.folder.write_status("failed", error=error)
        return Outcome(run.id, "failed", error=error)


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
