"""Sharded weights: two processes take many cases, two new ones go on after one that hangs."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from tests.fuzz import outcome as fuzz
from tests.fuzz import paths
from tests.fuzz.cases import Weight, draw_case

WORLD = 2
PATIENCE = 300
"""Seconds that a case may take, or the start of the processes. A case takes one or two, and the
start ten: a busy machine takes many times as long, and a deadlock for ever."""


def outcomes(seed: int, numbers: Sequence[int]) -> Iterator[fuzz.Outcome]:
    done = 0
    while done < len(numbers):
        context = mp.get_context("spawn")
        results = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (f"{folder}/rendezvous", seed, numbers[done:], results)
            workers = [
                context.Process(target=_work, args=(rank, *arguments), daemon=True)
                for rank in range(WORLD)
            ]
            for worker in workers:
                worker.start()
            try:
                _next(results, workers)  # they are ready
                while done < len(numbers):
                    yield _next(results, workers)
                    done += 1
            except _NoResultError as error:
                yield fuzz.Outcome("dtensor", numbers[done], "different", str(error))
                done += 1
            finally:
                for worker in workers:
                    worker.kill()
                    worker.join()


class _NoResultError(Exception):
    """The processes wait for each other, or one has died."""


def _next(results: Any, workers: Sequence[Any]) -> Any:
    """The next word of the first process.

    Raises:
        _NoResultError: it says nothing, and why.
    """
    for _ in range(PATIENCE):
        try:
            return results.get(timeout=1)
        except queue.Empty:
            died = [rank for rank, worker in enumerate(workers) if worker.exitcode]
            if died:
                codes = [workers[rank].exitcode for rank in died]
                raise _NoResultError(f"processes {died} died, with exit codes {codes}") from None
    raise _NoResultError(f"the processes say nothing for {PATIENCE} seconds")


def _work(rank: int, file: str, seed: int, numbers: Sequence[int], results: Any) -> None:
    from torch.distributed.tensor import (
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE),
    )
    mesh = init_device_mesh("cpu", (WORLD,))
    if rank == 0:
        results.put("ready")

    def place(x: Tensor, weight: Weight) -> Tensor:
        return distribute_tensor(
            x.contiguous(), mesh, [Replicate() if weight.shard is None else Shard(weight.shard)]
        )

    def whole(x: Tensor) -> Tensor:
        return x.detach().full_tensor() if isinstance(x, DTensor) else x

    for number in numbers:
        result = fuzz.outcome(
            "dtensor",
            draw_case("dtensor", seed, number),
            lambda case, gradients: paths.by_optimizer(
                case, gradients, {"backend": "auto"}, place, whole
            ),
        )
        if rank == 0:
            results.put(result)
        dist.barrier()  # who leaves first would take the connections of the other away
    dist.destroy_process_group()
