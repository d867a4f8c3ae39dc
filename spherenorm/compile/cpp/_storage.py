"""The places of entries between the loops over a row."""

from __future__ import annotations

from spherenorm.compile._graph import INPUTS, Extent
from spherenorm.compile._printer import Words
from spherenorm.compile._schedule import Pass
from spherenorm.operations import OPERATIONS

__all__ = ["Storage"]

CHEAP = 4
"""A value of so many cheap operations on inputs is computed again rather than kept."""


class Storage:
    """The loop of each write, and the place of what a later loop needs again.

    A value of an earlier loop is read back from where it was written, computed again if that is
    quick, or waits in a scratch row.

    Attributes:
        scratch: the scratch row of each value that has one.
    """

    def __init__(self, words: Words, plan: Pass) -> None:
        self.words, self.nodes, self.plan = words, words.nodes, plan
        self._last = max((plan.level[n.index] for n in plan.full), default=-1)
        self._writes = [
            (name, n.index, self._due(name, n.index)) for name, n in plan.written(Extent.FULL)
        ]
        self._written = {
            index: name
            for name, index, loop in self._writes
            if loop == plan.level[index] and name != "weight"
        }
        self.scratch = self._scratch()

    def stores(self, loop: int) -> list[tuple[str, int]]:
        """(output, value) of the writes in a loop."""
        return [(name, index) for name, index, due in self._writes if due == loop]

    def values(self, loop: int, roots: list[int]) -> dict[int, str]:
        """The source of each entry that `roots` ask for in a loop."""
        values: dict[int, str] = {}
        pending = list(roots)
        while pending:
            node = self.nodes[pending.pop()]
            index = node.index
            if index in values or node.extent is not Extent.FULL:
                continue
            earlier = self.plan.level[index] < loop
            if node.op in INPUTS:
                values[index] = f"load(p{self.words.place[node.name]}[j])"
            elif earlier and index in self.scratch:
                values[index] = f"k{index}[j]"
            elif earlier and index in self._written:
                place = self.words.place[self._written[index]]
                values[index] = f"load(p{place}[j])"
            else:
                values[index] = self.words.expression(node)
                pending.extend(node.arguments)
        return values

    def _due(self, name: str, index: int) -> int:
        """The loop of a write: it waits until the old value has been read for the last time."""
        old = self.words.plan.graph.inputs[name].index
        reads = [self.plan.level[n.index] for n in self.plan.full if old in n.arguments]
        return max([self.plan.level[index], *reads])

    def _scratch(self) -> dict[int, int]:
        level = self.plan.level
        needed = {
            a for n in self.plan.full for a in n.arguments if level.get(a, 0) < level[n.index]
        }
        needed |= {index for _, index, loop in self._writes if loop > level[index]}
        entries = {n.index for n in self.plan.full if n.op not in INPUTS}
        kept = sorted(needed & entries - self._written.keys())
        return {index: k for k, index in enumerate(i for i in kept if not self._cheap(i))}

    def _cheap(self, index: int) -> bool:
        """True for a few cheap operations on inputs that only the last loop overwrites."""
        old = self.words.plan.graph.inputs
        overwritten = {old[name].index for name, _, loop in self._writes if loop < self._last}
        pending, operations = [index], 0
        while pending:
            node = self.nodes[pending.pop()]
            if node.extent is not Extent.FULL:
                continue
            operations += node.op not in INPUTS
            cheap = node.op in INPUTS or OPERATIONS[node.op].cheap
            if operations > CHEAP or node.index in overwritten or not cheap:
                return False
            pending.extend(node.arguments)
        return True
