"""The passes of a step by torch's own operations, a block of rows at a time: what a CPU does without a compiler.

Run as it is written, a rule makes a new tensor of the weight's size at each operation, and most of its time goes into
fetching memory. Here each intermediate lives in one of a few buffers of `BLOCK` entries that stay in cache, a new state is
written where the old one lay, a scaled sum is one operation, and what a decision has made needless is left out.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile.schedule import REDUCTIONS, schedule

__all__ = ["BlockedStep"]

BLOCK = 524288
"""Entries that are taken at a time: enough to hide the cost of a call, few enough that all buffers stay in cache."""

# Scalars are numpy's doubles, in which 1 / 0 is inf as it is in a tensor.
SCALAR = {
    "neg": "-{0}", "abs": "abs({0})", "reciprocal": "1 / {0}", "sqrt": "np.sqrt({0})", "rsqrt": "1 / np.sqrt({0})",
    "square": "{0} * {0}", "sign": "np.float64({0} > 0) - ({0} < 0)", "exp": "np.exp({0})", "log": "np.log({0})", "sin": "np.sin({0})",
    "cos": "np.cos({0})", "tanh": "np.tanh({0})", "sinc": "np.sinc({0})", "not": "not {0}",
    "add": "{0} + {1}", "sub": "{0} - {1}", "rsub": "{1} - {0}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "max": "np.maximum({0}, {1})", "min": "np.minimum({0}, {1})", "pow": "{0} ** {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}", "ne": "{0} != {1}", "and": "{0} and {1}", "or": "{0} or {1}",
    "where": "{1} if {0} else {2}", "cast": "{0}", "addcmul": "{0} + {1} * {2}",
    "lerp": "{0} + {2} * ({1} - {0}) if {2} < 0.5 else {1} - ({1} - {0}) * (1 - {2})",
}  # fmt: skip
UNARY = {
    "neg",
    "abs",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "square",
    "sign",
    "exp",
    "log",
    "sin",
    "cos",
    "tanh",
    "sinc",
}
BINARY = {"add", "sub", "mul", "div", "pow", "lt", "le", "gt", "ge", "eq", "ne"}
TENSOR = {
    **{op: f"torch.{op}({{0}}, out={{out}})" for op in UNARY},
    **{op: f"torch.{op}({{0}}, {{1}}, out={{out}})" for op in BINARY},
    "not": "torch.logical_not({0})", "and": "torch.logical_and({0}, {1})", "or": "torch.logical_or({0}, {1})",
    "max": "torch.maximum({0}, {1}, out={out})", "min": "torch.minimum({0}, {1}, out={out})",
    "where": "torch.where({0}, {1}, {2}, out={out})", "sum": "{0}.sum(1, keepdim=True)",
    "addcmul": "torch.addcmul({0}, {1}, {2}, out={out})",
    # Not of a graph, but what several of its operations are at once.
    "add_scaled": "torch.add({0}, {1}, alpha={2}, out={out})",
    "addcmul_scaled": "torch.addcmul({0}, {1}, {2}, value={3}, out={out})",
    # torch does not round the product, which is the same unless that overflows.
    "add_product": "torch.add({0}, {1}, alpha={2}, out={out}) if -1 <= {2} <= 1 else torch.add({0}, {1} * {2}, out={out})",
    "sub_product": "torch.sub({0}, {1}, alpha={2}, out={out}) if -1 <= {2} <= 1 else torch.sub({0}, {1} * {2}, out={out})",
    "lerp": "torch.lerp({0}, {1}, {2}, out={out})",
}  # fmt: skip
TENSORS = {
    "max": 2,
    "min": 2,
    "where": 3,
    "and": 2,
    "or": 2,
    "lerp": 2,
    "addcmul": 3,
    "addcmul_scaled": 3,
}
"""The number of first arguments that must be tensors; one for every other operation."""
REDUCE = {"sum": "float({0}.sum())", "any": "bool({0}.any())", "all": "bool({0}.all())"}
START = {"sum": 0.0, "any": False, "all": True}
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "any": operator.or_,
    "all": operator.and_,
}


@dataclass(frozen=True)
class Call:
    """One operation on the values of a block.

    Attributes:
        op: of `TENSOR`.
        arguments: indices of values; numbers among them are scalars.
        result: index of the value it makes.
        into: where that goes: a buffer's number, the name of an output that is written in place, or None for a new tensor.
    """

    op: str
    arguments: tuple[int, ...]
    result: int
    into: int | str | None = None


@dataclass(frozen=True)
class Walk:
    """A pass, once the decisions before it are known.

    Attributes:
        flat: whether no value belongs to a row, so that blocks may be cut anywhere.
        buffers: how many it needs.
        function: what is done with a block: of the scalars, the block's inputs and row sums, and the buffers; returns the
            block's part of each tensor-wide reduction.
    """

    flat: bool
    buffers: int
    function: Callable[[Sequence[Any], Sequence[Tensor], Sequence[Tensor]], Sequence[Any]]


class BlockedStep:
    """The step of a graph whose first `numbers` arguments are hyper-parameters, for the shape and dtype of its trace."""

    def __init__(self, graph: StepGraph, numbers: int, dtype: torch.dtype) -> None:
        self.graph, self.plan, self.numbers, self.stored = graph, schedule(graph), numbers, dtype
        self.work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        self.names = [
            name for name, node in graph.inputs.items() if node.extent is not Extent.SCALAR
        ]
        """What a block is made of: these inputs, then the row sums that one pass leaves to the next."""
        self.counters = [
            (name, index) for name, index in graph.outputs.items() if name not in self.names
        ]
        self.literals = np.array(graph.literals)
        choices = [n for n in graph.nodes if n.op == "where" and n.extent is not Extent.SCALAR]
        decisions = sorted(
            {n.arguments[0] for n in choices if graph.nodes[n.arguments[0]].extent is Extent.SCALAR}
        )
        stages = range(len(self.plan.passes))
        self.decisions = [[c for c in decisions if self.plan.stage[c] <= p] for p in stages]
        self.scalars = [
            _function("scalars", "S, H, L, state", self._scalars(stage)) for stage in stages
        ]
        self._walks: dict[tuple[int, tuple[bool, ...]], Walk] = {}

    def __call__(
        self,
        weight: Tensor,
        grad: Tensor,
        state: Mapping[str, Tensor],
        numbers: np.ndarray[Any, Any],
    ) -> None:
        """Step `weight` and `state` in place. Rows of all of them lie one after another in memory, in the same order."""
        rows = weight.shape[0] if weight.ndim > 1 else 1
        given = {"weight": weight, "grad": grad, **state}
        whole = [_as_rows(given[name], rows) for name in self.names]
        whole += [whole[0].new_empty((rows, 1), dtype=self.work) for _ in self.plan.saved]
        scalars: list[Any] = [None] * len(self.graph.nodes)
        last = len(self.plan.passes) - 1
        with np.errstate(all="ignore"):
            for p, each in enumerate(self.plan.passes):
                self.scalars[p](scalars, numbers, self.literals, state)
                targets = each.targets if p < last else ()
                totals = [START[n.op] for n in targets]
                if weight.numel() and (
                    each.gate is None or bool(scalars[each.gate[0]]) is each.gate[1]
                ):
                    for parts in self._parts(self._walk(p, scalars), scalars, whole):
                        totals = [
                            COMBINE[n.op](total, part)
                            for n, total, part in zip(targets, totals, parts, strict=True)
                        ]
                for n, total in zip(targets, totals, strict=True):
                    scalars[n.index] = rounded(total, n) if n.op == "sum" else total
        for name, index in self.counters:
            state[name].fill_(scalars[index])

    def _parts(
        self, walk: Walk, scalars: Sequence[Any], whole: Sequence[Tensor]
    ) -> Iterator[Sequence[Any]]:
        """Take `walk` on one block after another."""
        buffers: list[Tensor] = []
        for block in _blocks(whole, walk.flat):
            if not buffers:  # the first block is the largest
                buffers = [torch.empty_like(block[0], dtype=self.work) for _ in range(walk.buffers)]
            elif len(block[0]) < len(buffers[0]):
                buffers = [each[: len(block[0])] for each in buffers]
            yield walk.function(scalars, block, buffers)

    def _walk(self, p: int, scalars: Sequence[Any]) -> Walk:
        """The walk of pass `p`, planned when its decisions first fall so."""
        fallen = tuple([bool(scalars[c]) for c in self.decisions[p]])
        if (p, fallen) not in self._walks:
            self._walks[p, fallen] = _Planner(
                self, p, dict(zip(self.decisions[p], fallen, strict=True))
            ).walk()
        return self._walks[p, fallen]

    def _scalars(self, stage: int) -> Iterator[str]:
        """What is known once `stage` passes are over."""
        for node in self.graph.nodes:
            if node.index not in self.plan.scalars or self.plan.stage[node.index] != stage:
                continue
            if node.op == "number":
                value = (
                    f"H[{node.detail}]"
                    if node.detail < self.numbers
                    else f"L[{node.detail - self.numbers}]"
                )
            elif node.op == "state":
                value = f"np.float64(state[{node.detail!r}].item())"
            else:
                value = scalar_expression(node)
            yield f"S[{node.index}] = {value}"


def scalar_expression(node: Node) -> str:
    """A scalar by those it is computed from."""
    value = SCALAR[node.op].format(*(f"S[{a}]" for a in node.arguments))
    return f"np.float64(np.float32({value}))" if node.single else value


def rounded(total: float, node: Node) -> np.float64:
    """A sum as the rule's own code has it, which may be infinite in float32 only."""
    value: np.float64 = np.float64(np.float32(total) if node.single else total)
    return value


