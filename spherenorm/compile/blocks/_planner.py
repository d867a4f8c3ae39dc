"""One pass over a block, once the decisions before it are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spherenorm.compile._graph import Extent, Node, StepGraph
from spherenorm.compile.blocks._calls import fuse, place
from spherenorm.compile.blocks._printer import Printer, make_function
from spherenorm.compile.blocks._values import Facts, Values

__all__ = ["PlannedPass", "plan_pass"]


@dataclass(frozen=True)
class PlannedPass:
    """A pass as a function of a block.

    Attributes:
        flat: true if no value belongs to a row, so that blocks may be cut anywhere.
        buffers: the number of its buffers.
        function: of the scalars, the block's inputs and row sums, and the buffers; returns the
            block's part of each tensor-wide reduction.
    """

    flat: bool
    buffers: int
    function: Callable[[Sequence[Any], Sequence[Tensor], Sequence[Tensor]], Sequence[Any]]


def plan_pass(step: Facts, p: int, decisions: Mapping[int, bool]) -> PlannedPass:
    """Pass `p` of a step, given how the decisions before it have fallen."""
    graph, plan = step.graph, step.plan.passes[p]
    values = Values(graph, plan, decisions)
    sums = [(n.op, values.same[n.arguments[0]]) for _, n in plan.reductions]
    saved = [i for i in step.plan.saved if i in plan.level and i not in plan.read_back]
    saved = saved if plan.reductions else []
    outputs = {} if plan.reductions else _outputs(graph, values, step.names)
    needed = values.needed({*outputs.values(), *(i for _, i in sums), *saved})
    order = [i for i in needed if i not in plan.read_back]
    calls = fuse(values, order, {*outputs.values(), *(i for _, i in sums), *saved})
    # A sum over all rows goes on from the sums over each.
    by_row = {call.arguments[0]: call.result for call in calls if call.op == "sum"}
    sums = [(op, by_row.get(index, index) if op == "sum" else index) for op, index in sums]
    kept = {*outputs.values(), *(i for _, i in sums), *saved}
    converted = {"weight", "grad"} if step.stored is not step.work else set()
    loads, calls, buffers = place(values, needed, calls, outputs, kept, converted)
    lines = Printer(step, values, outputs, sums, saved).lines(needed, loads, calls)
    flat = _is_flat([*(values.nodes[i] for i in needed), *(graph.inputs[o] for o in outputs)])
    return PlannedPass(flat, buffers, make_function("walk", "S, block, buffers", lines))


def _outputs(graph: StepGraph, values: Values, names: Sequence[str]) -> dict[str, int]:
    """The tensors of a block that the last pass changes, and their new values."""
    wanted = {name: values.same[i] for name, i in graph.outputs.items() if name in names}
    return {name: i for name, i in wanted.items() if i != graph.inputs[name].index}


def _is_flat(nodes: Iterable[Node]) -> bool:
    return all(n.extent is not Extent.ROW for n in nodes)
