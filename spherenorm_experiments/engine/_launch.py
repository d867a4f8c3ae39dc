"""The processes of one run, started on this machine by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from spherenorm_experiments.engine._run import Run
from spherenorm_experiments.engine._runner import Runner

__all__ = ["WORKER", "launch", "launch_request", "worker_environment"]

WORKER = "spherenorm_experiments.engine.worker"
"""The module of other processes; see there for runs on several machines."""


def launch_request(run: Run, runner: Runner, wait: float = 0.0) -> str:
    """The request that the processes of a run read, as JSON.

    It has no time limit: the process that starts them keeps it.
    """
    root = str(run.store.root.resolve())
    flags = asdict(runner) | {"root": root, "wait": wait, "expected": run.id}
    del flags["time_limit"]
    return json.dumps({"spec": run.spec.to_json(), **flags}, indent=1)


def worker_environment() -> dict[str, str]:
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
            env=worker_environment(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {ended.returncode}"
