"""The horizontal executor: it walks a graph by operations of torch, on all weights at once.

Scalars are one vector [weights], rows one vector [rows of all weights]. Entries are one vector,
into which weights and gradients are copied (`flat`, where launches decide: on a GPU), or a list of
tensors (on a CPU). What hyper-parameters alone decide is computed by numpy on the host, so that
nothing waits for a device; for each outcome of such decisions there is a program, without the
branch that is not taken.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import Scalar, working_dtype
from spherenorm.compile._backends import Work
from spherenorm.compile._graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile._shards import add_up

SCALAR, ROW, FULL = Extent
HOST = -1
"""In the place of an extent: of a number that is known before the device starts."""
FLAT = {"cuda"}
"""The devices on which entries are one vector."""
CHUNK = {"cpu": 2**22, "cuda": 2**25}
"""Entries that are stepped at once, which bounds temporaries: some ten tensors of so many."""
BLOCK = 2**13
"""Entries of a row that are summed at once; longer ones would round more, and keep a GPU waiting."""

_SAME = ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne")
_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _SAME},
    "rsub": lambda x, y: y - x, "div": np.divide, "addcmul": lambda x, y, z: x + y * z,
    "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "cast": np.float32,
    "lerp": lambda x, y, w: x + w * (y - x) if w < 0.5 else y - (y - x) * (1 - w),
}  # fmt: skip
"""Operations whose name in numpy is another one."""
_TORCH: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _SAME},
    "rsub": lambda x, y: y - x, "div": operator.truediv, "pow": operator.pow, "cast": lambda x: x,
}  # fmt: skip
"""Operations that take numbers beside tensors; the others are those of that name in torch."""
_TENSORS_ONLY = ("where", "lerp", "maximum", "minimum", "addcmul")
_IN_PLACE = {"add": (0, 1), "mul": (0, 1), "maximum": (0, 1), "minimum": (0, 1)}
"""The arguments whose memory a result may take; else it is the first one's."""


def _of_torch(op: str) -> Callable[..., Any]:
    return _TORCH.get(op) or getattr(torch, op)  # type: ignore[no-any-return]


