"""Shards: each process steps its rows of a weight, and sums over whole weights are all-reduced.

`fully_shard` cuts weights along dimension 0, so that a unit lies whole in one process. Only a sum
over the whole weight needs the others; all processes read the same totals, and so decide alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile.interface import WeightStep
from spherenorm.numerics import accumulation_dtype

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Types of tensors that are no DTensor, nor of another class of their own."""


def local_shard(step: WeightStep) -> WeightStep:
    """Return the shard of a DTensor weight that this process holds.

    Other weights return as they are: plain ones, those whose rows do not lie whole in one process,
    and those whose gradient or states are sharded otherwise than the weight.
    """
    weight = step.weight
    if type(weight) in PLAIN_TENSORS:
        return step
    placements: Any = getattr(weight, "placements", None)
    if placements is None:
        return step
    from torch.distributed.tensor import Shard

    mesh: Any = weight.device_mesh  # type: ignore[attr-defined]
    sharded_dims = [
        dim
        for dim, placement in enumerate(placements)
        if mesh.size(dim) > 1 and not placement.is_replicate()
    ]
    by_rows = all(type(placements[d]) is Shard and placements[d].dim == 0 for d in sharded_dims)

    def fits(x: Tensor) -> bool:
        x_placements: Any = getattr(x, "placements", ())
        is_replicated = not x.ndim and all(p.is_replicate() for p in x_placements)
        return x_placements == placements or is_replicated

    if len(sharded_dims) > 1 or not by_rows or not all(map(fits, step.tensors()[1:])):
        return step
    return WeightStep(
        _local_tensor(weight),
        _local_tensor(step.grad),
        {name: _local_tensor(x) for name, x in step.state.items()},
        sharded=step,
        process_group=mesh.get_group(sharded_dims[0]) if sharded_dims else None,
    )


def _local_tensor(x: Tensor) -> Tensor:
    return x if type(x) in PLAIN_TENSORS else x.to_local()  # type: ignore[attr-defined]


def all_reduce_sums(totals: Sequence[Tensor], process_group: Any) -> list[Tensor]:
    """Return the sums of vectors over the processes, in one all-reduce."""
    packed = torch.cat([total.to(accumulation_dtype(total.device)) for total in totals])
    torch.distributed.all_reduce(packed, group=process_group)
    return list(torch.split(packed, [len(total) for total in totals]))


def check_ranks_agree(kinds: Mapping[Any, Sequence[Any]], device: torch.device) -> None:
    """Refuse a step that would take other weights in another process, before it waits forever.

    Args:
        kinds: the kinds of the weights with a gradient, by the process group that holds them.
        device: of the weights.

    Raises:
        ValueError: another process has others; in all of them.
    """
    for process_group, kinds_here in kinds.items():
        digest = hashlib.sha256(repr(kinds_here).encode()).digest()
        number = int.from_bytes(digest[:7], "big")
        extremes = torch.tensor([number, -number], dtype=torch.int64, device=device)
        torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX, group=process_group)
        largest, minus_smallest = extremes.tolist()
        if largest != -minus_smallest:
            raise ValueError(
                f"sharded weights with a gradient must be the same in all processes; process "
                f"{torch.distributed.get_rank()} has {len(kinds_here)} of them"
            )
