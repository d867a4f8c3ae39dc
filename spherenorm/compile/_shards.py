"""Weights whose rows lie in several processes: each steps its own, and totals are added up.

`fully_shard` cuts weights along dimension 0, so that a unit lies whole in one process. Only a sum
over the whole weight needs the others: between two passes of the kernels, all weights together take
one all-reduce. All processes read the same totals, and so decide alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile._backends import Work

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
        held(weight),
        held(grad),
        {name: held(x) for name, x in state.items()},
        whole=work,
        processes=mesh.get_group(cut[0]) if cut else None,
    )


def held(x: Tensor) -> Tensor:
    """The entries of a tensor that this process holds: all, unless it is a DTensor."""
    return x if type(x) in PLAIN else x.to_local()  # type: ignore[attr-defined]


def run_together(walks: Iterable[tuple[Any, Iterator[Tensor]]]) -> None:
    """Run kernels pass by pass, and add up their totals in between: one all-reduce for all.

    Args:
        walks: the processes that share weights, and the passes of a kernel over their parts, which
            yield totals that are to be added up in place.
    """
    going = list(walks)
    while going:
        totals: defaultdict[Any, list[Tensor]] = defaultdict(list)
        left = []
        for processes, passes in going:
            found = next(passes, None)
            if found is not None:
                totals[processes].append(found)
                left.append((processes, passes))
        for processes, several in totals.items():
            packed = torch.cat([each.flatten() for each in several])
            torch.distributed.all_reduce(packed, group=processes)
            for each in several:
                each.copy_(packed[: each.numel()].view_as(each))
                packed = packed[each.numel() :]
        going = left


def in_all_processes(flags: Iterable[tuple[Work, bool]]) -> list[bool]:
    """Each flag, of a weight that lies in several processes only if it is set in all of these."""
    found = list(flags)
    asked: defaultdict[Any, list[int]] = defaultdict(list)
    for place, (work, _) in enumerate(found):
        if work.processes is not None:
            asked[work.processes].append(place)
    result = [flag for _, flag in found]
    for processes, places in asked.items():
        device = found[places[0]][0].weight.device
        lacking = torch.tensor([not result[i] for i in places], dtype=torch.int32, device=device)
        torch.distributed.all_reduce(lacking, group=processes)
        for i, count in zip(places, lacking.tolist(), strict=True):
            result[i] = count == 0
    return result
