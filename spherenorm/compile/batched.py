"""The batched executor on a GPU and for shards: a graph as torch operations on all weights at once.

Scalars are one vector [weights], rows one vector [rows of all weights], entries one vector [entries
of all weights], into which weights, gradients and states are copied. So the launches of a step do
not depend on the number of weights. What hyper-parameters alone decide is computed on the host, and
nothing waits for the device; each outcome of such decisions has its own program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile.interface import Array, Executor, WeightStep
from spherenorm.compile.sharded.shards import all_reduce_sums
from spherenorm.numerics import Scalar, compute_dtype, without_autocast
from spherenorm.operations import OPERATIONS, Batched
from spherenorm.torch_internals import copy_tensors

SCALAR, ROW, FULL = Extent
HOST = -1
"""In the place of an extent: a number that is known before the device starts."""
MAX_BATCH_ENTRIES = 2**25
"""Entries that are stepped at once, which bounds temporaries: some ten vectors of so many."""
BLOCK = 2**13
"""Entries of a row that are summed at once; more would round more, and occupy a GPU too little."""


class BatchedExecutor:
    """The graph of weights of one shape, to be run on all weights of its structure.

    Args:
        graph: of the step.
        literals: of the graph.
    """

    name = "batched"
    max_batch_entries = MAX_BATCH_ENTRIES
    reuses_batches = True

    def __init__(self, graph: StepGraph, literals: Array) -> None:
        self.graph, self.literals = graph, literals
        self._structure: Hashable = graph.structure

    @property
    def batch_key(self) -> Hashable:
        """The structure of the graph."""
        return self._structure

    program = batch_key

    @property
    def code(self) -> str:
        """The graph, whose operations are run one by one."""
        return self.graph.listing()

    def bind(self, weights: Sequence[WeightStep], executors: Sequence[Executor]) -> WeightBatch:
        """Make the index vectors of weights."""
        literals = np.stack([executor.literals for executor in executors])
        return WeightBatch(self.graph, literals, weights)


class WeightBatch:
    """Weights whose graphs have one structure, and their step.

    Args:
        graph: of any of them.
        literals: the numbers of each weight's graph, of shape (weights, literals).
        weights: none of their tensors is held.
    """

    def __init__(self, graph: StepGraph, literals: Array, weights: Sequence[WeightStep]) -> None:
        tensors = [step.weight for step in weights]
        self.graph, self.device = graph, tensors[0].device
        self.process_group = weights[0].process_group
        self.compute_dtype = compute_dtype(tensors[0].dtype)
        self.sizes = [w.numel() for w in tensors]
        self.rows = [w.shape[0] if w.ndim > 1 else 1 for w in tensors]
        cols = [n // rows if rows else 0 for n, rows in zip(self.sizes, self.rows, strict=True)]
        cols_of_row = np.repeat(cols, self.rows)
        n_blocks = np.maximum(-(-cols_of_row // BLOCK), 1)
        block_sizes = [
            [BLOCK] * (n - 1) + [size - BLOCK * (n - 1)]
            for size, n in zip(cols_of_row, n_blocks, strict=True)
        ]
        entries = np.array([*itertools.chain.from_iterable(block_sizes)], dtype=np.int64)
        self.lengths = {
            "entries": self._to_device(entries),
            "blocks": self._to_device(n_blocks) if (n_blocks > 1).any() else None,
            "rows": self._to_device(self.rows),
        }
        """Lengths of the parts of a vector that are summed: entries of a block, blocks of a row,
        rows of a weight."""
        self._repeats = {
            (SCALAR, ROW): self.rows,
            (ROW, FULL): cols_of_row,
            (SCALAR, FULL): self.sizes,
        }
        self._indices: dict[tuple[Extent, Extent], Tensor] = {}
        is_equal = (literals == literals[:1]).all(0)
        self.literals = [
            float(column[0]) if equal else self._to_device(column)
            for column, equal in zip(literals.T, is_equal, strict=True)
        ]
        self.programs: dict[Any, Program] = {}
        """By the outcome of the decisions that numbers make."""

    def _to_device(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def index(self, narrow: Extent, wide: Extent) -> Tensor:
        """Return the index vector that spreads a narrower vector over a wider one.

        One over entries takes as much memory as the weights in float32, so that it is made on the
        device, and only for a program that needs it.
        """
        key = narrow, wide
        if key not in self._indices:
            repeats = self._to_device(self._repeats[key])
            parts = torch.arange(len(repeats), dtype=torch.int32, device=self.device)
            size = sum(self.sizes) if wide is FULL else sum(self.rows)
            self._indices[key] = torch.repeat_interleave(parts, repeats, output_size=size)
        return self._indices[key]

    @property
    def index_bytes(self) -> int:
        """Bytes of the index vectors, which stay on the device."""
        return sum(index.nbytes for index in self._indices.values())

    def run(self, weights: Sequence[WeightStep], scalars: Sequence[Scalar]) -> None:
        """Step the weights in place.

        Args:
            weights: as they are now.
            scalars: the hyper-parameters. A tensor on a GPU is not read by the host.
        """
        values = self._host_values(scalars)
        outcome = tuple(
            (i, None if isinstance(v, Tensor) else bool(v))
            for i, v in values.items()
            if isinstance(v, Tensor | np.bool_)
        )
        if outcome not in self.programs:
            self.programs[outcome] = Program(self, values)
        with without_autocast(self.device):
            self.programs[outcome].run(weights, values)

    def _host_values(self, scalars: Sequence[Scalar]) -> dict[int, Any]:
        """Compute what hyper-parameters and equal literals decide; tensors stay on the device."""
        arguments, values = [*scalars, *self.literals], dict[int, Any]()
        for n in self.graph.nodes:
            if n.op == "argument":
                value = arguments[n.detail]
                if isinstance(value, Tensor) and not value.ndim and not value.is_cpu:
                    value = value.to(self.device, torch.float64).expand(len(self.sizes))
                on_device = isinstance(value, Tensor) and value.ndim
                values[n.index] = value if on_device else np.float64(float(value))
            elif n.arguments and all(isinstance(values.get(a), np.generic) for a in n.arguments):
                function = _number_function(n.op, n.rounds_to_float32)
                with np.errstate(all="ignore"):
                    values[n.index] = function(*(values[a] for a in n.arguments))
        return values


class Instruction:
    """An operation of a program.

    Attributes:
        slot: the slot of its result.
        function: of the values of `arguments`, or of the weights if `reads_weights`.
        arguments: slots.
        reads_weights: true of the copies out of weights, gradients and states.
        freed: slots that no later instruction needs.
        stage: how many all-reduces the instruction waits for.
    """

    def __init__(
        self,
        slot: int,
        function: Callable[..., Any],
        arguments: tuple[int, ...],
        reads_weights: bool = False,
    ) -> None:
        self.slot, self.function, self.arguments = slot, function, arguments
        self.reads_weights = reads_weights
        self.freed: list[int] = []
        self.stage: float = 0


class Program:
    """The operations of a step, for one outcome of the decisions that numbers make.

    A slot is the index of a node, or a higher number for an intermediate vector.

    Args:
        batch: the weights.
        host_values: the numbers that are known before the device starts, and tensors on it.
    """

    def __init__(self, batch: WeightBatch, host_values: dict[int, Any]) -> None:
        self.batch, self.nodes, self.host_values = batch, batch.graph.nodes, host_values
        self.n_slots = len(self.nodes)
        self.kind: dict[int, Any] = {n.index: n.extent for n in self.nodes}
        self.kind |= {i: HOST for i, v in host_values.items() if not isinstance(v, Tensor)}
        self.instructions: list[Instruction] = []
        self.shared: dict[Any, int] = {}
        """Slots of intermediate vectors that several operations use."""
        self.totals = set[int]()
        """Slots of sums over whole weights, of which other processes have further parts."""
        self.alias_of: dict[int, int] = {}
        """The branch that a decision of numbers selects, in the place of the `where`."""
        self.selected_branch: dict[int, int] = {}
        """The selected branch, also where it has fewer values than the `where`."""
        self._select_branches()
        for n in self._live_nodes():
            if n.index not in host_values:
                self._emit(n)
        self.outputs = {
            name: self._spread(self._slot(i), batch.graph.inputs[name].extent)
            for name, i in batch.graph.outputs.items()
        }
        if batch.process_group is not None:
            self.instructions = _in_stages(
                self.instructions, self.totals, self.n_slots, batch.process_group
            )
        last_use = {a: step for step in self.instructions for a in step.arguments}
        for slot, instruction in last_use.items():
            if slot not in host_values and slot not in self.outputs.values():
                instruction.freed.append(slot)

    def _select_branches(self) -> None:
        for n in self.nodes:
            is_decision = n.op == "where" and self.kind[n.arguments[0]] == HOST
            if not is_decision or n.index in self.host_values:
                continue
            branch = self._slot(n.arguments[1 if self.host_values[n.arguments[0]] else 2])
            self.selected_branch[n.index] = branch
            if self.kind[branch] is n.extent:
                self.alias_of[n.index] = branch

    def _slot(self, index: int) -> int:
        return self.alias_of.get(index, index)

    def _live_nodes(self) -> list[Node]:
        alive = set[int]()
        pending = [self._slot(i) for i in self.batch.graph.outputs.values()]
        while pending:
            i = pending.pop()
            if i in alive:
                continue
            alive.add(i)
            if i in self.selected_branch:
                pending.append(self._slot(self.selected_branch[i]))
            elif i not in self.host_values:
                pending += map(self._slot, self.nodes[i].arguments)
        return [n for n in self.nodes if n.index in alive]

    def _add(self, slot: int, function: Callable[..., Any], *arguments: int) -> None:
        self.instructions.append(Instruction(slot, function, arguments))

    def _emit(self, n: Node) -> None:
        arguments = tuple(map(self._slot, n.arguments))
        if n.op in INPUTS:
            self.instructions.append(Instruction(n.index, self._reader(n), (), reads_weights=True))
        elif n.op in ("sum", "any"):
            self._reduce(n, arguments[0])
        elif n.index in self.selected_branch:
            branch = self._spread(self.selected_branch[n.index], n.extent, n.boolean)
            self._add(n.index, lambda x: x, branch)
        else:
            wide = self.batch.compute_dtype if n.extent is FULL else torch.float64
            dtype = torch.float32 if n.rounds_to_float32 and n.extent is not FULL else wide
            is_number = tuple(self.kind.get(a) == HOST for a in arguments)
            function = _tensor_function(n.op, is_number, wide, self.batch.device)
            rounded = function if n.boolean else (lambda *values: function(*values).to(dtype))
            self._add(n.index, rounded, *(self._widened(a, n.extent) for a in arguments))

    def _reader(self, n: Node) -> Callable[[Sequence[WeightStep]], Tensor]:
        dtype = self.batch.compute_dtype

        def gather(weights: Sequence[WeightStep]) -> Tensor:
            if n.op == "state":
                tensors = [w.state[n.detail] for w in weights]
            else:
                tensors = [w.weight if n.op == "weight" else w.grad for w in weights]
            if n.extent is not FULL:
                return torch.cat([x.reshape(-1) for x in tensors])
            flat = [_flatten(x, w.weight) for x, w in zip(tensors, weights, strict=True)]
            return torch.cat(flat).to(dtype)

        return gather

    def _reduce(self, n: Node, argument: int) -> None:
        """Sum blocks of entries, rows of blocks, and weights of rows; in double from blocks on."""
        slot = argument
        if self.kind[slot] is FULL:
            slot = self._segment_sums(slot, "entries")
            if self.batch.lengths["blocks"] is not None:
                slot = self._segment_sums(slot, "blocks")
        if n.extent is SCALAR:
            slot = self._segment_sums(slot, "rows")
            self.totals.add(slot)
        dtype = torch.float32 if n.rounds_to_float32 else torch.float64
        self._add(n.index, (lambda x: x > 0) if n.boolean else (lambda x: x.to(dtype)), slot)

    def _segment_sums(self, argument: int, parts: str) -> int:
        lengths, in_double = self.batch.lengths[parts], parts != "entries"

        def run(x: Tensor) -> Tensor:
            x = x.to(torch.float64) if in_double or x.dtype is torch.bool else x
            sums = torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True)
            return sums.to(torch.float64)

        return self._shared_slot((argument, parts), run, argument)

    def _shared_slot(self, key: Any, function: Callable[..., Any], *arguments: int) -> int:
        """Return the slot of an intermediate vector, which the first use computes."""
        if key not in self.shared:
            self.shared[key] = self.n_slots
            self.n_slots += 1
            self._add(self.shared[key], function, *arguments)
        return self.shared[key]

    def _widened(self, slot: int, extent: Extent) -> int:
        """Return the slot of a value spread over a wider extent; numbers stay numbers."""
        kind, dtype = self.kind[slot], self.batch.compute_dtype
        if kind in (HOST, extent):
            return slot
        index = self.batch.index(kind, extent)
        if extent is FULL and not self.nodes[slot].boolean:
            return self._shared_slot(
                (slot, extent), lambda x: x.to(dtype).index_select(0, index), slot
            )
        return self._shared_slot((slot, extent), lambda x: x.index_select(0, index), slot)

    def _spread(self, slot: int, extent: Extent, boolean: bool = False) -> int:
        """Return the slot of a value, which may be a number, spread over an extent."""
        if self.kind[slot] != HOST:
            return self._widened(slot, extent)
        batch = self.batch
        lengths = {SCALAR: len(batch.sizes), ROW: sum(batch.rows), FULL: sum(batch.sizes)}
        number_dtype = batch.compute_dtype if extent is FULL else torch.float64
        size, dtype = (lengths[extent],), torch.bool if boolean else number_dtype
        return self._shared_slot(
            (slot, extent, dtype),
            lambda x: torch.full(size, x, dtype=dtype, device=batch.device),
            slot,
        )

    def run(self, weights: Sequence[WeightStep], host_values: dict[int, Any]) -> None:
        """Step the weights in place, from the numbers that the host knows."""
        values = {**host_values}
        for step in self.instructions:
            if step.reads_weights:
                values[step.slot] = step.function(weights)
            else:
                values[step.slot] = step.function(*[values[a] for a in step.arguments])
            for slot in step.freed:
                del values[slot]
        self._write_back(values, weights)

    def _write_back(self, values: dict[int, Any], weights: Sequence[WeightStep]) -> None:
        """Copy the parts of the output vectors to weights and states, after all are computed."""
        batch = self.batch
        lengths: dict[Extent, Any] = {SCALAR: 1, ROW: batch.rows, FULL: batch.sizes}
        targets, results = list[Tensor](), list[Tensor]()
        for name, slot in self.outputs.items():
            node = batch.graph.inputs[name]
            if slot == node.index:
                continue
            parts = torch.split(values[slot], lengths[node.extent])
            for part, step in zip(parts, weights, strict=True):
                target = step.weight if name == "weight" else step.state[name]
                targets.append(target)
                if node.extent is FULL:
                    results.append(_unflatten(part, step.weight))
                else:
                    results.append(part.view(target.shape))
        copy_tensors(targets, results)


def _form_of(op: str) -> Batched:
    form = OPERATIONS[op].batched
    assert isinstance(form, Batched)  # a graph has no other operations
    return form


def _number_function(op: str, rounds_to_float32: bool) -> Callable[..., Any]:
    """Return an operation on numbers of numpy in double."""
    function = _form_of(op).numbers
    if not rounds_to_float32:
        return function
    return lambda *values: np.float64(np.float32(function(*values)))


def _tensor_function(
    op: str, is_number: tuple[bool, ...], dtype: torch.dtype, device: torch.device
) -> Callable[..., Tensor]:
    """Return an operation on tensors.

    Args:
        op: its name.
        is_number: for each argument, whether it is a number.
        dtype: in which it is computed.
        device: of numbers that have to become tensors.
    """
    form = _form_of(op)
    numbers_fit = form.mixes_numbers or not any(is_number)
    if numbers_fit and form.mixes_dtypes:
        return form.tensors

    def with_tensors(*values: Any) -> Tensor:
        arguments = list(values)
        for i, value in enumerate(values):
            if is_number[i]:
                number_dtype = torch.bool if isinstance(value, bool | np.bool_) else dtype
                arguments[i] = torch.full((), value, dtype=number_dtype, device=device)
            elif not form.mixes_dtypes:
                arguments[i] = value.to(dtype)
        return form.tensors(*arguments)  # type: ignore[no-any-return]

    return with_tensors


def _in_stages(
    instructions: list[Instruction], totals: set[int], n_slots: int, process_group: Any
) -> list[Instruction]:
    """Reorder a program so that totals that can be known together take one all-reduce.

    Args:
        instructions: in any order that can run.
        totals: the slots of sums of which the processes have parts.
        n_slots: so far.
        process_group: sums them up.
    """
    stage: dict[int, float] = {}
    for step in instructions:
        step.stage = max((stage.get(a, 0) for a in step.arguments), default=0)
        stage[step.slot] = step.stage + (step.slot in totals)
    for number in sorted({step.stage for step in instructions if step.slot in totals}):
        slots = [s.slot for s in instructions if s.slot in totals and s.stage == number]
        for step in instructions:
            if step.arguments[:1] and step.arguments[0] in slots:
                step.function = _of_item(step.function, slots.index(step.arguments[0]))
                step.arguments = (n_slots,)
        all_reduce = Instruction(
            n_slots, lambda *xs: all_reduce_sums(xs, process_group), tuple(slots)
        )
        all_reduce.stage, n_slots = number + 0.5, n_slots + 1
        instructions.append(all_reduce)
    return sorted(instructions, key=lambda step: step.stage)


def _of_item(function: Callable[..., Any], index: int) -> Callable[..., Any]:
    return lambda items: function(items[index])


def _memory_order(weight: Tensor) -> list[int]:
    """Return the dimensions of a weight as they lie in memory, if dimension 0 is the outermost."""
    order = sorted(range(weight.ndim), key=weight.stride, reverse=True)
    return order if order[:1] == [0] else list(range(weight.ndim))


def _flatten(x: Tensor, weight: Tensor) -> Tensor:
    """Return the entries of `x` in the weight's memory order; no copy if `x` has the same order."""
    return x.permute(_memory_order(weight)).reshape(-1)


def _unflatten(flat: Tensor, weight: Tensor) -> Tensor:
    """Invert `_flatten`."""
    order = _memory_order(weight)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return flat.view([weight.shape[d] for d in order]).permute(inverse)
