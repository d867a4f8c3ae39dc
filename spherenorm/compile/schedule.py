"""The schedule of a step: the passes that a kernel makes over a weight, and the loops of each pass.

A reduction over the whole tensor ends a pass, since what depends on it has to wait for all rows.
All passes but the last only reduce; the last one computes everything else and writes. A pass
computes what it needs from the inputs anew, except for sums over rows that an earlier pass has
left. Within a pass, a sum over a row ends a loop over its entries. Back ends print passes and
loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spherenorm.compile.graph import Extent, Node, StepGraph
from spherenorm.compile.key import UnsupportedRuleError
from spherenorm.operations import REDUCTIONS

Gate = tuple[int, bool]
"""A decision, by its (scalar) node, and the value at which its pass is needed."""
Numbered = tuple[tuple[int, Node], ...]
"""Nodes, each with the place of a reduction over a whole tensor among those of its pass."""


@dataclass(frozen=True)
class Loop:
    """One loop over the entries of a row, and what is known before it.

    Attributes:
        rows: the values per row that are computed or read before the loop; sums are there by then.
        row_sums: the sums over the row that the loop adds up.
        totals: the reductions over entries that it carries on.
        from_rows: the row sums that reductions over the tensor add up.
    """

    rows: tuple[Node, ...]
    row_sums: tuple[Node, ...]
    totals: Numbered
    from_rows: Numbered

    @property
    def reduced(self) -> list[int]:
        """The entries that it reduces."""
        return [n.arguments[0] for n in (*self.row_sums, *(n for _, n in self.totals))]


@dataclass(frozen=True)
class Pass:
    """One walk over a weight.

    Attributes:
        reductions: the reductions that it makes; none in the last pass.
        row_totals: those among them that are over rows.
        writes: (output, node) of the values that it writes; only in the last pass.
        gate: the pass is needed only if this decision has this value; None if always.
        rows, full: the values per row and per entry that it computes or reads, in order.
        read_back: indices of the row sums among them that an earlier pass has left.
        level: for each of them, by index, the number of the row's own sums that it waits for; it
            belongs to the loop of that number.
        loops: in order; the last has only rows, which are known when all entries are.
    """

    reductions: Numbered
    row_totals: Numbered
    writes: tuple[tuple[str, Node], ...]
    gate: Gate | None
    rows: tuple[Node, ...]
    full: tuple[Node, ...]
    read_back: set[int]
    level: Mapping[int, int]
    loops: tuple[Loop, ...]

    @property
    def flat(self) -> bool:
        """True if no value belongs to a row, so that rows may be cut anywhere."""
        return not self.rows

    def written(self, extent: Extent) -> list[tuple[str, Node]]:
        """Its writes of one extent."""
        return [(name, n) for name, n in self.writes if n.extent is extent]

    def in_entries(self, index: int) -> bool:
        """True if a value per entry takes this value."""
        return any(index in n.arguments for n in self.full)


@dataclass(frozen=True)
class Schedule:
    """The passes of a step, and the tensors that it works on.

    Attributes:
        graph: of the step.
        place: the place of each tensor's pointer, by name: weight, gradient, states.
        passes: in order.
        stage: for each node, the number of passes after which it can be known.
        scalars: the scalar nodes that the outputs ask for and that are no reductions.
        saved: row sums that one pass leaves to later ones, with their place among those.
    """

    graph: StepGraph
    place: Mapping[str, int]
    passes: tuple[Pass, ...]
    stage: tuple[int, ...]
    scalars: tuple[Node, ...]
    saved: Mapping[int, int]

    @property
    def states(self) -> tuple[str, ...]:
        """The states' names, in the order of their pointers."""
        return tuple(self.place)[2:]

    @property
    def reductions(self) -> int:
        """The most that a pass makes, or 1."""
        return max([1, *(len(each.reductions) for each in self.passes)])

    @property
    def counters(self) -> dict[str, int]:
        """The new value of each state of one number, by its node."""
        nodes, outputs = self.graph.nodes, self.graph.outputs
        kept = {name: outputs[name] for name in self.states}
        return {name: i for name, i in kept.items() if nodes[i].extent is Extent.SCALAR}

    def scalars_of(self, stage: int) -> list[Node]:
        """The scalars that are known after so many passes, and not before."""
        return [n for n in self.scalars if self.stage[n.index] == stage]

    def outside(self, users: Iterable[Node]) -> list[int]:
        """The scalars that `users` take."""
        asked = {a for n in users for a in n.arguments}
        return sorted(a for a in asked if self.graph.nodes[a].extent is Extent.SCALAR)

    def left_by(self, each: Pass) -> list[int]:
        """The row sums that a pass leaves to others."""
        return [i for i in self.saved if i in each.level and i not in each.read_back]


def schedule(graph: StepGraph) -> Schedule:
    """The passes that the outputs of a graph ask for.

    Raises:
        UnsupportedRuleError: a new value has another extent than the tensor (a state set to one
            number).
    """
    for name, index in graph.outputs.items():
        if graph.nodes[index].extent is not graph.inputs[name].extent:
            raise UnsupportedRuleError(f"the new {name} has one value for many")
    states = (name for name in graph.outputs if name != "weight")
    place = {name: place for place, name in enumerate(("weight", "grad", *states))}
    making = _Making(graph)
    last = max(making.stage[index] for index in graph.outputs.values())
    passes = tuple(map(making.pass_after, range(last + 1)))
    scalars = (n for n in graph.nodes if n.index in making.alive and n.extent is Extent.SCALAR)
    reread = dict.fromkeys(index for each in passes for index in sorted(each.read_back))
    return Schedule(
        graph=graph,
        place=place,
        passes=passes,
        stage=tuple(making.stage),
        scalars=tuple(n for n in scalars if not _is_reduction(n)),
        saved={index: place for place, index in enumerate(reread)},
    )


