"""The walk over a graph on a CPU without a kernel: weight by weight, by operations of torch.

Numbers are the host's, so that decisions are branches: what none asks for is not computed. It takes
tensors of any layout and floating-point dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import Scalar, working_dtype
from spherenorm.compile._backends import Work
from spherenorm.compile._graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile._host import of_numbers, of_tensors
from spherenorm.compile._schedule import gates_of

CPU = torch.device("cpu")


class Walk:
    """Weights whose graphs have equal nodes, and the operations of their step.

    Args:
        graph: of any of them.
        literals: the numbers of each weight's graph, of shape (weights, literals).
        works: the weights; none of their tensors is held.
    """

    def __init__(
        self, graph: StepGraph, literals: np.ndarray[Any, Any], works: Sequence[Work]
    ) -> None:
        self.graph, self.literals = graph, literals.astype(object)
        self.computed = working_dtype(works[0].weight.dtype)
        alive, gates = gates_of(graph)
        self.steps = [
            (n.index, n.arguments, self._function(n), gate if gate and gate[0] < n.index else None)
            for n, gate in zip(graph.nodes, gates, strict=True)
            if n.index in alive and n.arguments
        ]
        self.spread = {
            n.index: n.extent
            for n in graph.nodes
            if n.op == "where" and any(graph.nodes[a].extent < n.extent for a in n.arguments[1:])
        }
        self.inputs = [n for n in graph.nodes if n.index in alive and not n.arguments]

    def run(self, works: Sequence[Work], numbers: Sequence[Scalar]) -> None:
        """Step the weights; they are written to when all results are there.

        Args:
            works: the weights as they are now.
            numbers: the rule's.
        """
        given, old, new = [np.float64(float(n)) for n in numbers], list[Tensor](), list[Tensor]()
        with np.errstate(all="ignore"):
            for work, literals in zip(works, self.literals, strict=True):
                values = self._values(work, [*given, *map(np.float64, literals)])
                for name, i in self.graph.outputs.items():
                    tensor = work.weight if name == "weight" else work.state[name]
                    if i != self.graph.inputs[name].index:
                        old.append(tensor)
                        new.append(_alone(self.graph.nodes[i], values[i], tensor))
        torch._foreach_copy_(old, new)

    def _values(self, work: Work, numbers: Sequence[Any]) -> list[Any]:
        """The value of each node that a decision asks for."""
        values: list[Any] = [None] * len(self.graph.nodes)
        for n in self.inputs:
            if n.op == "number":
                values[n.index] = numbers[n.detail]
            elif n.op == "state":
                x = work.state[n.detail]
                kept = {Extent.SCALAR: lambda x: np.float64(x.item()), Extent.ROW: Tensor.double}
                values[n.index] = kept.get(n.extent, lambda x: x)(x)
            else:
                values[n.index] = (work.weight if n.op == "weight" else work.grad).to(self.computed)
        for index, arguments, function, gate in self.steps:
            if gate is None or values[gate[0]] == gate[1]:  # (None is neither)
                values[index] = function(*[values[a] for a in arguments])
                extent = self.spread.get(index)
                if extent is not None:
                    values[index] = self._spread(values[index], extent, work.weight)
        return values

    def _spread(self, value: Any, extent: Extent, weight: Tensor) -> Tensor:
        """A branch that has fewer values than the choice."""
        row = (*weight.shape[:1], *[1] * (weight.ndim - 1))
        shape, kind = (row, torch.float64) if extent is Extent.ROW else (weight.shape, self.computed)
        if isinstance(value, Tensor):
            return value.to(kind).expand(shape)
        return torch.full(shape, value.item(), dtype=None if value.dtype == bool else kind)

    def _function(self, n: Node) -> Callable[..., Any]:
        sources = [self.graph.nodes[a] for a in n.arguments]
        if n.op in ("sum", "any"):
            return _reduced(n)
        if n.op == "where" and sources[0].extent is Extent.SCALAR:
            return lambda condition, x, y: x if condition else y
        if n.extent is Extent.SCALAR:
            return of_numbers(n.op, n.single)
        wide = self.computed if n.extent is Extent.FULL else torch.float64
        dtype = torch.float32 if n.single and n.extent is Extent.ROW else wide
        function = of_tensors(n.op, tuple(s.extent is Extent.SCALAR for s in sources), wide, CPU)
        # numpy's numbers would take over, and a row's are double.
        kinds = [(s.extent is Extent.SCALAR, s.extent < n.extent, s.boolean) for s in sources]

        def run(*values: Any) -> Tensor:
            given = (
                x if not narrow else x.item() if number else x if boolean else x.to(wide)
                for x, (number, narrow, boolean) in zip(values, kinds, strict=True)
            )
            result = function(*given)
            return result if n.boolean else result.to(dtype)

        return run


def _reduced(n: Node) -> Callable[[Tensor], Any]:
    """A reduction to a number, or over the rows of a weight."""
    dtype, rounded = (torch.float32, np.float32) if n.single else (torch.float64, np.float64)
    if n.extent is Extent.ROW:
        return lambda x: x.sum(tuple(range(1, x.ndim)), keepdim=True).to(dtype)
    if n.boolean:
        return lambda x: np.bool_(x.any().item())
    return lambda x: np.float64(rounded(x.sum().item()))


def _alone(n: Node, value: Any, tensor: Tensor) -> Tensor:
    """An output in memory of its own: a number is spread, and an input's memory is not shared."""
    if not isinstance(value, Tensor):
        return torch.full(tensor.shape, value, dtype=tensor.dtype)
    if n.op in INPUTS or value.shape != tensor.shape:
        return value.expand(tensor.shape).clone()
    return value
