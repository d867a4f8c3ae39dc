"""A run that is killed in the middle of its work, for child processes."""

import os
import signal
import sys
import threading

from spherenorm_experiments.engine import RunFolder
from spherenorm_experiments.engine.door import execute_spec


def execute_and_die(spec, root, checkpoints, seconds):
    """Kill this process by SIGKILL `seconds` after its checkpoint of that number, counted from 1.

    The process itself counts, so that a busy machine delays the kill but never misses the moment.
    """
    save, saved = RunFolder.save_checkpoint, []

    def saving(folder, state):
        save(folder, state)
        saved.append(state["done"])
        if len(saved) == checkpoints:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    RunFolder.save_checkpoint = saving
    execute_spec(spec, root, checkpoint_seconds=0.0)


def command(errors, *arguments):
    """Run a command as a process of its own does, with its standard error in a file."""
    from spherenorm_experiments.cli import main

    sys.stderr = open(errors, "w")  # noqa: SIM115  (for the life of the process)
    sys.argv = ["spherenorm_experiments", *arguments]
    main()
