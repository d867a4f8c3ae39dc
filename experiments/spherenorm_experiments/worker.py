"""A process that trains a run together with others, started by torchrun.

`spherenorm run --processes 8` starts them on this machine. On several machines, start torchrun on
each, with a request that all of them see, and a store that all of them see:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m spherenorm_experiments.worker request.json

The request is a JSON document: "spec" (`Spec.to_json`), "root" of the store, and flags of `Runner`,
such as "parallel". Without torchrun around it, this module starts torchrun here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from spherenorm_experiments.ranks import WORKER, die_with_parent, joined

RESTARTS = 3
"""Restarts of the processes after one of them is killed."""


def work(request: dict[str, Any]) -> None:
    """Execute the request together with the other ranks, as one that torchrun has started."""
    from spherenorm_experiments.execute import execute_spec  # torchrun itself does without
    from spherenorm_experiments.spec import Spec

    flags = dict(request)
    spec, root = Spec.from_json(flags.pop("spec")), flags.pop("root")
    with joined(flags.get("parallel", "ddp"), spec.device) as ranks:
        execute_spec(spec, root, ranks=ranks, **flags)


def main(path: str) -> None:
    """Read a request and work on it, or let torchrun start the processes that do."""
    die_with_parent()
    request = json.loads(Path(path).read_text())
    if "RANK" in os.environ:
        work(request)
        return
    from torch.distributed.run import main as torchrun

    count = f"--nproc-per-node={request.get('processes', 1)}"
    often = ["--monitor-interval=0.1", f"--max-restarts={RESTARTS}"]
    torchrun(["--standalone", count, *often, "-m", WORKER, path])


if __name__ == "__main__":
    main(*sys.argv[1:])
