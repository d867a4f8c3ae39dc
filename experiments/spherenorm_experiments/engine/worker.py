"""A process that executes runs: those of a campaign one by one, or one together with others.

`spherenorm run --jobs 8` starts the first kind; without an argument, this module reads requests
from its standard input until there are no more, a line of JSON each, and answers each.

`spherenorm run --processes 8` starts the second kind on this machine. On several machines, start
torchrun on each, with a request that all of them see, and a store that all of them see:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m spherenorm_experiments.engine.worker request.json

The request is a JSON document: "spec" (`Spec.to_json`), "root" of the store, and flags of `Runner`,
such as "parallel". Without torchrun around it, this module starts torchrun here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spherenorm.support import located
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import Outcome, StoreError, die_with_parent, joined
from spherenorm_experiments.engine.door import execute_spec

INTERRUPTED = 130
RESTARTS = 3
"""Restarts of the processes after one of them is killed."""


def serve() -> None:
    """Execute the requests on the standard input, each with an answer on the standard output.

    The answer is the run's `Outcome`, or {"store_error": ...}.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a recipe prints is no answer
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    spec, root = Spec.from_json(request.pop("spec")), request.pop("root")
    try:
        return asdict(execute_spec(spec, root, **request))
    except StoreError as error:
        return {"store_error": str(error)}
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        return asdict(Outcome(request["expected"], "failed", error=located(error)))


def work(request: dict[str, Any]) -> Outcome:
    """Execute the request together with the other ranks, as one that torchrun has started."""
    flags = dict(request)
    spec, root = Spec.from_json(flags.pop("spec")), flags.pop("root")
    with joined(flags.get("parallel", "ddp"), spec.device) as ranks:
        return execute_spec(spec, root, ranks=ranks, **flags)


def main(path: str | None = None) -> None:
    """Serve; or read a request and work on it, or let torchrun start the processes that do."""
    die_with_parent()
    if path is None:
        serve()
        return
    request = json.loads(Path(path).read_text())
    if "RANK" in os.environ:
        work(request)
        return
    from torch.distributed.run import main as torchrun

    count = f"--nproc-per-node={request.get('processes', 1)}"
    often = ["--monitor-interval=0.1", f"--max-restarts={RESTARTS}"]
    torchrun(["--standalone", count, *often, "-m", "spherenorm_experiments.engine.worker", path])


if __name__ == "__main__":
    main(*sys.argv[1:])
