"""`python -m benchmarks.first_step SET DEVICE`: in a fresh process, compiled AdamP's first step, recompilations and memory, as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch

from benchmarks.contenders import parameters
from benchmarks.measure import peak_memory_of
from benchmarks.shapes import SETS
from spherenorm import optim
from spherenorm.compile.build import cache_folder


def main(name: str, device: str) -> dict[str, float]:
    weights = parameters(SETS[name](), device)
    optimizer = optim.AdamP(weights, lr=1e-8, weight_decay=0.01, backend="compiled")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    start = time.perf_counter()
    optimizer.step()
    first = time.perf_counter() - start
    optimizer.step()

    def kernels() -> int:
        return len([*cache_folder().glob("*.so"), *cache_folder().glob("*.py")])

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
    print(json.dumps(main(*sys.argv[1:])))
