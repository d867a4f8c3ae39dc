"""The command `spherenorm`: the tools of all three packages under one entry.

It imports as little as a command needs: `audit` needs the library alone, the others an extra, which
an error names where it is missing.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

TRAINING = ("run", "compare", "resume")
USAGE = 2


def main() -> int:
    """Run the command of `sys.argv`; the exit code, where the command has none of its own."""
    if str(Path.cwd()) not in sys.path:  # for a user's own modules, as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "audit":
        audit = importlib.import_module("spherenorm.__main__").audit
        return int(audit(sys.argv[2:]))
    try:
        _run_app(command)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("spherenorm"):
            raise
        extra = "theory" if command == "theory" else "experiments"
        needs = f"spherenorm {command}".strip()
        sys.stderr.write(f"error: {needs} needs {missing}: pip install 'spherenorm[{extra}]'\n")
        return USAGE
    return 0


def _run_app(command: str) -> None:
    # Importing torch takes seconds, and a KeyboardInterrupt raised in there may not come out. A
    # command that trains raises it from where it begins (`interruptible`).
    _handle(_stop)
    from spherenorm_experiments.cli._app import run_app

    if command in TRAINING and "--help" not in sys.argv:
        # A process's first torch optimizer would import it, in the middle of a run.
        import torch._dynamo  # noqa: F401

        importlib.import_module("spherenorm_experiments.study")
    else:
        _handle(signal.default_int_handler)
    run_app()


def _handle(handler: Callable[..., Any]) -> None:
    """Let a handler take Ctrl-C, and the signal that ends a process, which are one to a store."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _stop(*_: Any) -> None:
    os.write(2, b"interrupted, nothing ran\n")
    os._exit(130)
