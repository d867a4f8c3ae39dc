"""`Ranks`: the processes that train one run together; in an ordinary run this process alone.

What they tell each other in the course of a run goes through here, on the CPU (gloo); gradients go
through DDP.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process; rank 0 holds the run's folder and writes it.
        world: how many there are.
        distributed: False in a process alone, which has no process group.
    """

    rank: int = 0
    world: int = 1
    distributed: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """This process's own device: with "cuda", the GPU of its local rank."""
        local = os.environ.get("LOCAL_RANK", "0")
        return f"cuda:{local}" if self.distributed and name == "cuda" else name

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        if not self.distributed:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(values, value)
        return values

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """The sums over ranks."""
        if not self.distributed:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        return sums.tolist()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors by rank 0's."""
        if self.distributed:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Return when every rank has come here."""
        self.gather(None)


SINGLE_PROCESS = Ranks()


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        device: of the run.
    """
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), True)
    finally:
        torch.distributed.destroy_process_group()


def die_with_parent() -> None:
    """End this process when its parent ends, however that ends.

    A launcher that is killed would else leave its workers running, and a restart would be a second
    writer in a run's folder. Linux sends the signal itself; elsewhere a thread looks.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def parallelize(module: nn.Module, ranks: Ranks, device: str) -> nn.Module:
    """Wrap a model in DDP if several processes train it; return the model that the loss calls.

    DDP shares no buffers in training: BatchNorm's statistics are those of rank 0, which the engine
    broadcasts before they are evaluated or saved. (DDP's own broadcast in each forward pass would
    break losses that call the model twice.)
    """
    if not ranks.distributed:
        return module
    from torch.nn.parallel import DistributedDataParallel

    place = torch.device(device)
    devices = [place] if place.type == "cuda" else None
    parameters = inspect.signature(DistributedDataParallel).parameters
    new, old = "forward_sync_buffers", "broadcast_buffers"  # torch has renamed it
    off: dict[str, Any] = {new if new in parameters else old: False}
    return DistributedDataParallel(module, device_ids=devices, **off)


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return the block of a micro-batch: gradients are reduced over ranks in the last one alone."""
    wrapped: Any = model
    if last or not hasattr(model, "no_sync"):
        return nullcontext()
    return wrapped.no_sync()  # type: ignore[no-any-return]
