"""`python -m spherenorm_experiments`."""

import os
import signal
import sys
from typing import Any

if __name__ == "__main__":

    def stop(*_: Any) -> None:
        os.write(2, b"interrupted, nothing ran\n")
        os._exit(130)

    # Importing torch takes seconds, and a KeyboardInterrupt raised in there may not come out.
    signal.signal(signal.SIGINT, stop)
    from spherenorm_experiments.cli import main

    if {"run", "compare", "resume"} & set(sys.argv):
        # A process's first torch optimizer would import it, in the middle of a run.
        import torch._dynamo  # noqa: F401

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
