"""Time the first step of a compiled optimizer, with an empty and with a filled kernel cache.

`python -m benchmarks.first SET DEVICE` measures it in its own process, and prints JSON.
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

from benchmarks.contenders import parameters
from benchmarks.measure import peak_memory_of
from benchmarks.shapes import SETS
from spherenorm import optim
from spherenorm.compile.kernel import kernels_built


def first_steps(name: str, device: str, console: Console) -> dict[str, Any]:
    """Time compiled AdamP's first step on a parameter set in two new processes, and print it."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "SPHERENORM_CACHE": cache}
        command = [sys.executable, "-m", "benchmarks.first", name, device]
        cold, warm = (_run_and_parse(command, environment) for _ in range(2))
    console.print(
        f"{name}: compiled AdamP's first step {cold['first step s']:.2f} s with an empty cache, "
        f"{warm['first step s']:.2f} s with a filled one; {cold['recompilations']} "
        f"recompilations after step 2 under a schedule; extra memory {warm['extra memory']:.1%}",
        highlight=False,
    )
    return {"cold": cold, "warm": warm}


def _run_and_parse(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return the last line that a command prints, which is JSON."""
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(name: str, device: str) -> dict[str, float]:
    """Measure a first step, the kernels built after step 2, and the relative extra memory."""
    weights = parameters(SETS[name](), device)
    optimizer = optim.AdamP(weights, lr=1e-8, weight_decay=0.01, backend="compiled")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    start = time.perf_counter()
    optimizer.step()
    first_step_seconds = time.perf_counter() - start
    optimizer.step()
    kernels_after_two_steps = kernels_built()
    for _ in range(20):
        schedule.step()
        optimizer.step()
    extra_bytes = peak_memory_of(optimizer.step, device)
    training_bytes = sum(
        tensor.nbytes
        for weight in weights
        for tensor in (weight, weight.grad, *optimizer.state[weight].values())
        if tensor is not None
    )
    return {
        "first step s": first_step_seconds,
        "recompilations": kernels_built() - kernels_after_two_steps,
        "extra memory": extra_bytes / training_bytes,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
