"""Processes, two by default, started once, that run all cases; each writes what it found.

A case is a function of nothing that all processes run alike. What it returns in process 0 is its
result; where it raises in a process, the result is that error.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

WORLD = 2
PATIENCE = timedelta(seconds=120)
"""Who waits for a collective that the other does not take fails after this time."""


def run(
    cases: Callable[[], Mapping[str, Callable[[], Any]]], folder: Path, n_processes: int = WORLD
) -> dict[str, Any]:
    """The results of all cases, by their names.

    Args:
        cases: makes them, in each of the processes.
        folder: where the processes meet.
        n_processes: how many there are.
    """
    results = folder / "results"
    try:
        mp.spawn(_work, args=(cases, folder, n_processes), nprocs=n_processes)
    except mp.ProcessExitedException:  # gloo's threads may abort a process that ends
        if not results.exists():
            raise
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def _work(
    rank: int,
    cases: Callable[[], Mapping[str, Callable[[], Any]]],
    folder: Path,
    n_processes: int,
) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=n_processes, timeout=PATIENCE)
    results = {}
    for name, case in cases().items():
        try:
            results[name] = case()
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            results[name] = f"process {rank} raises {type(error).__name__}: {error}"
    told: list[Any] = [None] * n_processes
    dist.all_gather_object(told, results)
    if rank == 0:
        (folder / "results").write_text(json.dumps({k: _said(k, told) for k in results}))
    dist.barrier()  # who leaves first would take the connections of the other away
    dist.destroy_process_group()


def _said(name: str, told: list[dict[str, Any]]) -> Any:
    errors = [each[name] for each in told if isinstance(each[name], str)]
    return errors[0] if errors else told[0][name]


@functools.cache
def mesh(dims: int = 1) -> Any:
    """All processes along the last of so many dimensions."""
    from torch.distributed.tensor import init_device_mesh

    return init_device_mesh("cpu", (1,) * (dims - 1) + (dist.get_world_size(),))


def placed(whole: Tensor, *cut: int | None, on: Any = None) -> Any:
    """The tensor, whose dimension of that number each dimension of the mesh cuts; None: none."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements = [Replicate() if dim is None else Shard(dim) for dim in cut]
    return distribute_tensor(whole.detach().clone(), on or mesh(len(cut)), placements)


def whole(x: Any) -> Tensor:
    return x.detach().full_tensor() if hasattr(x, "full_tensor") else x.detach()


def apart(ours: Any, theirs: Any) -> float:
    """The largest distance of entries of tensors, whole or sharded."""
    pairs = zip(map(whole, ours), map(whole, theirs), strict=True)
    return max([float((a - b).abs().max()) for a, b in pairs if a.numel()], default=0.0)
