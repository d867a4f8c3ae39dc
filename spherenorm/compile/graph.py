"""Stage 2, graph: the values of one step, and the builder that makes nodes from operations.

Hyper-parameters, and numbers that depend on a weight's shape (delta / sqrt(dim)), are arguments of
the graph, so that all shapes and values share one kernel.
"""

from __future__ import annotations

import enum
import functools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from spherenorm.operations import DERIVED, OPERATIONS, Operation, check_registered
from spherenorm.record import Source, Unsupported

INPUTS = {"weight", "grad", "state"}
"""Operations of nodes that are a tensor's entries before the step."""


class Extent(enum.IntEnum):
    """The number of values of a node for a weight of shape (C, ...): 1, C, or one per entry."""

    SCALAR = 0
    ROW = 1
    FULL = 2


@dataclass(frozen=True)
class Node:
    """A value of the step.

    Attributes:
        index: the index in the graph; its arguments have smaller ones.
        op: "weight", "grad", "state", "argument" (a number that the kernel is called with), or the
            name of an operation or a reduction of `spherenorm.operations`.
        arguments: indices of the nodes that it is computed from.
        extent: the number of its values.
        boolean: true if they are booleans.
        rounds_to_float32: true if a scalar or a row, which executors compute in double, is rounded
            to float32 as the rule's own code rounds it.
        detail: the name of a state, or the index of a kernel argument.
    """

    index: int
    op: str
    arguments: tuple[int, ...]
    extent: Extent
    boolean: bool = False
    rounds_to_float32: bool = False
    detail: Any = None

    @property
    def name(self) -> str:
        """The name of the tensor whose entries an input node stands for."""
        return str(self.detail) if self.op == "state" else self.op


@dataclass
class StepGraph:
    """The nodes of one step.

    Attributes:
        n_hyper_parameters: how many of the kernel's arguments are hyper-parameters; the others are
            literals.
        nodes: in an order in which they can be computed.
        outputs: the node index of the new weight ("weight"), and of each new state by name.
        literals: kernel arguments beside the hyper-parameters, which come first. They may differ
            from shape to shape; the nodes do not.
        states: the shape and dtype of each state.
        watched: the outputs that no step reads; only they depend on the nodes of their own.
        sources: the places in the rule's code that called for the nodes, by index.
    """

    n_hyper_parameters: int = 0
    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    literals: list[float] = field(default_factory=list)
    states: dict[str, tuple[torch.Size, torch.dtype]] = field(default_factory=dict)
    watched: frozenset[str] = frozenset()
    sources: dict[int, Source] = field(default_factory=dict)

    def nodes_of(self, names: Iterable[str]) -> set[int]:
        """Return the indices of the nodes that some outputs depend on."""
        live = {self.outputs[name] for name in names}
        for node in reversed(self.nodes):
            if node.index in live:
                live.update(node.arguments)
        return live

    def add_watched(self, graph: StepGraph, names: Iterable[str]) -> None:
        """Add outputs that no step reads, with nodes of their own, from a graph that has them.

        Executors then sum what belongs to the step in the order that they have without these
        outputs, so that the step has the same bits.

        Args:
            graph: the graph of the same step with these outputs.
            names: the outputs.
        """
        self.watched = frozenset(names)
        inputs = {(n.op, n.detail): n.index for n in self.nodes if not n.arguments}
        new_indices: dict[int, int] = {}
        states = {n.index for n in graph.nodes if n.op == "state" and n.detail in self.watched}
        for index in sorted(graph.nodes_of(self.watched) | states):
            node = graph.nodes[index]
            detail = node.detail
            is_literal = node.op == "argument" and detail >= self.n_hyper_parameters
            if is_literal:
                self.literals.append(graph.literals[detail - self.n_hyper_parameters])
                detail = self.n_hyper_parameters + len(self.literals) - 1
            elif (node.op, detail) in inputs and not node.arguments:
                new_indices[index] = inputs[node.op, detail]
                continue
            new_indices[index] = len(self.nodes)
            arguments = tuple(new_indices[argument] for argument in node.arguments)
            new_node = replace(node, index=len(self.nodes), arguments=arguments, detail=detail)
            if index in graph.sources:
                self.sources[new_node.index] = graph.sources[index]
            self.nodes.append(new_node)
        for name in graph.outputs:
            if name in self.watched:
                self.outputs[name] = new_indices[graph.outputs[name]]
                self.states[name] = graph.states[name]

    @property
    def structure(self) -> Any:
        """Equal for graphs that differ in their literals and sources only."""
        lengths = self.n_hyper_parameters, len(self.literals)
        return tuple(self.nodes), tuple(self.outputs.items()), self.watched, *lengths

    @property
    def inputs(self) -> dict[str, Node]:
        """The input nodes by name: "weight", "grad" and each state."""
        return {n.name: n for n in self.nodes if n.op in INPUTS}

    def listing(self) -> str:
        """Print the operations on which the outputs depend, one a line, with the rule's source."""
        labels = Labels(self, annotated=True)
        live = self.nodes_of(self.outputs)
        lines = []
        for node in self.nodes:
            if node.index not in live:
                continue
            arguments = [f"v{labels(index)}" for index in node.arguments]
            if node.op == "argument":
                arguments = [str(node.detail)]
            elif node.op in INPUTS:
                continue
            text = f"v{labels(node.index)} = {node.op}({', '.join(arguments)})"
            lines.append(f"{text}  # {node.extent.name.lower()}{labels.comment(node.index, '; ')}")
        lines += [f"new {name} = v{labels(index)}" for name, index in self.outputs.items()]
        return "\n".join(lines)


