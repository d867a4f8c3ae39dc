"""Owners: each sharded weight that a rule needs whole is stepped by one process.

One message takes the parts of weights, gradients and states to the owners, which step whole plain
tensors by the rule's own code, and one takes the parts of the results back. States stay placed as
they are, so that checkpoints do not know of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.compile.interface import WeightStep
from spherenorm.compile.sharded.messages import Members, round_up, view_as
from spherenorm.compile.sharded.shards import Region, region_at
from spherenorm.torch_internals import copy_tensors

MAX_OWNED_BYTES = 2**30
"""Bytes of weights, gradients and states that a process gathers at once, on average over the
processes. A step needs about five times as much: messages, whole tensors and results."""
WEIGHT, GRAD = "weight", "grad"
STATE_PREFIX = "state "

Tensors = Mapping[str, Tensor]
"""The tensors of one weight's step by name: "weight", "grad", and "state NAME" for each state."""


class TensorKind(NamedTuple):
    """A tensor of a step, as all processes know it.

    Attributes:
        name: as in `Tensors`.
        shape, dtype: of the whole tensor.
        placements: of a DTensor; None if each process holds all of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Any, ...] | None

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def regions(self, members: Members) -> list[Region]:
        """Return the block that each process holds."""
        if self.placements is None:
            return [Region((0,) * len(self.shape), self.shape)] * len(members.ranks)
        mesh_shape, placements = members.mesh.shape, self.placements
        return [region_at(self.shape, mesh_shape, at, placements) for at in members.coordinates]


TensorKinds = tuple[TensorKind, ...]
"""The tensors of one weight's step."""


def kind_of(step: WeightStep) -> TensorKinds:
    """Return the kinds of the tensors of a sharded step."""
    sharded = step.sharded or step
    return tuple(
        TensorKind(name, tuple(x.shape), x.dtype, getattr(x, "placements", None))
        for name, x in tensors_of(sharded).items()
    )


def tensors_of(step: WeightStep) -> dict[str, Tensor]:
    """Return the tensors of a step by name."""
    states = {STATE_PREFIX + name: x for name, x in step.state.items()}
    return {WEIGHT: step.weight, GRAD: step.grad, **states}


def state_of(tensors: Tensors) -> dict[str, Tensor]:
    """Return the states among the tensors of a step, by their own names."""
    return {
        name.removeprefix(STATE_PREFIX): x
        for name, x in tensors.items()
        if name.startswith(STATE_PREFIX)
    }


def assign_owners(costs: Sequence[float], n_processes: int) -> list[int]:
    """Return the owner of each weight: the costliest first, each to the least loaded process.

    Example:
        >>> assign_owners([1.0, 3.0, 2.0], 2)
        [1, 0, 1]
    """
    loads, owners = [0.0] * n_processes, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[i] = min(range(n_processes), key=lambda process: (loads[process], process))
        loads[owners[i]] += costs[i]
    return owners


def step_cost(shape: Sequence[int]) -> float:
    """Return about how many multiplications a product of a matrix with its transpose has."""
    if not shape:
        return 1.0
    rows, row_length = shape[0], math.prod(shape[1:])
    return float(rows * row_length * min(rows, row_length))


def split_by_bytes(kinds: Mapping[int, TensorKinds], n_processes: int) -> Iterator[list[int]]:
    """Yield weights, in order, whose tensors are gathered at once; at least one weight each."""
    bucket: list[int] = []
    n_bytes = 0
    for position, kind in kinds.items():
        weight_bytes = sum(tensor.nbytes for tensor in kind)
        if bucket and n_bytes + weight_bytes > MAX_OWNED_BYTES * n_processes:
            yield bucket
            bucket, n_bytes = [], 0
        bucket.append(position)
        n_bytes += weight_bytes
    if bucket:
        yield bucket


def owners_of(kinds: Mapping[int, TensorKinds], n_processes: int) -> dict[int, int]:
    """Return the owner of each weight, as an index of the mesh's processes."""
    owners: dict[int, int] = {}
    for bucket in split_by_bytes(kinds, n_processes):
        costs = [step_cost(kinds[position][0].shape) for position in bucket]
        owners.update(zip(bucket, assign_owners(costs, n_processes), strict=True))
    return owners


@dataclass(frozen=True)
class Piece:
    """A block of a tensor on its way.

    Attributes:
        position: of the weight.
        kind: shape, dtype and placement of the tensor.
        region: the block that the message holds.
    """

    position: int
    kind: TensorKind
    region: Region

    @property
    def padded_nbytes(self) -> int:
        """The bytes that the piece takes in a message."""
        return round_up(self.region.numel * self.kind.dtype.itemsize)

    @property
    def is_whole(self) -> bool:
        """True if the block is all of the tensor."""
        return self.region.lengths == self.kind.shape


class CopyBatch:
    """Copies of tensors that are to be made, those of equal dtypes by one operation."""

    def __init__(self) -> None:
        self._lists: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def add(self, target: Tensor, source: Tensor) -> None:
        """Add a copy."""
        targets, sources = self._lists.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)

    def run(self) -> None:
        """Copy all of them."""
        for targets, sources in self._lists.values():
            copy_tensors(targets, sources)


