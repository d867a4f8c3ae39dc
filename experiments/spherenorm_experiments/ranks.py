"""`Ranks`: the processes that train one run together; in an ordinary run this process alone.

What they tell each other in the course of a run goes through here, on the CPU (gloo); gradients and
shards go through DDP, where each process has all weights, and FSDP2, where it has a part of them.
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

from spherenorm_experiments.task import Task

PR_SET_PDEATHSIG = 1
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: this process; rank 0 holds the run's folder and writes it.
        world: how many there are.
        parallel: "ddp", "fsdp", or None in a process alone.
    """

    rank: int = 0
    world: int = 1
    parallel: str | None = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """This process's own device: with "cuda", the GPU of its local rank."""
        local = os.environ.get("LOCAL_RANK", "0")
        return f"cuda:{local}" if self.parallel and name == "cuda" else name

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        if self.parallel is None:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        if self.parallel is None:
            return [value]
        found: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(found, value)
        return found

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """The sums over ranks."""
        if self.parallel is None:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        return sums.tolist()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors by rank 0's."""
        if self.parallel is not None:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Return when every rank has come here."""
        self.gather(None)


ALONE = Ranks()


@contextmanager
def joined(parallel: str, device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Args:
        parallel: "ddp" or "fsdp".
        device: of the run.
    """
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), parallel)
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


def parallelize(module: nn.Module, task: Task, ranks: Ranks, device: str) -> nn.Module:
    """The model that the loss calls; with FSDP2 the module itself, whose weights are now sharded.

    Neither shares buffers in training: BatchNorm's statistics are those of rank 0, which the engine
    broadcasts before they are evaluated or saved. (DDP's own broadcast in each forward pass would
    break losses that call the model twice.)
    """
    if ranks.parallel is None:
        return module
    if ranks.parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        here = torch.device(device)
        devices = [here] if here.type == "cuda" else None
        known = inspect.signature(DistributedDataParallel).parameters
        new, old = "forward_sync_buffers", "broadcast_buffers"  # torch has renamed it
        off: dict[str, Any] = {new if new in known else old: False}
        return DistributedDataParallel(module, device_ids=devices, **off)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.device(device).type, (ranks.world,))
    for part in [*task.shards(module), module]:
        fully_shard(part, mesh=mesh)
    return module


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """The block of a micro-batch: gradients are reduced over ranks only in the last of a step."""
    wrapped: Any = model
    if hasattr(model, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(last)
    elif not last and hasattr(model, "no_sync"):
        return wrapped.no_sync()  # type: ignore[no-any-return]
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; all ranks must ask."""
    gathered: Any = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def placed(whole: Tensor, like: Tensor) -> Tensor:
    """The inverse of `whole`: a tensor where another one lies, sharded as that is."""
    if not hasattr(like, "placements"):
        return whole.to(like.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
