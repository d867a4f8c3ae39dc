"""A graph that grows operation by operation."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from spherenorm.compile._graph import Extent, Node, StepGraph
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.operations import OPERATIONS, Operation
from spherenorm.record import Value

__all__ = ["GraphBuilder"]


class _Graph:
    """A graph that grows node by node, with common subexpressions merged.

    The names of `OPERATIONS` are methods of it: `builder.add(x, y)`, of nodes and Python numbers.
    """

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.graph, self.shape, self.ndim = StepGraph(), shape, len(shape)
        self.given = count
        """The number of hyper-parameters among the kernel's arguments."""
        self.single = False
        """True while the operation at hand gives float32."""
        self._known: dict[Any, Node] = {}
        self._numbers: dict[int, Node] = {}

    def __getattr__(self, name: str) -> Callable[..., Node]:
        if name not in OPERATIONS:
            raise AttributeError(name)
        return functools.partial(self.apply, OPERATIONS[name])

    def node(
        self,
        op: str,
        arguments: tuple[Node, ...],
        extent: Extent,
        boolean: bool = False,
        detail: Any = None,
    ) -> Node:
        """The node of an operation, new or known."""
        single = self.single and not boolean and bool(arguments)
        places = tuple(each.index for each in arguments)
        key = (op, places, extent, single, detail)
        if key not in self._known:
            made = Node(len(self.graph.nodes), op, places, extent, boolean, single, detail)
            self._known[key] = made
            self.graph.nodes.append(made)
        return self._known[key]

    def literal(self, value: float, dtype: torch.dtype = torch.float64) -> Node:
        """A number of the step that is no hyper-parameter; each is an argument of its own."""
        kept = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype, int)(value)
        self.graph.literals.append(float(kept))
        place = self.given + len(self.graph.literals) - 1
        return self.node("number", (), Extent.SCALAR, detail=place)

    def apply(self, row: Operation, *arguments: Any, **options: Any) -> Node:
        """An operation on nodes and numbers; its extent is the largest of theirs."""
        if row.derived and not row.cpp:
            made: Node = row.derived(self, *arguments, **options)
            return made
        nodes = [a if isinstance(a, Node) else self.literal(a) for a in arguments]
        if row.gives == "logic" and not all(n.boolean for n in nodes):
            raise UnsupportedRuleError(f"{row.name} of numbers")
        chosen = row.gives == "choice" and all(n.boolean for n in nodes[1:])
        if row.gives != "logic" and not chosen:
            kept = 1 if row.gives == "choice" else 0
            nodes = [*nodes[:kept], *map(self.number, nodes[kept:])]
        extent = max(n.extent for n in nodes)
        if self.single and row.name != "cast" and extent is not Extent.FULL:
            nodes = [self.rounded(n) for n in nodes]
        boolean = row.gives in ("truth", "logic") or chosen
        return self.node(row.name, tuple(nodes), extent, boolean)

    def rounded(self, node: Node) -> Node:
        """A scalar in double as float32, as torch takes it beside one: 1e-300 is 0 there.

        Loops over entries convert all that they use; see `Node.single`.
        """
        double = node.extent is Extent.SCALAR and not (node.single or node.boolean)
        return self.cast(node) if double else node

    def number(self, node: Node) -> Node:
        """A truth value as the number 1 or 0."""
        if not node.boolean:
            return node
        if node.index not in self._numbers:
            self._numbers[node.index] = self.where(node, self.literal(1.0), self.literal(0.0))
        return self._numbers[node.index]

    def shape_of(self, extent: Extent) -> tuple[int, ...]:
        row = (*self.shape[:1], *[1] * (self.ndim - 1))
        return {Extent.FULL: self.shape, Extent.ROW: row, Extent.SCALAR: ()}[extent]


class GraphBuilder(_Graph):
    """Lowers operations of aten that are more than a row; each is a method under its name there."""

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(count, shape)
        self.result = Value(torch.Size(), dtype)
        """The result of the call at hand."""

    def scalar_tensor(self, value: Any) -> Node:
        return self.literal(value, self.result.dtype)

    def full(self, size: Any, value: Any) -> Node:
        return self.literal(value, self.result.dtype)

    def full_like(self, x: Node, value: Any) -> Node:
        return self.literal(value, self.result.dtype)

    def add(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        if alpha == 1:
            return self.apply(OPERATIONS["add"], x, y)
        return self.addcmul(x, y, alpha)

    def sub(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        if alpha == 1:
            return self.apply(OPERATIONS["sub"], x, y)
        return self.addcmul(x, y, -alpha)

    def addcmul(self, x: Any, y: Any, z: Any, value: Any = 1) -> Node:
        """x + (value y) z, whose last product torch adds without rounding it in between."""
        if value != 1:
            y = self.mul(y, value)
        return self.apply(OPERATIONS["addcmul"], x, y, z)

    def pow(self, x: Any, exponent: Any) -> Node:
        special = {2: "square", 0.5: "sqrt", 1: "number"}
        if isinstance(x, Node) and not isinstance(exponent, Node) and exponent in special:
            power: Node = getattr(self, special[exponent])(x)
            return power
        return self.apply(OPERATIONS["pow"], x, exponent)

    def any(self, x: Node, *dims: Any) -> Node:
        return self._decision("any", x, dims)

    def all(self, x: Node, *dims: Any) -> Node:
        return self._decision("all", x, dims)

    def _decision(self, op: str, x: Node, dims: tuple[Any, ...]) -> Node:
        if dims:
            raise NotImplementedError(f"{op} along a dimension")
        if not x.boolean:
            raise NotImplementedError(f"{op} of numbers")
        return x if x.extent is Extent.SCALAR else self.node(op, (x,), Extent.SCALAR, True)

    def sum(self, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
        reduced, rows = self._reduced(dims), set(range(1, self.ndim))
        if reduced == rows | {0} and x.extent is not Extent.SCALAR:
            return self.node("sum", (x,), Extent.SCALAR)
        if reduced == rows and rows and x.extent is Extent.FULL:
            return self.node("sum", (x,), Extent.ROW)
        raise NotImplementedError(f"a sum over dimensions {sorted(reduced)} of {self.ndim}")

    def count(self, x: Node, dims: Any = None) -> float:
        """The number of entries that a sum of `x` over `dims` adds; nan of no entries at all."""
        lengths = dict(enumerate(self.shape_of(x.extent)))
        added = math.prod(lengths.get(d, 1) for d in self._reduced(dims))
        return added if math.prod(lengths.values()) else math.nan

    def _reduced(self, dims: Any) -> set[int]:
        every = set(range(max(self.ndim, 1)))
        return {operator.index(d) % max(self.ndim, 1) for d in dims or ()} or every
