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

from tests.fuzz.cases import Weight, draw_case
from tests.fuzz.compare import Outcome, outcome
from tests.fuzz.paths import by_optimizer

WORLD = 2
PATIENCE = 300
"""Seconds that a case may take, or the start of the processes. A case takes one or two, and the
start ten: a busy machine takes many times as long, and a deadlock for ever."""


def sharded_outcome(seed: int, number: int) -> Outcome:
    """The outcome of a case in this process, while all others take it too."""
    from torch.distributed.tensor import (
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    mesh = init_device_mesh("cpu", (WORLD,))

    def place(x: Tensor, weight: Weight) -> Tensor:
        placement = Replicate() if weight.shard is None else Shard(weight.shard)
        return distribute_tensor(x.contiguous(), mesh, [placement])

    def whole(x: Any) -> Tensor:
        return x.detach().full_tensor() if hasattr(x, "full_tensor") else x

    def run(*of: Any) -> Any:
        moments = by_optimizer(*of, "auto", place, whole)
        return moments if dist.get_rank() == 0 else [{} for _ in moments]  # one process judges

    return outcome("dtensor", draw_case("dtensor", seed, number), run)


def outcomes(seed: int, numbers: Sequence[int]) -> Iterator[Outcome]:
    done = 0
    while done < len(numbers):
        context = mp.get_context("spawn")
        results = context.Queue()
        with tempfile.TemporaryDirectory() as folder:
            given = (f"file://{folder}/rendezvous", seed, numbers[done:], results)
            workers = [
                context.Process(target=_work, args=(rank, *given), daemon=True)
                for rank in range(WORLD)
            ]
            for worker in workers:
                worker.start()
            try:
                while done < len(numbers):
                    yield _next(results, workers)
                    done += 1
            except RuntimeError as error:
                yield Outcome("dtensor", numbers[done], "different", str(error))
                done += 1
            finally:
                for worker in workers:
                    worker.kill()
                    worker.join()


def _next(results: Any, workers: Sequence[Any]) -> Outcome:
    """The next word of the first process.

    Raises:
        RuntimeError: it says nothing, as a process has died or they wait for each other.
    """
    for _ in range(PATIENCE):
        try:
            found: Outcome = results.get(timeout=1)
            return found
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                codes = [worker.exitcode for worker in workers]
                raise RuntimeError(f"a process died: exit codes {codes}") from None
    raise RuntimeError(f"the processes say nothing for {PATIENCE} seconds")


def _work(rank: int, meeting: str, seed: int, numbers: Sequence[int], results: Any) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", meeting, rank=rank, world_size=WORLD, timeout=limit)
    for number in numbers:
        found = sharded_outcome(seed, number)
        if rank == 0:
            results.put(found)
        dist.barrier()  # who leaves first would take the connections of the other away
    dist.destroy_process_group()
