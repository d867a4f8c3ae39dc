"""Shards: which part of a weight each process holds, and how sums over whole weights are taken.

`fully_shard` cuts weights along dimension 0, so that a unit lies whole in one process. Only a sum
over the whole weight needs the others; all processes read the same totals, and so decide alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.compile.interface import WeightStep
from spherenorm.numerics import accumulation_dtype
from spherenorm.rule import State

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Types of tensors that are no DTensor, nor of another class of their own."""


class Region(NamedTuple):
    """A block of a tensor.

    Attributes:
        offsets: the index of the block's first entry, by dimension.
        lengths: the shape of the block.
    """

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.lengths)

    def of(self, x: Tensor) -> Tensor:
        """Return the block of `x`, a view."""
        slices = zip(self.offsets, self.lengths, strict=True)
        return x[tuple(slice(offset, offset + length) for offset, length in slices)]


def is_distributed(x: Any) -> bool:
    """Return whether `x` is a DTensor of several processes, this one among them."""
    if type(x) in PLAIN_TENSORS or not hasattr(x, "placements"):
        return False
    return bool(x.device_mesh.size() > 1) and x.device_mesh.get_coordinate() is not None


def region_at(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Any],
) -> Region:
    """Return the block of a tensor that the process at a coordinate of a mesh holds.

    A dimension is cut as by `torch.chunk`: the first processes have ceil(length / n) entries each,
    the last ones fewer or none. Tensor parallelism cuts rows before `fully_shard` does, but its
    dimension of the mesh comes last; `_StridedShard` is torch's name for that order.

    Args:
        shape: the shape of the whole tensor.
        mesh_shape: the number of processes along each dimension of the mesh.
        coordinate: the index of the process along each dimension of the mesh.
        placements: for each dimension of the mesh, `Shard(dim)`, `_StridedShard(dim)` or
            `Replicate()`.

    Example:
        >>> from torch.distributed.tensor import Shard
        >>> region_at((5, 4), (2,), (1,), [Shard(0)])
        Region(offsets=(3, 0), lengths=(2, 4))
    """
    offsets, lengths = [0] * len(shape), [*shape]
    cuts = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    for i in sorted(cuts, key=lambda i: (_is_strided(placements[i]), i)):
        dim = placements[i].dim
        chunk = -(-lengths[dim] // mesh_shape[i])
        start = min(lengths[dim], chunk * coordinate[i])
        offsets[dim] += start
        lengths[dim] = min(chunk, lengths[dim] - start)
    return Region(tuple(offsets), tuple(lengths))


def regions_of(x: Any) -> list[Region]:
    """Return the blocks of a DTensor that the processes of its mesh hold."""
    mesh_shape = tuple(x.device_mesh.shape)
    coordinates = itertools.product(*map(range, mesh_shape))
    return [region_at(x.shape, mesh_shape, at, x.placements) for at in coordinates]


def why_not_regions(x: Any) -> str | None:
    """Say why the parts of a DTensor in the processes are not blocks of it; None if they are."""
    for i, placement in enumerate(x.placements):
        if placement.is_replicate() or x.device_mesh.size(i) == 1:
            continue
        if placement.is_partial():
            return "each process has a term of a sum"
        if not _is_strided(placement):
            continue
        inner_cuts = [
            x.device_mesh.size(j)
            for j in range(i + 1, x.device_mesh.ndim)
            if not x.placements[j].is_replicate() and x.placements[j].dim == placement.dim
        ]
        if placement.split_factor != math.prod(inner_cuts):
            return "the rows of a process do not lie one after another"
    return None


def _is_strided(placement: Any) -> bool:
    return type(placement).__name__ == "_StridedShard"


def local_shard(step: WeightStep) -> WeightStep:
    """Return the part of a DTensor weight that this process holds, with its gradient and states.

    Other weights return as they are: plain ones, and those of which a tensor is not in blocks.
    """
    weight: Any = step.weight
    if type(weight) in PLAIN_TENSORS or not hasattr(weight, "placements"):
        return step
    mesh = weight.device_mesh
    if mesh.get_coordinate() is None:
        return step
    for x in step.tensors():
        placed: Any = x
        if type(x) in PLAIN_TENSORS:
            continue
        if getattr(x, "device_mesh", None) != mesh or why_not_regions(placed) is not None:
            return step
    sharded_dims = [
        dim
        for dim, placement in enumerate(weight.placements)
        if mesh.size(dim) > 1 and not placement.is_replicate()
    ]
    return WeightStep(
        _local_tensor(weight),
        _local_tensor(step.grad),
        {name: _local_tensor(x) for name, x in step.state.items()},
        sharded=step,
        process_group=mesh.get_group(sharded_dims[0]) if len(sharded_dims) == 1 else None,
        rows_are_whole=mesh.size() == 1 or _rows_are_whole(step, sharded_dims),
    )


def _rows_are_whole(step: WeightStep, sharded_dims: Sequence[int]) -> bool:
    """Return whether each row lies in one process, with its gradient and its part of the states."""
    from torch.distributed.tensor import Shard

    weight: Any = step.weight
    placements = weight.placements
    if len(sharded_dims) > 1:
        return False
    if not all(type(placements[d]) is Shard and placements[d].dim == 0 for d in sharded_dims):
        return False
    for x in step.tensors()[1:]:
        x_placements: Any = getattr(x, "placements", ())
        is_replicated = not x.ndim and all(p.is_replicate() for p in x_placements)
        has_same_rows = x_placements == placements and x.shape[:1] == weight.shape[:1]
        if not (is_replicated or has_same_rows):
            return False
    return True


def shard_state(state: State, weight: Any) -> State:
    """Return the states of a whole weight as DTensors, placed as the weight is.

    A state of another shape than the weight's is cut along its own rows, by all processes that cut
    the weight; numbers stay plain tensors.

    Args:
        state: of the whole weight, on its device; the same in all processes. States on "meta" only
            tell shapes and dtypes, and give zeros.
        weight: the DTensor.
    """
    from torch.distributed.tensor import Replicate, Shard

    mesh = weight.device_mesh
    by_rows = [p if p.is_replicate() else Shard(0) for p in weight.placements]
    sharded: State = {}
    for name, x in state.items():
        if not x.ndim:
            sharded[name] = torch.zeros_like(x, device=weight.device) if x.is_meta else x
            continue
        placements: Any = weight.placements if x.shape == weight.shape else by_rows
        if not x.numel():
            placements = [Replicate()] * mesh.ndim
        region = region_at(x.shape, mesh.shape, mesh.get_coordinate(), placements)
        if x.is_meta:
            local = torch.zeros(region.lengths, dtype=x.dtype, device=weight.device)
        else:
            local = region.of(x).clone(memory_format=torch.contiguous_format)
        contiguous = torch.empty(x.shape, device="meta")
        sharded[name] = _place(local, mesh, placements, contiguous)
    return sharded


def place_result(sharded: WeightStep, weight: Tensor, state: State) -> tuple[Tensor, State]:
    """Return the new weight and states of a shard as DTensors, placed as those before the step."""
    new_state = {name: _place_like(sharded.state[name], value) for name, value in state.items()}
    return _place_like(sharded.weight, weight), new_state


def _place_like(old: Any, local: Tensor) -> Tensor:
    if type(old) in PLAIN_TENSORS or not hasattr(old, "placements"):
        return local
    return _place(local, old.device_mesh, old.placements, old)


def _place(local: Tensor, mesh: Any, placements: Any, like: Tensor) -> Tensor:
    """Return a DTensor of the shape and the strides of `like`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _local_tensor(x: Tensor) -> Tensor:
    return x if type(x) in PLAIN_TENSORS else x.to_local()  # type: ignore[attr-defined]


def all_reduce_sums(totals: Sequence[Tensor], process_group: Any) -> list[Tensor]:
    """Return the sums of vectors over the processes, in one all-reduce."""
    packed = torch.cat([total.to(accumulation_dtype(total.device)) for total in totals])
    torch.distributed.all_reduce(packed, group=process_group)
    return list(torch.split(packed, [len(total) for total in totals]))
