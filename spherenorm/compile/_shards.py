"""Weights whose rows lie in several processes: each steps its own, and totals are added up.

`fully_shard` cuts weights along dimension 0, so that a unit lies whole in one process. Only a sum
over the whole weight needs the others: between two passes of the kernels, all weights together take
one all-reduce. All processes read the same totals, and so decide alike. A process that cannot take
kernels in a step says so in the first one, and all of them run the rule's own code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass
class Share:
    """The share of one process in the totals of weights that several processes hold.

    Attributes:
        device: of the totals.
        failed: the step of this process raises.
        lacking: this process takes no kernel for one of these weights.
        totals: the count of numbers that the kernels of the weights add up in the first round.
    """

    device: torch.device
    failed: bool
    lacking: bool = False
    totals: int = 0

    @property
    def absent(self) -> bool:
        return self.failed or self.lacking


def by_rounds(
    walks: Iterable[tuple[Any, Iterator[Tensor]]], shares: Mapping[Any, Share]
) -> Iterator[dict[Any, bool]]:
    """Run kernels pass by pass, and add up their totals in between: one all-reduce for all.

    The first round has two numbers more, the processes that are absent and those that have failed;
    so all of them know before the first weight is written to. Kernels go on only where no process
    is absent.

    Args:
        walks: the processes that share weights, and the passes of a kernel over their parts, which
            yield totals that are to be added up in place, at least once.
        shares: of this process, by the processes that share weights, in an order that is the same
            in all of them; those of an absent one have no walk.

    Yields:
        Once, after the first round: the groups of processes of which one is absent, each with True
        if one has failed. The rest runs when this is resumed.
    """
    told = {
        processes: torch.tensor([own.absent, own.failed], dtype=torch.float64, device=own.device)
        for processes, own in shares.items()
    }
    totals = {processes: [flags] for processes, flags in told.items()}
    for processes, own in shares.items():
        if own.absent:
            totals[processes].append(told[processes].new_zeros(own.totals))
    going = list(walks)
    for processes, passes in going:
        totals[processes].append(next(passes))
    _add_up(totals)
    heard = {processes: flags.tolist() for processes, flags in told.items() if not _captured(flags)}
    absent = {processes: failed > 0 for processes, (lacking, failed) in heard.items() if lacking}
    yield absent
    going = [(processes, passes) for processes, passes in going if processes not in absent]
    while going:
        totals = {}
        left = []
        for processes, passes in going:
            found = next(passes, None)
            if found is not None:
                totals.setdefault(processes, []).append(found)
                left.append((processes, passes))
        _add_up(totals)
        going = left


def _add_up(totals: Mapping[Any, Sequence[Tensor]]) -> None:
    """Add up tensors of several processes, in place."""
    for processes, several in totals.items():
        packed = torch.cat([each.flatten() for each in several])
        torch.distributed.all_reduce(packed, group=processes)
        for each in several:
            each.copy_(packed[: each.numel()].view_as(each))
            packed = packed[each.numel() :]


def _captured(x: Tensor) -> bool:
    """True while a CUDA graph is captured, whose replays ask no process."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def largest_of_all(asked: Sequence[tuple[Work, int]]) -> list[int]:
    """The largest of each number among the processes that hold parts of its weight."""
    result = [number for _, number in asked]
    places: defaultdict[Any, list[int]] = defaultdict(list)
    for place, (work, _) in enumerate(asked):
        places[work.processes].append(place)
    for processes, own in places.items():
        device = asked[own[0]][0].weight.device
        packed = torch.tensor([result[i] for i in own], dtype=torch.int32, device=device)
        torch.distributed.all_reduce(packed, torch.distributed.ReduceOp.MAX, group=processes)
        for i, number in zip(own, packed.tolist(), strict=True):
            result[i] = number
    return result
