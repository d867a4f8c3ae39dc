"""Compiled AdamP's first step, recompilations and memory in a fresh process, as JSON.

`python -m benchmarks._first_step SET DEVICE`
"""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks._contenders import parameters
from benchmarks._measure import peak_memory_of
from benchmarks._shapes import SETS
from spherenorm import optim
from spherenorm.compile.cpp import load_step
from spherenorm.compile.gpu import launcher


def measure(name: str, device: str) -> dict[str, float]:
    """The seconds of a first step, the kernels made after step 2, and the share of extra memory."""
    weights = parameters(SETS[name](), device)
    optimizer = optim.AdamP(weights, lr=1e-8, weight_decay=0.01, backend="compiled")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    start = time.perf_counter()
    optimizer.step()
    first = time.perf_counter() - start
    optimizer.step()

    def kernels() -> int:
        return load_step.cache_info().currsize + launcher.cache_info().currsize

    after_two = kernels()
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
        "recompilations": kernels() - after_two,
        "extra memory": extra / held,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
