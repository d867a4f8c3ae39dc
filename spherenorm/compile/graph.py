"""The step of a rule as a graph of values, from which kernels are printed.

Numbers that depend on a weight's shape (delta / sqrt(dim)) and hyper-parameters are arguments of
the graph, so that all shapes and values share one kernel.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from spherenorm.compile.key import UnsupportedRuleError
from spherenorm.operations import OPERATIONS, Operation

INPUTS = {"weight", "grad", "state"}


class Extent(enum.IntEnum):
    """The number of values of a node for a weight of shape (C, ...): 1, C, or one per entry."""

    SCALAR = 0
    ROW = 1
    FULL = 2


@dataclass(frozen=True)
class Node:
    """One value of the step.

    Attributes:
        index: its place in the graph; arguments have smaller ones.
        op: "weight", "grad", "state", "number" (an argument of the kernel), or the name of an
            operation or a reduction of `spherenorm.operations`.
        arguments: indices of the nodes it is computed from.
        extent: the number of its values.
        boolean: true if they are truth values.
        single: true if a scalar or a row, which back ends keep in double, is rounded to float32,
            as the rule's own code rounds it.
        detail: a state's name, or a number's place among the arguments.
    """

    index: int
    op: str
    arguments: tuple[int, ...]
    extent: Extent
    boolean: bool = False
    single: bool = False
    detail: Any = None

    @property
    def name(self) -> str:
        """The tensor that an input is the value of before the step."""
        return str(self.detail) if self.op == "state" else self.op


@dataclass
class StepGraph:
    """The nodes of one step.

    Attributes:
        outputs: the indices of the new weight ("weight") and of the new states by name.
        literals: the numbers of the step besides the hyper-parameters; they follow those among the
            kernel's arguments and may differ from shape to shape, while the nodes do not.
        states: the shape and dtype of each state.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    literals: list[float] = field(default_factory=list)
    states: dict[str, tuple[torch.Size, torch.dtype]] = field(default_factory=dict)

    @property
    def structure(self) -> Any:
        """Equal for graphs that differ in their literals only."""
        return tuple(self.nodes), tuple(self.outputs.items()), len(self.literals)

    @property
    def inputs(self) -> dict[str, Node]:
        """ "weight", "grad" and each state, by name."""
        return {n.name: n for n in self.nodes if n.op in INPUTS}


class GrowingGraph:
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
        kept: Any = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype, int)(value)
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
