"""The values of a pass, and the facts of a step that all its passes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from spherenorm.compile._graph import INPUTS, Extent, StepGraph
from spherenorm.compile._schedule import Pass, Schedule
from spherenorm.operations import REDUCTIONS

__all__ = ["Facts", "Values"]


@dataclass(frozen=True)
class Facts:
    """The facts of a step that all its passes share.

    Attributes:
        graph, plan: the step, and its passes.
        names: the tensors of a block, in order: these inputs, then row sums that one pass leaves to
            the next.
        stored, work: the dtype of weights and gradients, and the one that is computed in.
    """

    graph: StepGraph
    plan: Schedule
    names: tuple[str, ...]
    stored: torch.dtype
    work: torch.dtype


class Values:
    """The values of a pass, without the sides of choices that were not taken.

    Attributes:
        nodes: of the graph, with the arguments that are left.
        same: the index of the value that each has become.
    """

    def __init__(self, graph: StepGraph, plan: Pass, decisions: Mapping[int, bool]) -> None:
        self.graph, self.plan = graph, plan
        self.nodes, self.same = list(graph.nodes), list(range(len(graph.nodes)))
        for index in plan.nodes:
            self._simplify(index, decisions)
        sums = [n for n in (*plan.rows, *plan.full) if n.op in REDUCTIONS]
        sums += [n for _, n in plan.reductions]
        narrower = any(
            self.nodes[self.same[a]].extent is not graph.nodes[a].extent
            for n in sums
            for a in graph.nodes[n.index].arguments
        )
        if narrower:
            # The sum of what is now one number, or one per row, would need to know of how many.
            self.nodes, self.same = list(graph.nodes), list(range(len(graph.nodes)))

    def is_scalar(self, index: int) -> bool:
        return self.nodes[index].extent is Extent.SCALAR

    def needed(self, roots: Iterable[int]) -> list[int]:
        """The values of this pass that `roots` ask for, in order."""
        here, found = set(self.plan.nodes), set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            if index in found or index not in here:
                continue
            found.add(index)
            if index not in self.plan.read_back:
                pending.extend(self.nodes[index].arguments)
        return sorted(found)

    def _simplify(self, index: int, decisions: Mapping[int, bool]) -> None:
        node = self.nodes[index]
        if node.op in INPUTS or index in self.plan.read_back:
            return
        arguments = tuple(self.same[a] for a in node.arguments)
        if node.op == "where" and arguments[0] in decisions:
            self.same[index] = arguments[1 if decisions[arguments[0]] else 2]
            return
        extent = node.extent if node.op == "sum" else max(self.nodes[a].extent for a in arguments)
        self.nodes[index] = replace(node, arguments=arguments, extent=extent)
