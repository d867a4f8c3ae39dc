"""The first step of a compiled optimizer, with an empty and with a filled cache.

`python -m benchmarks._first SET DEVICE` takes it in a fresh process, and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from rich.console import Console

from benchmarks._contenders import parameters
from benchmarks._measure import peak_memory_of
from benchmarks._shapes import SETS
from spherenorm import optim
from spherenorm.compile.kernel import kernels_built


def first_steps(name: str, device: str, console: Console) -> dict[str, Any]:
    """Time compiled AdamP's first step on a parameter set in two fresh processes, and print it."""
    with tempfile.TemporaryDirectory() as cache:
        caches = {"SPHERENORM_CACHE": cache}
        command = [sys.executable, "-m", "benchmarks._first", name, device]
        cold, warm = (_output(command, {**os.environ, **caches}) for _ in range(2))
    console.print(
        f"{name}: compiled AdamP's first step {cold['first step s']:.2f} s with an empty cache, "
        f"{warm['first step s']:.2f} s with a filled one; {cold['recompilations']} "
        f"recompilations after step 2 under a schedule; extra memory {warm['extra memory']:.1%}",
        highlight=False,
    )
    return {"cold": cold, "warm": warm}


def _output(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """The last line that the command prints, which is JSON."""
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(name: str, device: str) -> dict[str, float]:
    """The seconds of a first step, the kernels made after step 2, and the share of extra memory."""
    weights = parameters(SETS[name](), device)
    optimizer = optim.AdamP(weights, lr=1e-8, weight_decay=0.01, backend="compiled")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    start = time.perf_counter()
    optimizer.step()
    first = time.perf_counter() - start
    optimizer.step()
    after_two = kernels_built()
    for _ in range(20):
        schedule.step()
        optimizer.step()
    extra = peak_memory_of(optimizer.step, device)
    held = sum(
        t.numel() * t.element_size()
        for w in weights
        for t in (w, w.grad, *optimizer.state[w].values())
        if t is not None
    )
    return {
        "first step s": first,
        "recompilations": kernels_built() - after_two,
        "extra memory": extra / held,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
