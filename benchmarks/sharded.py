"""Time a step of weights sharded over two processes against a step of whole weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from benchmarks.contenders import LR, parameters
from benchmarks.measure import interleaved
from benchmarks.shapes import SETS, Shape
from spherenorm import optim

PROCESSES = 2


def sharded_step(name: str, rounds: int, console: Console) -> dict[str, float]:
    """Time compiled AdamP on shards and on whole weights, on a CPU, and print the ratio.

    Each process has one thread and, as under `fully_shard`, half of the rows of each weight. While
    one process steps the whole weights, the other waits. The two steps take turns, so that their
    ratio holds on a noisy machine too.

    Returns:
        The median seconds of both steps in the slower process, and their ratio.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = SETS[name](), rounds, folder
        start_processes(_measure, arguments, nprocs=PROCESSES)  # type: ignore[no-untyped-call]
        times: dict[str, float] = json.loads((Path(folder) / "times").read_text())
    times["ratio"] = times["sharded"] / times["whole"]
    console.print(
        f"{name}: compiled AdamP takes {1e3 * times['sharded']:.2f} ms in {PROCESSES} processes of "
        f"one thread, {1e3 * times['whole']:.2f} ms in one: {times['ratio']:.2f} times",
        highlight=False,
    )
    return times


def _measure(rank: int, shapes: Sequence[Shape], rounds: int, folder: str) -> None:
    """Time both steps, and write the seconds to a file in the folder."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=PROCESSES)
    try:
        weights = parameters(shapes, "cpu")
        steps: dict[str, Callable[[], Any]] = {
            "sharded": _adamp_step(_shards(weights)),
            "whole": _adamp_step(weights) if rank == 0 else lambda: None,
        }
        times = interleaved(steps, rounds, "cpu", prepare=dist.barrier)
        times_of_ranks: list[Any] = [None] * PROCESSES
        dist.all_gather_object(times_of_ranks, times)
        if rank == 0:
            slowest = {
                name: max(rank_times[name] for rank_times in times_of_ranks) for name in times
            }
            (Path(folder) / "times").write_text(json.dumps(slowest))
        dist.barrier()  # a process that leaves early closes the connections of the other
    finally:
        dist.destroy_process_group()


def _adamp_step(weights: list[Tensor]) -> Callable[[], Any]:
    return optim.AdamP(weights, lr=LR, weight_decay=0.01, backend="compiled").step


def _shards(weights: Sequence[Tensor]) -> list[Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (PROCESSES,))
    shards: list[Tensor] = []
    for weight in weights:
        if weight.grad is not None:
            shards.append(distribute_tensor(weight.detach(), mesh, [Shard(0)]).requires_grad_())
            shards[-1].grad = distribute_tensor(weight.grad, mesh, [Shard(0)])
    return shards