class Horizontal:
    """Weights whose graphs have equal nodes, and their step.

    Args:
        graph: of any of them.
        literals: the numbers of each weight's graph, of shape (weights, literals).
        works: the weights; none of their tensors is held.
    """

    def __init__(
        self, graph: StepGraph, literals: np.ndarray[Any, Any], works: Sequence[Work]
    ) -> None:
        weights = [work.weight for work in works]
        self.graph, self.device, self.processes = graph, weights[0].device, works[0].processes
        self.flat = self.device.type in FLAT
        self.computed = working_dtype(weights[0].dtype)
        self.shapes = [w.shape for w in weights]
        self.rows = [shape[0] if len(shape) > 1 else 1 for shape in self.shapes]
        self.sizes = [shape.numel() for shape in self.shapes]
        cols = [n // rows if rows else 0 for n, rows in zip(self.sizes, self.rows, strict=True)]
        of_rows = np.repeat(np.arange(len(weights)), self.rows)
        of_entries = np.repeat(np.arange(len(of_rows)), np.repeat(cols, self.rows))
        self.lengths = {ROW: self._put(self.rows)}
        self.index = {(SCALAR, ROW): self._put(of_rows)}
        if self.flat:
            of_rows_cols = np.repeat(cols, self.rows)
            blocks = [max(-(-n // BLOCK), 1) for n in of_rows_cols]
            ends = [[BLOCK] * (b - 1) + [n - BLOCK * (b - 1)] for n, b in zip(of_rows_cols, blocks)]
            self.lengths[FULL] = self._put([*itertools.chain.from_iterable(ends)])
            self.blocks = self._put(blocks) if max(blocks, default=1) > 1 else None
            self.index[ROW, FULL] = self._put(of_entries)
            self.index[SCALAR, FULL] = self._put(of_rows[of_entries])
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
        decisions = tuple((i, bool(v)) for i, v in values.items() if isinstance(v, np.bool_))
        lasting = tuple(i for i, v in values.items() if isinstance(v, Tensor))
        if (decisions, lasting) not in self.programs:
            self.programs[decisions, lasting] = Program(self, values)
        known = {i: v if isinstance(v, Tensor) else v.item() for i, v in values.items()}
        self.programs[decisions, lasting].run(works, known)

    def _on_host(self, numbers: Sequence[Scalar]) -> dict[int, Any]:
        """All that hyper-parameters and equal literals decide, and numbers that are tensors."""
        given, values = [*numbers, *self.literals], dict[int, Any]()
        for n in self.graph.nodes:
            if n.op == "number":
                value = given[n.detail]
                if isinstance(value, Tensor) and not value.ndim and value.is_cpu:
                    value = float(value)
                elif isinstance(value, Tensor) and not value.ndim:
                    value = value.to(self.device, torch.float64).expand(len(self.shapes))
                values[n.index] = value if isinstance(value, Tensor) else np.float64(value)
            elif n.arguments and all(isinstance(values.get(a), np.generic) for a in n.arguments):
                function = _NUMPY.get(n.op) or getattr(np, n.op)
                with np.errstate(all="ignore"):
                    found = function(*(values[a] for a in n.arguments))
                values[n.index] = np.float64(np.float32(found)) if n.single else np.asarray(found)[()]
        return values


class Program:
    """The operations of a step, for one outcome of the decisions that are numbers.

    Args:
        group: the weights.
        host: the numbers that are known before the device starts, and those that lie on it.
    """

    def __init__(self, group: Horizontal, host: dict[int, Any]) -> None:
        self.group, self.nodes = group, group.graph.nodes
        self.count = len(self.nodes)
        self.kind: dict[int, Any] = {n.index: n.extent for n in self.nodes}
        self.kind |= {i: HOST for i, v in host.items() if not isinstance(v, Tensor)}
        self.steps: list[_Step] = []
        self.shared: dict[Any, int] = {}
        self.totals = set[int]()
        """The places of sums over whole weights, of which other processes have further parts."""
        self._taken: dict[int, int] = {}
        for n in self.nodes:  # a decision of numbers leaves one branch
            if n.op == "where" and self.kind[n.arguments[0]] == HOST and n.index not in host:
                chosen = n.arguments[1 if host[n.arguments[0]] else 2]
                self._taken[n.index] = self._taken.get(chosen, chosen)
        self.outputs = {k: self._taken.get(i, i) for k, i in group.graph.outputs.items()}
        self._emit_all(host)
        self.outputs = {name: self._output(name, i) for name, i in self.outputs.items()}
        if group.processes is not None:
            self._by_stage()
        self._free(host)

    def _arguments(self, n: Node) -> tuple[int, ...]:
        return tuple(self._taken.get(a, a) for a in n.arguments)

    def _emit_all(self, host: dict[int, Any]) -> None:
        alive, pending = set[int](), list(self.outputs.values())
        while pending:
            i = pending.pop()
            if i not in alive:
                alive.add(i)
                pending += self._arguments(self.nodes[i]) if i not in host else ()
        rows = (n for n in self.nodes if n.op == "sum" and n.extent is ROW and n.index in alive)
        self.summed_by_rows = {self._arguments(n)[0] for n in rows}
        for n in self.nodes:
            if n.index in alive and n.index not in host and n.index not in self._taken:
                self._emit(n)

    def _output(self, name: str, a: int) -> int:
        """The place of an output, with as many values as it has, in memory of its own."""
        old, kind, group = self.group.graph.inputs[name], self.kind[a], self.group
        if a == old.index:
            return a
        if kind == HOST:
            filled = lambda x: torch.full((len(group.shapes),), x, device=group.device)  # noqa: E731
            a = self._place((a, "filled"), filled, a)
            self.kind[a] = kind = SCALAR
        if old.extent is FULL and not group.flat:
            listed = self._listed(a)
            copied = kind is not FULL or self.nodes[a].op in INPUTS
            return self._place((a, "copied"), _copies(group.shapes), listed) if copied else listed
        return self._widened(a, old.extent)

    def _emit(self, n: Node) -> None:
        group, places = self.group, self._arguments(n)
        if n.op in ("weight", "grad", "state"):
            self.steps.append(_Step(n.index, self._read(n), reads=True))
        elif n.op in ("sum", "any"):
            self._reduce(n, places[0])
        elif n.extent is FULL and not group.flat:
            places = tuple(self._listed(a) for a in places)
            kinds = [self.kind.get(a) for a in places]
            self.steps.append(_Step(n.index, _entrywise(n.op, kinds, group.computed), places))
        else:
            dtype = torch.bool if n.boolean else self._dtype(n)
            lifted = [n.op in _TENSORS_ONLY and self.kind.get(a) == HOST for a in places]
            places = tuple(self._widened(a, n.extent) for a in places)
            self.steps.append(_Step(n.index, self._on_vectors(n.op, lifted, dtype), places))

    def _dtype(self, n: Node) -> torch.dtype:
        full = self.group.computed if n.extent is FULL else torch.float64
        return torch.float32 if n.single and n.extent is not FULL else full

    def _on_vectors(
        self, op: str, lifted: Sequence[bool], dtype: torch.dtype
    ) -> Callable[..., Tensor]:
        """An operation on vectors of one extent; `lifted` numbers become tensors on the device."""
        function, device = _of_torch(op), self.group.device
        kept = self.group.computed if dtype is torch.bool else dtype

        def run(*values: Any) -> Tensor:
            given = (
                torch.full((), x, dtype=torch.bool if isinstance(x, bool) else kept, device=device)
                if up
                else x
                for x, up in zip(values, lifted, strict=True)
            )
            return function(*given).to(dtype)  # type: ignore[no-any-return]

        return run

    def _read(self, n: Node) -> Callable[[Sequence[Work]], Any]:
        group, computed = self.group, self.group.computed

        def tensors(works: Sequence[Work]) -> list[Tensor]:
            if n.op == "state":
                return [work.state[n.detail] for work in works]
            return [work.weight if n.op == "weight" else work.grad for work in works]

        if n.extent is not FULL:
            return lambda works: torch.cat([x.reshape(-1) for x in tensors(works)])
        if group.flat:
            return lambda works: torch.cat(
                [_in_line(x, work.weight) for x, work in zip(tensors(works), works, strict=True)]
            ).to(computed)
        return lambda works: [x.to(computed) for x in tensors(works)]

    def _reduce(self, n: Node, source: int) -> None:
        """Add rows up from entries, and totals from rows."""
        group, dtype = self.group, torch.bool if n.boolean else self._dtype(n)
        end = (lambda x: x > 0) if n.boolean else (lambda x: x.to(dtype))
        place, kind = source, self.kind[source]
        if kind is FULL and (group.flat or source in self.summed_by_rows):
            place, kind = self._sum_of_rows(source), ROW
        if n.extent is SCALAR and kind is ROW:
            lengths = group.lengths[ROW]
            place = self._place(
                (place, "total"), lambda x: _segments(x.to(torch.float64), lengths), place
            )
        elif n.extent is SCALAR:
            place = self._place((place, "total"), _totals, place)
        self.totals |= {place} if n.extent is SCALAR else set()
        self.steps.append(_Step(n.index, end, (place,)))

    def _sum_of_rows(self, a: int) -> int:
        group = self.group
        if group.flat:
            place = self._place((a, "blocks"), lambda x: _segments(x, group.lengths[FULL]), a)
            blocks = group.blocks
            if blocks is None:
                return place
            return self._place((a, "rows"), lambda x: _segments(x, blocks), place)
        dims = [tuple(range(1, len(shape))) for shape in group.shapes]

        def run(xs: Sequence[Tensor]) -> Tensor:
            sums = [x.sum(d) if d else x.sum() for x, d in zip(xs, dims, strict=True)]
            return torch.cat([x.reshape(-1) for x in sums]).to(torch.float64)

        return self._place((a, "rows"), run, a)

    def _place(self, key: Any, function: Callable[..., Any], *places: int) -> int:
        """The place of a value that several operations share."""
        if key not in self.shared:
            self.shared[key], self.count = self.count, self.count + 1
            self.steps.append(_Step(self.shared[key], function, places))
        return self.shared[key]

    def _widened(self, a: int, extent: Extent) -> int:
        """The place of a value, one for each of a wider extent."""
        kind, cast = self.kind.get(a), self._cast(a)
        if kind in (HOST, extent):
            return a
        index = self.group.index[kind, extent]
        if extent is FULL:
            return self._place((a, extent), lambda x: cast(x).index_select(0, index), a)
        return self._place((a, extent), lambda x: x.index_select(0, index), a)

    def _cast(self, a: int) -> Callable[[Tensor], Tensor]:
        boolean = a < len(self.nodes) and self.nodes[a].boolean
        return (lambda x: x) if boolean else (lambda x: x.to(self.group.computed))

    def _listed(self, a: int) -> int:
        """The place of a value as a list, with one tensor for each weight."""
        kind, group, cast = self.kind[a], self.group, self._cast(a)
        if kind is SCALAR:
            return self._place((a, FULL), lambda x: list(cast(x).unbind()), a)
        if kind is not ROW:
            return a
        shapes = [(*shape[:1], *[1] * (len(shape) - 1)) for shape in group.shapes]

        def run(x: Tensor) -> list[Tensor]:
            parts = cast(x).split(group.rows)
            return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

        return self._place((a, FULL), run, a)

    def _by_stage(self) -> None:
        """Order the steps so that totals that can be known together take one all-reduce."""
        stage: dict[int, float] = {}
        for step in self.steps:
            step.stage = max((stage.get(a, 0) for a in step.places), default=0)
            stage[step.place] = step.stage + (step.place in self.totals)
        for number in {step.stage for step in self.steps if step.place in self.totals}:
            here = [s.place for s in self.steps if s.place in self.totals and s.stage == number]
            place, self.count = self.count, self.count + 1
            for step in self.steps:
                if step.places[:1] and step.places[0] in here:
                    step.function = _of_one(step.function, here.index(step.places[0]))
                    step.places = (place,)
            summed = _Step(place, lambda *xs: add_up(xs, self.group.processes), tuple(here))
            summed.stage = number + 0.5
            self.steps.append(summed)
        self.steps.sort(key=lambda step: step.stage)

    def _free(self, host: dict[int, Any]) -> None:
        """Find the last use of each value, whose memory may become the result's."""
        kept = {*self.outputs.values(), *host}
        last = {a: k for k, step in enumerate(self.steps) for a in step.places}
        inputs = {step.place for step in self.steps if step.reads}
        views = {place for key, place in self.shared.items() if key[1] is FULL}
        for k, step in enumerate(self.steps):
            step.freed = [a for a in {*step.places} if last[a] == k and a not in kept]
            if self.group.flat or step.place >= len(self.nodes):
                continue
            node = self.nodes[step.place]
            own = {a for a in step.freed if a not in inputs | views and self._is_list(a)}
            if node.extent is FULL and not node.boolean:
                self._in_place(step, node.op, own)

    def _is_list(self, a: int) -> bool:
        return self.kind.get(a) is FULL and not self.nodes[a].boolean

    def _in_place(self, step: _Step, op: str, own: set[int]) -> None:
        places = step.places
        tried = _IN_PLACE.get(op, (0,))
        k = next((k for k in tried if k < len(places) and places[k] in own), None)
        function = getattr(torch, f"_foreach_{op}_", None)
        numbers = [j for j, a in enumerate(places) if self.kind.get(a) == HOST]
        if k is None or function is None or places.count(places[k]) > 1:
            return
        if numbers not in ([], [1 - k]) or op in ("addcmul", "lerp") and numbers:
            return
        step.places = (places[k], *(a for j, a in enumerate(places) if j != k))
        step.function = lambda x, *rest: (function(x, *rest), x)[1]

    def run(self, works: Sequence[Work], values: dict[int, Any]) -> None:
        """Step the weights in place, from the numbers that the host knows."""
        for step in self.steps:
            given = [works] if step.reads else [values[a] for a in step.places]
            values[step.place] = step.function(*given)
            for a in step.freed:
                values.pop(a, None)
        self._write(works, values)

    def _write(self, works: Sequence[Work], values: dict[int, Any]) -> None:
        group, old, new = self.group, list[Tensor](), list[Tensor]()
        for name, i in self.outputs.items():
            node = group.graph.inputs[name]
            if i == node.index:
                continue
            tensors = [w.weight if name == "weight" else w.state[name] for w in works]
            found = values[i]
            if node.extent is not FULL:
                parts = found.split(1 if node.extent is SCALAR else group.rows)
                found = [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
            elif group.flat:
                parts = found.split(group.sizes)
                found = [_in_shape(p, w.weight) for p, w in zip(parts, works, strict=True)]
            old += tensors
            new += found
        torch._foreach_copy_(old, new)


class _Step:
    """One operation: its result's place, its arguments' places, and what is not needed behind it.

    `reads`: it takes the weights; `stage`: the totals that it waits for.
    """

    def __init__(
        self,
        place: int,
        function: Callable[..., Any],
        places: tuple[int, ...] = (),
        reads: bool = False,
    ) -> None:
        self.place, self.function, self.places, self.reads = place, function, places, reads
        self.freed: list[int] = []
        self.stage: float = 0


def _of_one(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    return lambda several: function(several[place])


def _entrywise(op: str, kinds: list[Any], computed: torch.dtype) -> Callable[..., Any]:
    """An operation on lists, and numbers beside them."""
    numbers = [k for k, kind in enumerate(kinds) if kind == HOST]
    foreach = getattr(torch, f"_foreach_{op}", None)
    if op in ("add", "mul") and numbers == [0]:
        return lambda x, y: foreach(y, x)  # type: ignore[misc]
    plain = not numbers or (numbers == [len(kinds) - 1] and op != "addcmul")
    if foreach is not None and plain:
        return foreach  # type: ignore[no-any-return]
    each = _of_torch(op)

    def lifted(value: Any) -> Any:
        dtype = torch.bool if isinstance(value, bool) else computed
        tensor = torch.full((), value, dtype=dtype) if op in _TENSORS_ONLY else value
        return itertools.repeat(tensor)

    def run(*values: Any) -> list[Tensor]:
        given = (v if isinstance(v, list | tuple) else lifted(v) for v in values)
        return list(map(each, *given))

    return run


def _copies(shapes: Sequence[torch.Size]) -> Callable[..., Any]:
    return lambda xs: [x.expand(shape).clone() for x, shape in zip(xs, shapes, strict=True)]


def _segments(x: Tensor, lengths: Tensor) -> Tensor:
    """The sums of consecutive parts of a vector, in double, in an order that is always the same."""
    x = x.to(torch.float64) if x.dtype is torch.bool else x
    return torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True).to(torch.float64)


def _totals(xs: Sequence[Tensor]) -> Tensor:
    return torch.stack([x.sum() for x in xs]).to(torch.float64)


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