def gates_of(graph: StepGraph) -> tuple[set[int], list[Gate | None]]:
    """The nodes that the outputs ask for; and for each node, the decision without which no user
    needs it, or None if it is needed anyway."""
    nodes, outputs = graph.nodes, set(graph.outputs.values())
    alive, users = set(outputs), [list[Node]() for _ in nodes]
    for node in reversed(nodes):
        for argument in node.arguments if node.index in alive else ():
            alive.add(argument)
            users[argument].append(node)
    gates: list[Gate | None] = [None] * len(nodes)
    for node in reversed(nodes):
        asked = {_gate_of_use(nodes, node, user, gates[user.index]) for user in users[node.index]}
        if len(asked) == 1 and node.index not in outputs:
            gates[node.index] = asked.pop()
    return alive, gates


def _gate_of_use(nodes: list[Node], node: Node, user: Node, gate: Gate | None) -> Gate | None:
    if user.op == "where" and nodes[user.arguments[0]].extent is Extent.SCALAR:
        condition, yes, no = user.arguments
        if node.index == yes and node.index not in (condition, no):
            return condition, True
        if node.index == no and node.index not in (condition, yes):
            return condition, False
    return gate


def _is_reduction(node: Node) -> bool:
    """Over the whole tensor, which ends a pass."""
    return node.op in REDUCTIONS and node.extent is Extent.SCALAR


class _Making:
    """Makes the passes of a graph, from the first to the last.

    Attributes:
        alive: the nodes that the outputs ask for.
        gates: for each node, the decision without which no user needs it; None if it is needed
            anyway.
        stage: see `Schedule`.
        left: the row sums that passes so far have left.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.alive, self.gates = gates_of(graph)
        self.stage: list[int] = []
        for node in self.nodes:
            self.stage.append(self._stage(node))
        self.left: set[int] = set()

    def _stage(self, node: Node) -> int:
        known = max((self.stage[a] for a in node.arguments), default=0)
        if not _is_reduction(node):
            return known
        gate = self.gates[node.index]
        # A sum that a decision may make needless waits for that decision.
        waits = gate is not None and gate[0] < node.index
        return 1 + max(known, self.stage[gate[0]] if gate is not None and waits else 0)

    def pass_after(self, p: int) -> Pass:
        """Pass `p`; the last one is that of the outputs."""
        nodes, stage = self.nodes, self.stage
        ended = [n for n in nodes if _is_reduction(n) and n.index in self.alive]
        reductions = tuple(enumerate(n for n in ended if stage[n.index] == p + 1))
        writes: list[tuple[str, Node]] = []
        gate = None
        if reductions:
            shared = {self.gates[n.index] for _, n in reductions}
            gate = shared.pop() if len(shared) == 1 else None
            gate = gate if gate is not None and stage[gate[0]] <= p else None
            roots = [a for _, n in reductions for a in n.arguments]
        else:
            outputs = [(name, nodes[i]) for name, i in self.graph.outputs.items()]
            outputs = [(name, n) for name, n in outputs if n.extent is not Extent.SCALAR]
            writes = [(name, n) for name, n in outputs if n is not self.graph.inputs[name]]
            roots = [n.index for _, n in outputs]
        level = self._levels(roots)
        read_back = level.keys() & self.left
        rows = tuple(nodes[i] for i in level if nodes[i].extent is Extent.ROW)
        full = tuple(nodes[i] for i in level if nodes[i].extent is Extent.FULL)
        if gate is None:
            self.left |= {n.index for n in rows if n.op == "sum"}
        of_rows = {n.index for n in rows}
        return Pass(
            reductions=reductions,
            row_totals=tuple((k, n) for k, n in reductions if n.arguments[0] in of_rows),
            writes=tuple(writes),
            gate=gate,
            rows=rows,
            full=full,
            read_back=read_back,
            level=level,
            loops=_loops(reductions, rows, full, read_back, level),
        )

    def _levels(self, roots: list[int]) -> dict[int, int]:
        """The level of the rows and entries that `roots` ask for, in order."""
        asked: set[int] = set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            if index in asked or self.nodes[index].extent is Extent.SCALAR:
                continue
            asked.add(index)
            if index not in self.left:
                pending.extend(self.nodes[index].arguments)
        level: dict[int, int] = {}
        for node in (self.nodes[index] for index in sorted(asked)):
            before = max((level.get(a, 0) for a in node.arguments), default=0)
            level[node.index] = 0 if node.index in self.left else before + (node.op == "sum")
        return level


def _loops(
    reductions: Numbered,
    rows: tuple[Node, ...],
    full: tuple[Node, ...],
    read_back: set[int],
    level: Mapping[int, int],
) -> tuple[Loop, ...]:
    entries = {n.index for n in full}
    sums = [n for n in rows if n.op == "sum" and n.index not in read_back]
    loops = []
    for number in range(2 + max((level[index] for index in entries), default=-1)):
        row_sums = tuple(n for n in sums if level[n.arguments[0]] == number)
        summed = {n.arguments[0]: n for n in reversed(row_sums)}
        here = {index for index in entries if level[index] == number}
        ended = [(k, n) for k, n in reductions if n.arguments[0] in here]
        shared = [(k, n) for k, n in ended if n.op == "sum" and n.arguments[0] in summed]
        loops.append(
            Loop(
                rows=tuple(n for n in rows if level[n.index] == number),
                row_sums=row_sums,
                totals=tuple(each for each in ended if each not in shared),
                from_rows=tuple((k, summed[n.arguments[0]]) for k, n in shared),
            )
        )
    return tuple(loops)
