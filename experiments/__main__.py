"""`python -m experiments`."""

import os
import signal
import sys
from typing import Any

if __name__ == "__main__":

    def stop(*_: Any) -> None:
        os.write(2, b"interrupted, nothing ran\n")
        os._exit(130)

    # Importing torch takes seconds, and a KeyboardInterrupt raised in there need not come out as one.
    signal.signal(signal.SIGINT, stop)
    from experiments.cli import main

    if {"run", "resume"} & set(sys.argv):
        import torch._dynamo  # noqa: F401  which a process's first torch optimizer would import, in the middle of a run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