class TransferPlan:
    """The plan by which the weights of one bucket travel to their owners, and back.

    A block that several processes hold is sent by one of them, and returns to all.

    Args:
        members: the processes.
        kinds: the kind of each weight, by its position.

    Attributes:
        owned: the positions of the weights that this process owns.
    """

    def __init__(self, members: Members, kinds: Mapping[int, TensorKinds]) -> None:
        n, self._here = len(members.ranks), members.index
        self._kinds = kinds
        self._outgoing: list[list[Piece]] = [[] for _ in range(n)]
        self._incoming: list[list[Piece]] = [[] for _ in range(n)]
        self._results_out: list[list[Piece]] = [[] for _ in range(n)]
        self._results_in: list[list[Piece]] = [[] for _ in range(n)]
        costs = [step_cost(kind[0].shape) for kind in kinds.values()]
        owners = dict(zip(kinds, assign_owners(costs, n), strict=True))
        self.owned = [position for position, owner in owners.items() if owner == self._here]
        for position, kind in kinds.items():
            for tensor in kind:
                self._add_tensor(position, tensor, owners[position], members)

    def _add_tensor(self, position: int, tensor: TensorKind, owner: int, members: Members) -> None:
        holders: dict[Region, list[int]] = {}
        for process, region in enumerate(tensor.regions(members)):
            if region.numel:
                holders.setdefault(region, []).append(process)
        for region, processes in holders.items():
            piece = Piece(position, tensor, region)
            sender = min(processes, key=lambda process: (abs(process - owner), process))
            if sender == self._here:
                self._outgoing[owner].append(piece)
            if owner == self._here:
                self._incoming[sender].append(piece)
            if tensor.name == GRAD:
                continue
            for process in processes:
                if owner == self._here:
                    self._results_out[process].append(piece)
                if process == self._here:
                    self._results_in[owner].append(piece)

    def sizes_to_owners(self) -> tuple[list[int], list[int]]:
        """Return the bytes of the first message to and from each process."""
        return self._sizes(self._outgoing), self._sizes(self._incoming)

    def sizes_of_results(self) -> tuple[list[int], list[int]]:
        """Return the bytes of the second message to and from each process."""
        return self._sizes(self._results_out), self._sizes(self._results_in)

    def _sizes(self, pieces: Sequence[Sequence[Piece]]) -> list[int]:
        return [
            0 if process == self._here else sum(piece.padded_nbytes for piece in of_process)
            for process, of_process in enumerate(pieces)
        ]

    def pack(self, local: Mapping[int, Tensors], parts: Sequence[Tensor]) -> None:
        """Write the blocks that this process holds into the parts of the first message.

        Args:
            local: the tensors of each weight in this process; without those of no gradient.
            parts: to each process.
        """
        copies = CopyBatch()
        for process, part, piece in self._iterate_pieces(self._outgoing, parts):
            if process != self._here and piece.position in local:
                source = local[piece.position][piece.kind.name]
                copies.add(view_as(part, piece.region.lengths, piece.kind.dtype), source)
        copies.run()

    def unpack(
        self, local: Mapping[int, Tensors], parts: Sequence[Tensor], device: torch.device
    ) -> dict[int, WeightStep]:
        """Return the steps of the owned weights, in whole plain tensors.

        Args:
            local: as for `pack`.
            parts: from each process.
            device: of the weights.
        """
        whole: dict[int, dict[str, Tensor]] = {p: {} for p in self.owned if p in local}
        copies = CopyBatch()
        for process, part, piece in self._iterate_pieces(self._incoming, parts):
            if piece.position not in local:
                continue
            kind, tensors = piece.kind, whole[piece.position]
            if process == self._here:
                block = local[piece.position][kind.name]
            else:
                block = view_as(part, piece.region.lengths, kind.dtype)
            if piece.is_whole:
                tensors[kind.name] = block.detach()
                continue
            if kind.name not in tensors:
                tensors[kind.name] = torch.empty(kind.shape, dtype=kind.dtype, device=device)
            copies.add(piece.region.of(tensors[kind.name]), block)
        copies.run()
        steps = {}
        for position, tensors in whole.items():
            for kind in self._kinds[position]:
                if kind.name not in tensors:  # no process holds an entry
                    tensors[kind.name] = torch.empty(kind.shape, dtype=kind.dtype, device=device)
            in_order = {kind.name: tensors[kind.name] for kind in self._kinds[position]}
            steps[position] = WeightStep(in_order[WEIGHT], in_order[GRAD], state_of(in_order))
        return steps

    def pack_results(self, results: Mapping[int, Tensors], parts: Sequence[Tensor]) -> None:
        """Write the blocks of new weights and states into the parts of the second message."""
        copies = CopyBatch()
        for process, part, piece in self._iterate_pieces(self._results_out, parts):
            if process != self._here and piece.position in results:
                source = piece.region.of(results[piece.position][piece.kind.name])
                copies.add(view_as(part, piece.region.lengths, piece.kind.dtype), source)
        copies.run()

    def unpack_results(
        self, results: Mapping[int, Tensors], local: Mapping[int, Tensors], parts: Sequence[Tensor]
    ) -> dict[int, dict[str, Tensor]]:
        """Return the new values of the tensors in this process; blocks of no entry stay.

        Args:
            results: of the owned weights.
            local: as for `pack`.
            parts: from each process.
        """
        new_values: dict[int, dict[str, Tensor]] = {
            position: {name: x for name, x in tensors.items() if name != GRAD}
            for position, tensors in local.items()
            if position in self._kinds
        }
        for process, part, piece in self._iterate_pieces(self._results_in, parts):
            if piece.position not in new_values:
                continue
            if process == self._here:
                value = piece.region.of(results[piece.position][piece.kind.name])
            else:
                value = view_as(part, piece.region.lengths, piece.kind.dtype)
            new_values[piece.position][piece.kind.name] = value
        return new_values

    def _iterate_pieces(
        self, pieces: Sequence[Sequence[Piece]], parts: Sequence[Tensor]
    ) -> Iterator[tuple[int, Tensor, Piece]]:
        """Yield each process, its part of a message from where a piece begins, and the piece."""
        for process, of_process in enumerate(pieces):
            start = 0
            for piece in of_process:
                yield process, parts[process][start:], piece
                start += piece.padded_nbytes
