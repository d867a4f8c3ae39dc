"""Weights whose rows lie in several processes: each steps its own, and totals are added up.

`fully_shard` cuts weights along dimension 0, so that a unit lies whole in one process. Only a sum
over the whole weight needs the others; all processes read the same totals, and so decide alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile.backends import Work
from spherenorm.numerics import accumulation_dtype

PLAIN = (Tensor, torch.nn.Parameter)
"""The types of tensors that are no DTensor, nor of another class of their own."""


def part_of(work: Work) -> Work:
    """The part of a sharded weight that this process holds; any other work as it is.

    So is a weight whose rows do not lie whole in one process, or one whose gradient or states are
    cut otherwise than the weight.
    """
    if type(work.weight) in PLAIN:
        return work
    weight, grad, state, *_ = work
    placements: Any = getattr(weight, "placements", None)
    if placements is None:
        return work
    from torch.distributed.tensor import Shard

    mesh: Any = weight.device_mesh  # type: ignore[attr-defined]
    cut = [
        dim
        for dim, placement in enumerate(placements)
        if mesh.size(dim) > 1 and not placement.is_replicate()
    ]
    by_rows = all(type(placements[dim]) is Shard and placements[dim].dim == 0 for dim in cut)

    def fits(x: Tensor) -> bool:
        own: Any = getattr(x, "placements", ())
        return own == placements or (not x.ndim and all(each.is_replicate() for each in own))

    if len(cut) > 1 or not by_rows or not all(map(fits, (grad, *state.values()))):
        return work
    return Work(
        _held(weight),
        _held(grad),
        {name: _held(x) for name, x in state.items()},
        whole=work,
        processes=mesh.get_group(cut[0]) if cut else None,
    )


def _held(x: Tensor) -> Tensor:
    """The entries of a tensor that this process holds: all, unless it is a DTensor."""
    return x if type(x) in PLAIN else x.to_local()  # type: ignore[attr-defined]


def add_up(totals: Sequence[Tensor], processes: Any) -> list[Tensor]:
    """The sums of vectors over the processes, in one all-reduce."""
    packed = torch.cat([each.to(accumulation_dtype(each.device)) for each in totals])
    torch.distributed.all_reduce(packed, group=processes)
    return list(torch.split(packed, [len(each) for each in totals]))


def compare(kinds: Mapping[Any, Sequence[Any]], device: torch.device) -> None:
    """Refuse a step that would take other weights in another process, before it waits forever.

    Args:
        kinds: of the weights with a gradient, by the processes that hold them.
        device: of the weights.

    Raises:
        ValueError: another process has others; in all of them.
    """
    for processes, own in kinds.items():
        digest = hashlib.sha256(repr(own).encode()).digest()
        number = int.from_bytes(digest[:7], "big")
        both = torch.tensor([number, -number], dtype=torch.int64, device=device)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=processes)
        most, least = both.tolist()
        if most != -least:
            here = f"process {torch.distributed.get_rank()} has {len(own)} of them"
            raise ValueError(
                f"sharded weights with a gradient must be the same in all processes; {here}"
            )