class Labels:
    """The names of a graph's values in generated code, and the rule's source as comments.

    Args:
        graph: of the values.
        annotated: name values by their numbers and by the rule's variables, and comment on them;
            else by their numbers alone, so that equal kernels have equal sources.
    """

    def __init__(self, graph: StepGraph, annotated: bool) -> None:
        self.graph, self.annotated = graph, annotated

    def __call__(self, index: int) -> str:
        """Return "116", or "116_direction" if the rule has a variable for the value."""
        if not self.annotated:
            return str(index)
        node, source = self.graph.nodes[index], self.graph.sources.get(index)
        variable = "" if source is None else source.variable
        if node.op in INPUTS:
            variable = node.name
        return f"{index}_{variable}" if variable else str(index)

    def comment(self, index: int, mark: str = "  // ") -> str:
        """Return the line of the rule's source behind a mark; "" if there is none."""
        source = self.graph.sources.get(index) if self.annotated else None
        return "" if source is None else f"{mark}{source}"


class GraphBuilder:
    """Adds nodes to a graph; equal subexpressions become one node.

    The operations of `OPERATIONS` are methods, of nodes and Python numbers: `builder.add(x, y)`.

    Args:
        n_hyper_parameters: how many hyper-parameters the kernel is called with.
        shape: of the weight.

    Attributes:
        graph: so far.
        result_dtype: of the operation that is being lowered.
        rounds_to_float32: whether that operation rounds to float32.
    """

    def __init__(self, n_hyper_parameters: int, shape: tuple[int, ...]) -> None:
        self.graph, self.shape, self.ndim = StepGraph(n_hyper_parameters), shape, len(shape)
        self.result_dtype = torch.float64
        self.rounds_to_float32 = False
        self._nodes_by_key: dict[Any, Node] = {}
        self._values_of_booleans: dict[int, Node] = {}

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
        """Return the node of an operation, which is added unless there is an equal one."""
        rounds = self.rounds_to_float32 and not boolean and bool(arguments)
        indices = tuple(argument.index for argument in arguments)
        key = (op, indices, extent, rounds, detail)
        if key not in self._nodes_by_key:
            index = len(self.graph.nodes)
            new_node = Node(index, op, indices, extent, boolean, rounds, detail)
            self._nodes_by_key[key] = new_node
            self.graph.nodes.append(new_node)
        return self._nodes_by_key[key]

    def literal(self, value: float, dtype: torch.dtype = torch.float64) -> Node:
        """Add a number that is no hyper-parameter; each becomes a kernel argument of its own."""
        convert: Any = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype, int)
        self.graph.literals.append(float(convert(value)))
        argument_index = self.graph.n_hyper_parameters + len(self.graph.literals) - 1
        return self.node("argument", (), Extent.SCALAR, detail=argument_index)

    def apply(self, row: Operation, *arguments: Any, **options: Any) -> Node:
        """Add an operation on nodes and numbers; its extent is the largest of theirs."""
        if row.cpp is DERIVED and row.derived is not None:
            derived: Node = row.derived(self, *arguments, **options)
            return derived
        nodes = [a if isinstance(a, Node) else self.literal(a) for a in arguments]
        if row.returns == "boolean" and not all(n.boolean for n in nodes):
            raise Unsupported(f"{row.name} of numbers")
        selects_booleans = row.returns == "select" and all(n.boolean for n in nodes[1:])
        if row.returns != "boolean" and not selects_booleans:
            n_conditions = 1 if row.returns == "select" else 0
            nodes = [*nodes[:n_conditions], *map(self.as_value, nodes[n_conditions:])]
        extent = max(n.extent for n in nodes)
        if self.rounds_to_float32 and row.name != "cast" and extent is not Extent.FULL:
            nodes = [self.rounded(n) for n in nodes]
        boolean = row.returns in ("comparison", "boolean") or selects_booleans
        return self.node(row.name, tuple(nodes), extent, boolean)

    def rounded(self, node: Node) -> Node:
        """Round a scalar in double to float32, as torch takes it beside one: 1e-300 is 0 there.

        Loops over entries convert whatever they use, so that only scalars need this.
        """
        is_double = not (node.rounds_to_float32 or node.boolean)
        return self.cast(node) if node.extent is Extent.SCALAR and is_double else node

    def as_value(self, node: Node) -> Node:
        """Return a boolean as the number 1 or 0, and any other node as it is."""
        if not node.boolean:
            return node
        if node.index not in self._values_of_booleans:
            value = self.where(node, self.literal(1.0), self.literal(0.0))
            self._values_of_booleans[node.index] = value
        return self._values_of_booleans[node.index]

    def shape_of(self, extent: Extent) -> tuple[int, ...]:
        """Return the shape of a tensor of an extent, as torch has it in the rule's own code."""
        row = (*self.shape[:1], *[1] * (self.ndim - 1))
        return {Extent.FULL: self.shape, Extent.ROW: row, Extent.SCALAR: ()}[extent]

    # Operations of aten that need more than a row of the table; each has its name there.

    def scalar_tensor(self, value: Any) -> Node:
        return self.literal(value, self.result_dtype)

    def full(self, size_or_like: Any, value: Any) -> Node:
        return self.literal(value, self.result_dtype)

    full_like = full

    def add(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        return self.apply(OPERATIONS["add"], x, y) if alpha == 1 else self.addcmul(x, y, alpha)

    def sub(self, x: Any, y: Any, alpha: Any = 1) -> Node:
        return self.apply(OPERATIONS["sub"], x, y) if alpha == 1 else self.addcmul(x, y, -alpha)

    def addcmul(self, x: Any, y: Any, z: Any, value: Any = 1) -> Node:
        """Add x + (value y) z, whose last product torch adds without rounding it in between."""
        if value != 1:
            y = self.mul(y, value)
        return self.apply(OPERATIONS["addcmul"], x, y, z)

    def pow(self, x: Any, exponent: Any) -> Node:
        if isinstance(x, Node) and not isinstance(exponent, Node):
            simple = {2: self.square, 0.5: self.sqrt, 1: self.as_value}
            if exponent in simple:
                return simple[exponent](x)
        return self.apply(OPERATIONS["pow"], x, exponent)

    def any(self, x: Node, *dims: Any) -> Node:
        if dims:
            raise Unsupported("a decision along a dimension")
        if not x.boolean:
            raise Unsupported("any or all of numbers")
        return x if x.extent is Extent.SCALAR else self.node("any", (x,), Extent.SCALAR, True)

    def all(self, x: Node, *dims: Any) -> Node:
        return self.logical_not(self.any(self.logical_not(x), *dims))

    def sum(self, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
        reduced, within_row = self._reduced_dims(dims), set(range(1, self.ndim))
        if reduced == within_row | {0} and x.extent is not Extent.SCALAR:
            return self.node("sum", (x,), Extent.SCALAR)
        if reduced == within_row and within_row and x.extent is Extent.FULL:
            return self.node("sum", (x,), Extent.ROW)
        raise Unsupported(f"a sum over dimensions {sorted(reduced)} of {self.ndim}")

    def count(self, x: Node, dims: Any = None) -> float:
        """Return how many entries a sum of `x` over `dims` adds; nan if `x` has no entries."""
        lengths = dict(enumerate(self.shape_of(x.extent)))
        if not math.prod(lengths.values()):
            return math.nan
        return math.prod(lengths.get(d, 1) for d in self._reduced_dims(dims))

    def _reduced_dims(self, dims: Any) -> set[int]:
        ndim = max(self.ndim, 1)
        return {operator.index(d) % ndim for d in dims or ()} or set(range(ndim))


COPIES = ("copy", "convert")
"""Operations that return the entries of their argument, perhaps in another dtype."""
METHODS: dict[str, Callable[..., Node]] = {
    name: getattr(GraphBuilder, name)
    for name in (
        *("scalar_tensor", "full", "full_like", "add", "sub", "addcmul", "pow"),
        *("any", "all", "sum"),
    )
}
"""Operations that `GraphBuilder` lowers by a method, with precedence over the form in the table."""
check_registered("cpp", [*METHODS, *COPIES])
