"""The names and expressions of values in a C++ kernel."""

from __future__ import annotations

from spherenorm.compile._graph import Extent, Node, StepGraph
from spherenorm.compile._schedule import Operands, Schedule
from spherenorm.operations import OPERATIONS

__all__ = ["Names"]


class Names:
    """Scalars are S[i] in double, values of a row v3 in double, those of an entry v3 in `real`.

    Loops over entries convert narrower values beforehand, to t3, and truths to a mask m3 too.
    """

    def __init__(self, graph: StepGraph, plan: Schedule, operands: Operands) -> None:
        self.graph, self.nodes, self.plan, self.operands = graph, graph.nodes, plan, operands

    def name(self, index: int, inside: Extent) -> str:
        """The name of a value among values of extent `inside`."""
        extent = self.nodes[index].extent
        if inside is Extent.FULL and extent is not Extent.FULL:
            return f"t{index}"
        return f"S[{index}]" if extent is Extent.SCALAR else f"v{index}"

    def expression(self, node: Node, inside: Extent) -> str:
        """A value by those that it is computed from."""
        names = [self.name(a, inside) for a in node.arguments]
        decided = node.op == "where" and self.nodes[node.arguments[0]].extent is not Extent.FULL
        if decided and inside is Extent.FULL and not node.boolean:
            return f"choose(m{node.arguments[0]}, {names[1]}, {names[2]})"
        kind = "real" if inside is Extent.FULL else "double"
        value = OPERATIONS[node.op].cpp.format(*names, kind=kind)
        return f"rounded({value})" if node.single and inside is not Extent.FULL else value

    def converted(self, index: int, value: str) -> str:
        """A narrower value as loops over entries use it."""
        if not self.nodes[index].boolean:
            return f"const real t{index} = {value};"
        return (
            f"const bool t{index} = {value}; const mask m{index} = -mask(t{index}); (void)m{index};"
        )
