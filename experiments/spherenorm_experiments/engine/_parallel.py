"""A model in several processes: each has all weights (DDP), or a part of them (FSDP2)."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import Task
from spherenorm_experiments.engine._ranks import Ranks


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
