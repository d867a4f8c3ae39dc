"""The walk over a schedule that the printers share; each has the words of its language."""

from __future__ import annotations

from abc import ABC, abstractmethod

from spherenorm.compile._graph import Extent, Node
from spherenorm.compile._schedule import Loop, Pass, Schedule


class Words(ABC):
    """The values of a step in one language: scalars, values of a row v3, those of an entry v3.

    Loops over entries convert narrower values beforehand, to t3.
    """

    scalar: str
    """The name of a scalar by its index."""
    given: str
    """A number of the rule by its place; `literal`: one of the graph's own."""
    literal: str

    def __init__(self, plan: Schedule) -> None:
        self.plan, self.nodes, self.place = plan, plan.graph.nodes, plan.place

    def name(self, index: int, inside: Extent) -> str:
        """The name of a value among values of extent `inside`."""
        extent = self.nodes[index].extent
        if inside is Extent.FULL and extent is not Extent.FULL:
            return f"t{index}"
        return self.scalar.format(index) if extent is Extent.SCALAR else f"v{index}"

    def source_of_scalar(self, node: Node, numbers: int) -> str:
        """The source of a scalar, if `numbers` of the kernel's arguments are the rule's."""
        if node.op == "number":
            place = node.detail
            given = place < numbers
            return self.given.format(place) if given else self.literal.format(place - numbers)
        return self.counter(node.detail) if node.op == "state" else self.expression(node)

    def row_values(self, walk: Pass, loop: Loop) -> list[str]:
        """The values per row that are known before a loop."""
        out = []
        for n in loop.rows:
            if n.index in walk.read_back:
                out.append(self.row_value(n, self.left(n.index)))
            elif n.op == "state":
                out.append(self.row_value(n, self.row_state(n.detail)))
            elif n.op != "sum":
                out.append(self.row_value(n, self.expression(n)))
            if walk.in_entries(n.index):
                out.append(self.converted(n.index, f"v{n.index}"))
        return out

    @abstractmethod
    def expression(self, node: Node) -> str:
        """A value by those that it is computed from."""

    @abstractmethod
    def converted(self, index: int, value: str) -> str:
        """A narrower value as loops over entries use it."""

    @abstractmethod
    def counter(self, name: str) -> str:
        """The old value of a state of one number."""

    @abstractmethod
    def row_value(self, node: Node, value: str) -> str:
        """Name a value of a row."""

    @abstractmethod
    def row_state(self, name: str) -> str:
        """The old value of a state of one number per row."""

    @abstractmethod
    def left(self, index: int) -> str:
        """A row sum that an earlier pass has left."""
