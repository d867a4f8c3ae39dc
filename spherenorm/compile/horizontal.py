"""The horizontal executor: it walks a graph by operations of torch, on all weights at once.

Scalars are one vector [weights], rows one vector [rows of all weights], entries one vector [entries
of all weights], into which weights, gradients and states are copied. So the launches of a step do
not depend on the number of weights. What hyper-parameters alone decide is computed on the host, and
nothing waits for the device; for each outcome of such decisions there is a program.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.backends import Work
from spherenorm.compile.graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile.shards import add_up
from spherenorm.numerics import Scalar, compute_dtype, without_autocast
from spherenorm.torch_internals import copy_tensors

SCALAR, ROW, FULL = Extent
HOST = -1
"""In the place of an extent: of a number that is known before the device starts."""
CHUNK = 2**25
"""Entries that are stepped at once, which bounds temporaries: some ten vectors of so many."""
BLOCK = 2**13
"""Entries of a row that are summed at once; more would round more, and occupy a GPU too little."""

_SAME = {name: getattr(operator, name) for name in ("add", "sub", "mul", "neg")}
_SAME |= {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_SAME |= {"rsub": lambda x, y: y - x, "logical_and": operator.and_, "logical_or": operator.or_}
_NUMPY: dict[str, Callable[..., Any]] = {
    **_SAME,
    "div": np.divide, "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "cast": np.float32,
    "addcmul": lambda x, y, z: x + y * z,
    "lerp": lambda x, y, w: x + w * (y - x) if w < 0.5 else y - (y - x) * (1 - w),
    "where": lambda condition, x, y: x if condition else y,
}  # fmt: skip
"""Operations whose name in numpy is another one."""
_TORCH: dict[str, Callable[..., Any]] = {
    **_SAME, "div": operator.truediv, "pow": operator.pow, "cast": lambda x: x
}  # fmt: skip
"""Operations that take numbers beside tensors; the others are those of that name in torch."""
_TENSORS_ONLY = ("where", "lerp", "maximum", "minimum", "addcmul")


class Horizontal:
    """Weights whose graphs have equal nodes, and their step.

    Args:
        graph: of any of them.
        literals: the numbers of each weight's graph, of shape (weights, literals).
        works: the weights; none of their tensors is held.
    """

    name = "horizontal"

    def __init__(
        self, graph: StepGraph, literals: np.ndarray[Any, Any], works: Sequence[Work]
    ) -> None:
        weights = [work.weight for work in works]
        self.graph, self.device, self.processes = graph, weights[0].device, works[0].processes
        self.computed = compute_dtype(weights[0].dtype)
        self.sizes = [w.numel() for w in weights]
        self.rows = [w.shape[0] if w.ndim > 1 else 1 for w in weights]
        cols = [n // rows if rows else 0 for n, rows in zip(self.sizes, self.rows, strict=True)]
        cols_of_rows = np.repeat(cols, self.rows)
        of_rows = np.repeat(np.arange(len(weights)), self.rows)
        of_entries = np.repeat(np.arange(len(of_rows)), cols_of_rows)
        blocks = np.maximum(-(-cols_of_rows // BLOCK), 1)
        both = zip(cols_of_rows, blocks, strict=True)
        sizes = [[BLOCK] * (b - 1) + [n - BLOCK * (b - 1)] for n, b in both]
        entries = np.array([*itertools.chain.from_iterable(sizes)], dtype=np.int64)
        self.lengths = {
            "entries": self._put(entries),
            "blocks": self._put(blocks) if (blocks > 1).any() else None,
            "rows": self._put(self.rows),
        }
        """Of the parts of a vector that are added up: entries of a block, blocks of a row, ..."""
        self.index = {
            (SCALAR, ROW): self._put(of_rows),
            (ROW, FULL): self._put(of_entries),
            (SCALAR, FULL): self._put(of_rows[of_entries]),
        }
        equal = (literals == literals[:1]).all(0)
        columns = zip(literals.T, equal, strict=True)
        self.literals = [float(x[0]) if one else self._put(x) for x, one in columns]
        self.programs: dict[Any, Program] = {}
        """By the outcome of the decisions that are numbers."""

    def _put(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def run(self, works: Sequence[Work], numbers: Sequence[Scalar]) -> None:
        """Step the weights in place.

        Args:
            works: the weights as they are now.
            numbers: the rule's. A tensor on a GPU is not read by the host.
        """
        values = self._on_host(numbers)
        outcome = tuple(
            (i, None if isinstance(v, Tensor) else bool(v))
            for i, v in values.items()
            if isinstance(v, Tensor | np.bool_)
        )
        if outcome not in self.programs:
            self.programs[outcome] = Program(self, values)
        with without_autocast(self.device):
            self.programs[outcome].run(works, values)

    def _on_host(self, numbers: Sequence[Scalar]) -> dict[int, Any]:
        """All that hyper-parameters and equal literals decide, and numbers that are tensors."""
        given, values = [*numbers, *self.literals], dict[int, Any]()
        for n in self.graph.nodes:
            if n.op == "number":
                value = given[n.detail]
                if isinstance(value, Tensor) and not value.ndim and not value.is_cpu:
                    value = value.to(self.device, torch.float64).expand(len(self.sizes))
                on_device = isinstance(value, Tensor) and value.ndim
                values[n.index] = value if on_device else np.float64(float(value))
            elif n.arguments and all(isinstance(values.get(a), np.generic) for a in n.arguments):
                with np.errstate(all="ignore"):
                    found = _of_numbers(n.op, n.single)(*(values[a] for a in n.arguments))
                values[n.index] = found
        return values


class Program:
    """The operations of a step, for one outcome of the decisions that are numbers.

    Args:
        group: the weights.
        host: the numbers that are known before the device starts, and those that lie on it.
    """

    def __init__(self, group: Horizontal, host: dict[int, Any]) -> None:
        self.group, self.nodes, self.host = group, group.graph.nodes, host
        self.count = len(self.nodes)
        self.kind: dict[int, Any] = {n.index: n.extent for n in self.nodes}
        self.kind |= {i: HOST for i, v in host.items() if not isinstance(v, Tensor)}
        self.steps: list[_Step] = []
        self.shared: dict[Any, int] = {}
        """The places of values that several operations ask for."""
        self.totals = set[int]()
        """The places of sums over whole weights, of which other processes have further parts."""
        self.taken: dict[int, int] = {}
        """The branch that a decision of numbers has left, in the place of the choice."""
        self.chosen: dict[int, int] = {}
        """The same, where the branch has fewer values than the choice, too."""
        for n in self.nodes:
            if self._is_settled(n):
                a = self._place_of(n.arguments[1 if host[n.arguments[0]] else 2])
                self.chosen[n.index] = a
                if self.kind[a] is n.extent:
                    self.taken[n.index] = a
        alive, pending = set[int](), [self._place_of(i) for i in group.graph.outputs.values()]
        while pending:
            i = pending.pop()
            if i not in alive:
                alive.add(i)
                asked = [self.chosen[i]] if i in self.chosen else self.nodes[i].arguments
                pending += map(self._place_of, asked if i not in host else ())
        for n in self.nodes:
            if n.index in alive and n.index not in host:
                self._emit(n)
        self.outputs = {
            name: self._spread(self._place_of(i), group.graph.inputs[name].extent)
            for name, i in group.graph.outputs.items()
        }
        if group.processes is not None:
            self.steps = _in_stages(self.steps, self.totals, self.count, group.processes)
        last = {a: step for step in self.steps for a in step.places}
        for a, step in last.items():
            step.freed += [a] if a not in host and a not in self.outputs.values() else []

    def _is_settled(self, n: Node) -> bool:
        decided = n.op == "where" and self.kind[n.arguments[0]] == HOST
        return decided and n.index not in self.host

    def _place_of(self, index: int) -> int:
        return self.taken.get(index, index)

    def _emit(self, n: Node) -> None:
        places = tuple(map(self._place_of, n.arguments))
        if n.op in INPUTS:
            self.steps.append(_Step(n.index, self._read(n), (), reads=True))
        elif n.op in ("sum", "any"):
            self._reduce(n, places[0])
        elif n.index in self.chosen:
            spread = self._spread(self.chosen[n.index], n.extent, n.boolean)
            self.steps.append(_Step(n.index, lambda x: x, (spread,)))
        else:
            wide = self.group.computed if n.extent is FULL else torch.float64
            dtype = torch.float32 if n.single and n.extent is not FULL else wide
            numbers = tuple(self.kind.get(a) == HOST for a in places)
            function = _of_tensors(n.op, numbers, wide, self.group.device)
            rounded = function if n.boolean else (lambda *values: function(*values).to(dtype))
            places = tuple(self._widened(a, n.extent) for a in places)
            self.steps.append(_Step(n.index, rounded, places))

    def _read(self, n: Node) -> Callable[[Sequence[Work]], Tensor]:
        computed = self.group.computed

        def read(works: Sequence[Work]) -> Tensor:
            tensors = [
                w.state[n.detail] if n.op == "state" else w.weight if n.op == "weight" else w.grad
                for w in works
            ]
            if n.extent is not FULL:
                return torch.cat([x.reshape(-1) for x in tensors])
            lines = [_in_line(x, w.weight) for x, w in zip(tensors, works, strict=True)]
            return torch.cat(lines).to(computed)

        return read

    def _reduce(self, n: Node, a: int) -> None:
        """Add blocks up from entries, rows from blocks, and totals from rows; in double from there
        on."""
        if self.kind[a] is FULL:
            a = self._summed(a, "entries")
            a = a if self.group.lengths["blocks"] is None else self._summed(a, "blocks")
        if n.extent is SCALAR:
            a = self._summed(a, "rows")
            self.totals.add(a)
        dtype = torch.float32 if n.single else torch.float64
        end = (lambda x: x > 0) if n.boolean else (lambda x: x.to(dtype))
        self.steps.append(_Step(n.index, end, (a,)))

    def _summed(self, a: int, of: str) -> int:
        lengths, wide = self.group.lengths[of], of != "entries"

        def run(x: Tensor) -> Tensor:
            x = x.to(torch.float64) if wide or x.dtype is torch.bool else x
            sums = torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True)
            return sums.to(torch.float64)

        return self._shared((a, of), run, a)

    def _shared(self, key: Any, function: Callable[..., Any], *places: int) -> int:
        """The place of a value that is computed when it is asked for first."""
        if key not in self.shared:
            self.shared[key], self.count = self.count, self.count + 1
            self.steps.append(_Step(self.shared[key], function, places))
        return self.shared[key]

    def _widened(self, a: int, extent: Extent) -> int:
        """The place of a value, one for each of a wider extent."""
        kind, computed = self.kind[a], self.group.computed
        if kind in (HOST, extent):
            return a
        index, number = self.group.index[kind, extent], not self.nodes[a].boolean
        if extent is FULL and number:
            return self._shared((a, extent), lambda x: x.to(computed).index_select(0, index), a)
        return self._shared((a, extent), lambda x: x.index_select(0, index), a)

    def _spread(self, a: int, extent: Extent, boolean: bool = False) -> int:
        """The place of a value that may be a number, one for each of an extent."""
        if self.kind[a] != HOST:
            return self._widened(a, extent)
        group, wide = self.group, self.group.computed if extent is FULL else torch.float64
        sizes = {SCALAR: len(group.sizes), ROW: sum(group.rows), FULL: sum(group.sizes)}
        size, dtype = (sizes[extent],), torch.bool if boolean else wide
        return self._shared(
            (a, extent, dtype),
            lambda x: torch.full(size, x, dtype=dtype, device=group.device),
            a,
        )

    def run(self, works: Sequence[Work], host: dict[int, Any]) -> None:
        """Step the weights in place, from the numbers that the host knows."""
        values = {**host}
        for step in self.steps:
            given = [works] if step.reads else [values[a] for a in step.places]
            values[step.place] = step.function(*given)
            for a in step.freed:
                del values[a]
        _write(self.group, self.outputs, values, works)


def _write(
    group: Horizontal, outputs: dict[str, int], values: dict[int, Any], works: Sequence[Work]
) -> None:
    """Give each weight and state its part of the vectors, all of which are there by now."""
    old, new = list[Tensor](), list[Tensor]()
    for name, i in outputs.items():
        node = group.graph.inputs[name]
        if i == node.index:
            continue
        tensors = [w.weight if name == "weight" else w.state[name] for w in works]
        by_extent: dict[Extent, Any] = {SCALAR: 1, ROW: group.rows, FULL: group.sizes}
        parts = zip(torch.split(values[i], by_extent[node.extent]), tensors, works, strict=True)
        full = node.extent is FULL
        old += tensors
        new += [_in_shape(x, w.weight) if full else x.view(y.shape) for x, y, w in parts]
    copy_tensors(old, new)


class _Step:
    """One operation: its result's place, its arguments' places, and what is not needed behind it.

    `reads`: it takes the weights; `stage`: the totals that it waits for.
    """

    def __init__(
        self, place: int, function: Callable[..., Any], places: tuple[int, ...], reads: bool = False
    ) -> None:
        self.place, self.function, self.places, self.reads = place, function, places, reads
        self.freed: list[int] = []
        self.stage: float = 0


def _of_numbers(op: str, single: bool = False) -> Callable[..., Any]:
    """An operation on numbers of numpy in double; `single`: its result is rounded to float32."""
    function = _NUMPY.get(op) or getattr(np, op)
    return (lambda *values: np.float64(np.float32(function(*values)))) if single else function


def _of_tensors(
    op: str, numbers: tuple[bool, ...], dtype: torch.dtype, device: torch.device
) -> Callable[..., Tensor]:
    """An operation on tensors.

    Args:
        op: its name.
        numbers: for each argument, whether it is a number.
        dtype: that it is computed in.
        device: of numbers that have to become tensors.
    """
    function = _TORCH.get(op) or getattr(torch, op)
    if op not in _TENSORS_ONLY or not (op == "lerp" or any(numbers)):
        return function

    def lifted(*values: Any) -> Tensor:
        given = list(values)
        for i, number in enumerate(numbers):
            if number:
                kind = torch.bool if isinstance(given[i], bool | np.bool_) else dtype
                given[i] = torch.full((), given[i], dtype=kind, device=device)
            elif op == "lerp":  # which takes one dtype
                given[i] = given[i].to(dtype)
        return function(*given)  # type: ignore[no-any-return]

    return lifted


def _in_stages(steps: list[_Step], totals: set[int], count: int, processes: Any) -> list[_Step]:
    """The steps in another order: totals that can be known together take one all-reduce.

    Args:
        steps: in any order that can run.
        totals: the places of sums of which the processes have parts.
        count: of places so far.
        processes: that add them up.
    """
    stage: dict[int, float] = {}
    for step in steps:
        step.stage = max((stage.get(a, 0) for a in step.places), default=0)
        stage[step.place] = step.stage + (step.place in totals)
    for number in sorted({step.stage for step in steps if step.place in totals}):
        here = [step.place for step in steps if step.place in totals and step.stage == number]
        for step in steps:
            if step.places[:1] and step.places[0] in here:
                step.function = _of_one(step.function, here.index(step.places[0]))
                step.places = (count,)
        summed = _Step(count, lambda *xs: add_up(xs, processes), tuple(here))
        summed.stage, count = number + 0.5, count + 1
        steps.append(summed)
    return sorted(steps, key=lambda step: step.stage)


def _of_one(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    return lambda several: function(several[place])


def _order(weight: Tensor) -> list[int]:
    """The dimensions of a weight as they lie in memory, if dimension 0 is the outermost."""
    order = sorted(range(weight.ndim), key=weight.stride, reverse=True)
    return order if order[:1] == [0] else list(range(weight.ndim))


def _in_line(x: Tensor, weight: Tensor) -> Tensor:
    """The entries of `x` in the order in which the weight's lie: no copy, if its own lie so."""
    return x.permute(_order(weight)).reshape(-1)


def _in_shape(line: Tensor, weight: Tensor) -> Tensor:
    """The inverse of `_in_line`."""
    order = _order(weight)
    back = sorted(range(len(order)), key=order.__getitem__)
    return line.view([weight.shape[d] for d in order]).permute(back)