def _function(name: str, arguments: str, lines: Iterable[str]) -> Callable[..., Any]:
    source = "\n    ".join([f"def {name}({arguments}):", *lines, "pass"])
    made: dict[str, Any] = {"np": np, "torch": torch, "single": _single}
    exec(_compiled(source), made)
    function: Callable[..., Any] = made[name]
    return function


def _single(value: float) -> float:
    """`value` as a float32 has it, infinite where torch would refuse to convert it."""
    return float(np.float32(value))


@functools.cache
def _compiled(source: str) -> CodeType:
    return compile(source, "<blocked step>", "exec")


def _as_rows(x: Tensor, rows: int) -> Tensor:
    """(rows, entries of each) in the order of memory, sharing it."""
    if not x.is_contiguous():
        x = x.permute(0, 2, 3, 1)  # channels_last
    return x.view(rows, x.numel() // max(rows, 1))


def _blocks(whole: Sequence[Tensor], flat: bool) -> Iterable[Sequence[Tensor]]:
    """The blocks of `whole`, the first of which is the weight; cut between rows unless `flat`."""
    rows, cols = whole[0].shape
    size = max(1, BLOCK // cols)
    if (size >= rows and not flat) or rows * cols <= BLOCK:
        return [whole]
    if flat:
        # What has one value per row has no part in a flat pass.
        whole, size = (
            [
                x.view(-1) if x.shape == whole[0].shape else x.new_empty(rows * cols, device="meta")
                for x in whole
            ],
            BLOCK,
        )
    return zip(*(torch.split(x, size) for x in whole), strict=True)


class _Planner:
    """Makes the `Walk` of pass `p`, given how the decisions before it have fallen."""

    def __init__(self, step: BlockedStep, p: int, decisions: Mapping[int, bool]) -> None:
        self.step, self.graph, self.plan, self.decisions = (
            step,
            step.graph,
            step.plan.passes[p],
            decisions,
        )
        self.last = p == len(step.plan.passes) - 1
        self.nodes = list(self.graph.nodes)
        self.same = list(range(len(self.nodes)))
        """What each value is called after simplification."""
        for index in self.plan.nodes:
            self._simplify(index)
        sums = [n for i in self.plan.nodes if (n := self.nodes[i]).op in REDUCTIONS]
        sums += () if self.last else self.plan.targets
        if any(
            self.nodes[self.same[a]].extent is not self.graph.nodes[a].extent
            for n in sums
            for a in self.graph.nodes[n.index].arguments
        ):
            # The sum of what is now one number, or one per row, would need to know of how many: do without simplification.
            self.nodes, self.same = list(self.graph.nodes), list(range(len(self.nodes)))

        self.sums, self.saved, self.outputs = [], [], {}
        if self.last:
            wanted = {
                name: self.same[index]
                for name, index in self.graph.outputs.items()
                if name in step.names
            }
            self.outputs = {
                name: index
                for name, index in wanted.items()
                if index != self.graph.inputs[name].index
            }
        else:
            self.sums = [(n.op, self.same[n.arguments[0]]) for n in self.plan.targets]
            self.saved = [
                i for i in step.plan.saved if i in self.plan.nodes and i not in self.plan.read_back
            ]

    def walk(self) -> Walk:
        """The walk, ready to be taken."""
        kept = {*self.outputs.values(), *(i for _, i in self.sums), *self.saved}
        needed = self._needed(kept)
        calls = self._fused([i for i in needed if i not in self.plan.read_back], kept)
        # A sum over all rows goes on from the sums over each.
        by_row = {call.arguments[0]: call.result for call in calls if call.op == "sum"}
        self.sums = [
            (op, by_row.get(index, index) if op == "sum" else index) for op, index in self.sums
        ]
        kept = {*self.outputs.values(), *(i for _, i in self.sums), *self.saved}
        loads, calls, buffers = self._placed(needed, calls, kept)
        lines = [
            *self._inputs(needed, loads),
            *map(self._line, calls),
            *self._results({(call.into, call.result) for call in calls}),
        ]
        flat = all(
            n.extent is not Extent.ROW
            for n in (
                *(self.nodes[i] for i in needed),
                *(self.graph.inputs[o] for o in self.outputs),
            )
        )
        return Walk(flat, buffers, _function("walk", "S, block, buffers", lines))

    def _inputs(
        self, needed: Iterable[int], loads: Mapping[int, tuple[str, int | None]]
    ) -> Iterator[str]:
        for i in needed:
            if self._is_scalar(i):  # the decisions have made it one
                yield f"S[{i}] = {scalar_expression(self.nodes[i])}"
            elif i in self.plan.read_back:
                yield f"v{i} = {self._sums_place(i)}"
        for i, (name, buffer) in loads.items():
            # What another tensor takes over is copied: its place may be written to before that is.
            place = self._place(name) + (".clone()" if i in self.outputs.values() else "")
            yield (
                f"v{i} = {place}" if buffer is None else f"v{i} = buffers[{buffer}].copy_({place})"
            )

    def _line(self, call: Call) -> str:
        arguments = [self._scalar(a) if self._is_scalar(a) else f"v{a}" for a in call.arguments]
        for k, a in enumerate(call.arguments[: TENSORS.get(call.op, 1)]):
            if self._is_scalar(a):
                kind = "torch.bool" if self.nodes[a].boolean else self.step.work
                arguments[k] = f"torch.scalar_tensor({self._scalar(a)}, dtype={kind}, device='cpu')"
        return f"v{call.result} = " + TENSOR[call.op].format(*arguments, out=self._place(call.into))

    def _results(self, written: set[tuple[Any, int]]) -> Iterator[str]:
        for i in self.saved:
            yield f"{self._sums_place(i)}.copy_(v{i})"
        for name, i in self.outputs.items():
            if (name, i) not in written:
                yield f"{self._place(name)}." + (
                    f"fill_({self._scalar(i)})" if self._is_scalar(i) else f"copy_(v{i})"
                )
        yield f"return [{', '.join(REDUCE[op].format(f'v{i}') for op, i in self.sums)}]"

    def _place(self, into: int | str | None) -> str:
        return (
            f"block[{self.step.names.index(into)}]"
            if isinstance(into, str)
            else "None"
            if into is None
            else f"buffers[{into}]"
        )

    def _sums_place(self, index: int) -> str:
        return f"block[{len(self.step.names) + self.step.plan.saved[index]}]"

    def _scalar(self, index: int) -> str:
        """A scalar as an argument of an operation on tensors."""
        narrow = self.step.work is torch.float32 and not self.nodes[index].boolean
        return f"single(S[{index}])" if narrow else f"S[{index}]"

    def _is_scalar(self, index: int) -> bool:
        return self.nodes[index].extent is Extent.SCALAR

    def _simplify(self, index: int) -> None:
        """Leave out the side of a choice that was not taken."""
        node = self.nodes[index]
        arguments = tuple(self.same[a] for a in node.arguments)
        if node.op in INPUTS or index in self.plan.read_back:
            return
        if node.op == "where" and arguments[0] in self.decisions:
            self.same[index] = arguments[1 if self.decisions[arguments[0]] else 2]
            return
        extent = node.extent if node.op == "sum" else max(self.nodes[a].extent for a in arguments)
        self.nodes[index] = replace(node, arguments=arguments, extent=extent)

    def _needed(self, roots: Iterable[int]) -> list[int]:
        """The values of this pass that `roots` ask for, in order."""
        found: set[int] = set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            if index in found or index not in self.plan.nodes:
                continue
            found.add(index)
            if index not in self.plan.read_back:
                pending.extend(self.nodes[index].arguments)
        return sorted(found)

    def _fused(self, order: Sequence[int], kept: set[int]) -> list[Call]:
        """Calls that make `order`; a product that only one sum uses becomes part of it."""
        uses = Counter(a for i in order for a in self.nodes[i].arguments)
        calls: dict[int, Call] = {}

        def taken(index: int, extent: Extent) -> tuple[int, int] | None:
            """(x, s) of a product s x with a number s that only one call uses, which takes it over."""
            call = calls.get(index)
            if call is None or call.op != "mul" or uses[index] != 1 or index in kept:
                return None
            x, scale = call.arguments
            if self.nodes[index].extent is not extent or not self._is_scalar(scale):
                return None
            del calls[index]
            return x, scale

        for index in order:
            node = self.nodes[index]
            if node.op in INPUTS or node.extent is Extent.SCALAR:
                continue
            op, arguments = self._in_order(node)
            if op in ("add", "sub") and not self._is_scalar(arguments[0]):
                product = taken(arguments[1], node.extent)
                if (
                    product is None
                    and op == "add"
                    and (product := taken(arguments[0], node.extent))
                ):
                    arguments = arguments[::-1]
                if product is not None:
                    op, arguments = f"{op}_product", (arguments[0], *product)
            elif op == "addcmul" and self._is_scalar(arguments[2]):
                op = "add_scaled"
            elif op == "addcmul":
                x, y, z = arguments
                if (product := taken(y, node.extent)) is not None:
                    op, arguments = "addcmul_scaled", (x, product[0], z, product[1])
            calls[index] = Call(op, arguments, index)
        # Each sum is taken at once, while its terms are in cache and before their buffer is needed again.
        place = {index: k for k, index in enumerate(calls)}
        return sorted(
            calls.values(),
            key=lambda call: (
                place.get(call.arguments[0], -1) + 0.5 if call.op == "sum" else place[call.result]
            ),
        )

    def _in_order(self, node: Node) -> tuple[str, tuple[int, ...]]:
        """An operation with numbers after tensors, where it may have them so."""
        op, arguments = node.op, node.arguments
        if op == "rsub" or (op in ("add", "mul") and self._is_scalar(arguments[0])):
            return op.replace("rsub", "sub"), arguments[::-1]
        if op == "addcmul" and self._is_scalar(arguments[1]):
            return op, (arguments[0], arguments[2], arguments[1])
        return op, arguments

    def _placed(
        self, needed: Sequence[int], calls: Sequence[Call], kept: set[int]
    ) -> tuple[dict[int, tuple[str, int | None]], list[Call], int]:
        """Where each value goes: over a state's old value once nobody reads that any more, or into a buffer that is free.

        Returns the inputs as {value: (name, buffer that it is converted in, if it is)}, the calls, and how many buffers.
        """
        last_read = {a: k for k, call in enumerate(calls) for a in call.arguments} | dict.fromkeys(
            kept, len(calls)
        )
        held: dict[int, int] = {}
        free: list[int] = []
        count = 0

        def take(index: int) -> int:
            nonlocal count
            if not free:
                free.append(count)
                count += 1
            held[index] = free.pop()
            return held[index]

        converted = {"weight", "grad"} if self.step.stored is not self.step.work else set()
        inputs = [
            (name, node.index) for name, node in self.graph.inputs.items() if node.index in needed
        ]
        loads = {
            index: (name, take(index) if name in converted else None) for name, index in inputs
        }
        placed = []
        for k, call in enumerate(calls):
            free += [held.pop(a) for a in set(call.arguments) if a in held and last_read[a] == k]
            node = self.nodes[call.result]
            into: int | str | None = None
            if node.extent is Extent.FULL and not node.boolean:
                names = [
                    name
                    for name, index in self.outputs.items()
                    if index == call.result and name not in converted
                ]
                over = [
                    name for name in names if last_read.get(self.graph.inputs[name].index, -1) <= k
                ]
                into = over[0] if over else take(call.result)
            placed.append(replace(call, into=into))
        return loads, placed, count
