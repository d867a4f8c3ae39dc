"""Norms of combinations by inner products, which saves a kernel a pass over the weight.

A hyperball's step w - s u has s = lr |w| / |u|, which a first pass makes known, and its norm would
take a second one. But the first pass can leave inner products, and

    |a x + b y|^2 = a^2 |x|^2 + 2 a b <x, y> + b^2 |y|^2.

Where these terms nearly cancel, rounding is what remains of them, and the second pass is made; so
it is where |x|^2 or |y|^2 underflows.
"""

from __future__ import annotations

from typing import Any

from spherenorm.compile._graph import Extent, GrowingGraph, Node, StepGraph
from spherenorm.operations import REDUCTIONS

KEPT = 0.25
"""Above this share of a^2 |x|^2 + b^2 |y|^2, a squared norm has the digits of its terms."""
LEAST = {True: 1e-30, False: 1e-280}
"""Below this, in float32 or float64, |x|^2 may lack squares that underflow, and a may be huge."""
Terms = dict[Node, Node]
"""A combination: values per entry, with their factors, which are numbers of the whole weight."""


def by_products(graph: StepGraph, given: int, shape: tuple[int, ...]) -> StepGraph:
    """The same step, with inner products for norms that would end a pass of their own.

    Args:
        graph: of the step of a weight of that shape.
        given: the number of hyper-parameters among the kernel's arguments.
    """
    rebuilt = _Rebuilt(given, shape)
    rebuilt.graph.literals = [*graph.literals]
    taken: list[Node] = []
    for node in graph.nodes:
        taken.append(rebuilt.take(node, tuple(taken[i] for i in node.arguments)))
    rebuilt.graph.outputs = {name: taken[i].index for name, i in graph.outputs.items()}
    rebuilt.graph.states = graph.states
    return rebuilt.graph


class _Rebuilt(GrowingGraph):
    """A graph that takes over the nodes of another, in their order."""

    def __init__(self, given: int, shape: tuple[int, ...]) -> None:
        super().__init__(given, shape)
        self._passes: dict[Node, int] = {}
        """The number of passes that make each value known."""

    def node(
        self, op: str, arguments: tuple[Node, ...], extent: Extent, *rest: Any, **named: Any
    ) -> Node:
        made = super().node(op, arguments, extent, *rest, **named)
        ends = op in REDUCTIONS and extent is Extent.SCALAR
        self._passes[made] = ends + max((self._passes[each] for each in arguments), default=0)
        return made

    def take(self, node: Node, arguments: tuple[Node, ...]) -> Node:
        """The same value."""
        if node.op == "sum" and node.extent is Extent.SCALAR:
            (squares,) = arguments
            factors = [self.graph.nodes[i] for i in squares.arguments]
            if squares.op == "square" or (squares.op == "mul" and factors[0] == factors[1]):
                terms = self._terms(factors[0], self._passes[squares])
                if len(terms) == 2:
                    return self._by_products(node, squares, terms)
        return self._same(node, *arguments)

    def _same(self, node: Node, *arguments: Node) -> Node:
        self.single = node.single
        return self.node(node.op, arguments, node.extent, node.boolean, node.detail)

    def _by_products(self, node: Node, squares: Node, terms: Terms) -> Node:
        """The sum of the squares of a combination of two."""

        def inner(x: Node, y: Node) -> Node:
            self.single = squares.single
            return self._same(node, self.node("mul", (x, y), Extent.FULL))

        (x, a), (y, b) = terms.items()
        xx, xy, yy = inner(x, x), inner(x, y), inner(y, y)
        self.single = False  # in double, until the sum is known
        ends = self.add(self.mul(self.mul(a, a), xx), self.mul(self.mul(b, b), yy))
        found = self.add(ends, self.mul(self.mul(self.mul(a, b), 2.0), xy))
        whole = self.gt(self.minimum(xx, yy), LEAST[squares.single])
        kept = self.logical_and(self.gt(found, self.mul(ends, KEPT)), whole)
        exact = self._same(node, squares)  # behind the decision, which may leave it out
        return self.where(kept, found, exact)

    def _terms(self, node: Node, passes: int) -> Terms:
        """`node` as a combination of values that fewer passes make known; empty if it is none."""
        self.single = False
        if not passes or node.extent is not Extent.FULL:
            return {}
        if self._passes[node] < passes:
            return {node: self.literal(1.0)}
        x, *others = (self.graph.nodes[i] for i in node.arguments)
        y, z = (*others, x, x)[:2]
        if node.op == "neg":
            return self._multiple(-1.0, x, passes)
        if node.op == "mul":
            return self._multiple(x, y, passes)
        if node.op == "div" and y.extent is Extent.SCALAR:
            return self._multiple(self.reciprocal(y), x, passes)
        if node.op == "addcmul":
            return self._sum(self._terms(x, passes), self._multiple(y, z, passes))
        if node.op == "rsub":
            x, y = y, x
        if node.op in ("sub", "rsub"):
            return self._sum(self._terms(x, passes), self._multiple(-1.0, y, passes))
        return self._sum(self._terms(x, passes), self._terms(y, passes)) if node.op == "add" else {}

    def _multiple(self, x: Node | float, y: Node, passes: int) -> Terms:
        """x y, of which one is a number of the whole weight."""
        if isinstance(x, Node) and x.extent is not Extent.SCALAR:
            x, y = y, x
        if isinstance(x, Node) and x.extent is not Extent.SCALAR:
            return {}
        return {each: self.mul(x, own) for each, own in self._terms(y, passes).items()}

    def _sum(self, x: Terms, y: Terms) -> Terms:
        if not (x and y):
            return {}
        added = {each: self.add(x[each], y[each]) for each in x.keys() & y.keys()}
        return {**x, **y, **added}
