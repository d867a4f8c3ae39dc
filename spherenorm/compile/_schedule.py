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

from spherenorm.compile._graph import Extent, Node, StepGraph
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.operations import REDUCTIONS

__all__ = ["Gate", "Loop", "Operands", "Pass", "Schedule", "schedule"]

Gate = tuple[int, bool]
"""A decision, by its (scalar) node, and the value at which its pass is needed."""
Reductions = tuple[tuple[int, Node], ...]
"""Reductions over a whole tensor, each with its place among those of its pass."""


@dataclass(frozen=True)
class Loop:
    """One loop over the entries of a row, and what is known before it.

    Attributes:
        rows: the values per row that are computed or read before the loop; sums are there by then.
        row_sums: the sums over the row that the loop adds up.
        totals: the reductions over entries that it carries on.
        from_rows: the reductions that add up its row sums.
    """

    rows: tuple[Node, ...]
    row_sums: tuple[Node, ...]
    totals: Reductions
    from_rows: Reductions

    @property
    def reduced(self) -> list[int]:
        """The entries that it reduces."""
        return [n.arguments[0] for n in (*self.row_sums, *(n for _, n in self.totals))]

    def row_sum(self, total: Node) -> Node:
        """The row sum that a reduction `from_rows` adds up."""
        return next(n for n in self.row_sums if n.arguments == total.arguments)


@dataclass(frozen=True)
class Pass:
    """One walk over a weight.

    Attributes:
        reductions: the reductions that it makes; none in the last pass.
        writes: (output, node) of the values that it writes; only in the last pass.
        gate: the pass is needed only if this decision has this value; None if always.
        rows, full: the values per row and per entry that it computes or reads, in order.
        read_back: indices of the row sums among them that an earlier pass has left.
        level: for each of them, by index, the number of the row's own sums that it waits for; it
            belongs to the loop of that number.
        loops: in order; the last has only rows, which are known when all entries are.
    """

    reductions: Reductions
    writes: tuple[tuple[str, Node], ...]
    gate: Gate | None
    rows: tuple[Node, ...]
    full: tuple[Node, ...]
    read_back: frozenset[int]
    level: Mapping[int, int]
    loops: tuple[Loop, ...]

    @property
    def flat(self) -> bool:
        """True if no value belongs to a row, so that rows may be cut anywhere."""
        return not self.rows

    @property
    def nodes(self) -> list[int]:
        """The indices of rows and entries, in order."""
        return sorted(n.index for n in (*self.rows, *self.full))

    @property
    def row_totals(self) -> Reductions:
        """The reductions over rows."""
        return tuple(
            (k, n) for k, n in self.reductions if n.arguments[0] in {r.index for r in self.rows}
        )

    def outside(self, graph: StepGraph, users: Iterable[Node]) -> list[int]:
        """The scalars that `users` take."""
        asked = {a for n in users for a in n.arguments}
        return sorted(a for a in asked if graph.nodes[a].extent is Extent.SCALAR)


@dataclass(frozen=True)
class Schedule:
    """The passes of a step.

    Attributes:
        passes: in order.
        stage: for each node, the number of passes after which it can be known.
        scalars: the scalar nodes that the outputs ask for and that are no reductions.
        saved: row sums that one pass leaves to later ones, with their place among those.
    """

    passes: tuple[Pass, ...]
    stage: tuple[int, ...]
    scalars: frozenset[int]
    saved: dict[int, int]


def schedule(graph: StepGraph) -> Schedule:
    """The passes that the outputs of a graph ask for."""
    nodes = graph.nodes
    alive = _alive(graph)
    gates = _gates(graph, alive)
    stage = _stages(graph, gates)
    last = max(stage[index] for index in graph.outputs.values())
    saved: dict[int, int] = {}
    left: set[int] = set()
    passes: list[Pass] = []
    for p in range(last + 1):
        each = _pass(graph, alive, gates, stage, p, left)
        for index in sorted(each.read_back):
            saved.setdefault(index, len(saved))
        if each.gate is None:
            left |= {n.index for n in each.rows if n.op == "sum"}
        passes.append(each)
    scalars = frozenset(
        i for i in alive if nodes[i].extent is Extent.SCALAR and not _is_reduction(nodes[i])
    )
    return Schedule(tuple(passes), tuple(stage), scalars, saved)


def _pass(
    graph: StepGraph,
    alive: set[int],
    gates: list[Gate | None],
    stage: list[int],
    p: int,
    left: set[int],
) -> Pass:
    """Pass `p`, of which earlier ones have `left` row sums; the last one is that of the outputs."""
    nodes = graph.nodes
    targets = [
        n for n in nodes if _is_reduction(n) and n.index in alive and stage[n.index] == p + 1
    ]
    writes: list[tuple[str, Node]] = []
    gate = None
    if targets:
        shared = {gates[n.index] for n in targets}
        gate = shared.pop() if len(shared) == 1 else None
        gate = gate if gate is not None and stage[gate[0]] <= p else None
        roots = [a for n in targets for a in n.arguments]
    else:
        outputs = [(name, nodes[i]) for name, i in graph.outputs.items()]
        outputs = [(name, n) for name, n in outputs if n.extent is not Extent.SCALAR]
        writes = [(name, n) for name, n in outputs if n.index != graph.inputs[name].index]
        roots = [n.index for _, n in outputs]
    computed, read_back = _closure(graph, roots, left)
    level = _levels(graph, computed, read_back)
    reductions = tuple(enumerate(targets))
    rows = tuple(nodes[i] for i in sorted(computed) if nodes[i].extent is Extent.ROW)
    full = tuple(nodes[i] for i in sorted(computed) if nodes[i].extent is Extent.FULL)
    return Pass(
        reductions=reductions,
        writes=tuple(writes),
        gate=gate,
        rows=rows,
        full=full,
        read_back=frozenset(read_back),
        level=level,
        loops=_loops(reductions, rows, full, read_back, level),
    )


def _loops(
    reductions: Reductions,
    rows: tuple[Node, ...],
    full: tuple[Node, ...],
    read_back: set[int],
    level: Mapping[int, int],
) -> tuple[Loop, ...]:
    entries = {n.index for n in full}
    sums = [n for n in rows if n.op == "sum" and n.index not in read_back]
    loops = []
    for number in range(2 + max((level[n.index] for n in full), default=-1)):
        row_sums = tuple(n for n in sums if level[n.arguments[0]] == number)
        summed = {n.arguments[0] for n in row_sums}
        ended = [
            (k, n)
            for k, n in reductions
            if n.arguments[0] in entries and level[n.arguments[0]] == number
        ]
        from_rows = tuple((k, n) for k, n in ended if n.op == "sum" and n.arguments[0] in summed)
        loops.append(
            Loop(
                rows=tuple(n for n in rows if level[n.index] == number),
                row_sums=row_sums,
                totals=tuple(each for each in ended if each not in from_rows),
                from_rows=from_rows,
            )
        )
    return tuple(loops)


class Operands:
    """The tensors that a step works on, in the order of their pointers: weight, gradient, states.

    Attributes:
        states: the states' names.
        place: of each tensor, by name.
        old: the node of each tensor's value before the step.

    Raises:
        UnsupportedRuleError: a new value has another extent than the tensor (a state set to one
            number).
    """

    def __init__(self, graph: StepGraph) -> None:
        self.states = tuple(name for name in graph.outputs if name != "weight")
        self.place = {name: place for place, name in enumerate(("weight", "grad", *self.states))}
        self.old = graph.inputs
        for name, index in graph.outputs.items():
            if graph.nodes[index].extent is not self.old[name].extent:
                raise UnsupportedRuleError(f"the new {name} has one value for many")


def _is_reduction(node: Node) -> bool:
    """Over the whole tensor, which ends a pass."""
    return node.op in REDUCTIONS and node.extent is Extent.SCALAR


def _alive(graph: StepGraph) -> set[int]:
    alive = set(graph.outputs.values())
    for node in reversed(graph.nodes):
        if node.index in alive:
            alive.update(node.arguments)
    return alive


def _gates(graph: StepGraph, alive: set[int]) -> list[Gate | None]:
    """For each node, the decision without which no user needs it; None if it is needed anyway."""
    users: list[list[Node]] = [[] for _ in graph.nodes]
    for index in alive:
        for argument in graph.nodes[index].arguments:
            users[argument].append(graph.nodes[index])
    gates: list[Gate | None] = [None] * len(graph.nodes)
    for node in reversed(graph.nodes):
        asked = {_gate_of_use(graph, node, user, gates[user.index]) for user in users[node.index]}
        if len(asked) == 1 and node.index not in graph.outputs.values():
            gates[node.index] = asked.pop()
    return gates


def _gate_of_use(graph: StepGraph, node: Node, user: Node, gate: Gate | None) -> Gate | None:
    if user.op == "where" and graph.nodes[user.arguments[0]].extent is Extent.SCALAR:
        condition, yes, no = user.arguments
        if node.index == yes and node.index not in (condition, no):
            return condition, True
        if node.index == no and node.index not in (condition, yes):
            return condition, False
    return gate


def _stages(graph: StepGraph, gates: list[Gate | None]) -> list[int]:
    stage: list[int] = []
    for node in graph.nodes:
        known = max((stage[a] for a in node.arguments), default=0)
        if _is_reduction(node):
            gate = gates[node.index]
            # A sum that a decision may make needless waits for that decision.
            known = 1 + max(
                known, stage[gate[0]] if gate is not None and gate[0] < node.index else 0
            )
        stage.append(known)
    return stage


def _closure(graph: StepGraph, roots: list[int], left: set[int]) -> tuple[set[int], set[int]]:
    """The rows and entries that `roots` ask for, and the row sums among them that were `left`."""
    closure: set[int] = set()
    pending = list(roots)
    while pending:
        index = pending.pop()
        if index in closure or graph.nodes[index].extent is Extent.SCALAR:
            continue
        closure.add(index)
        if index not in left:
            pending.extend(graph.nodes[index].arguments)
    return closure, closure & left


def _levels(graph: StepGraph, computed: set[int], read_back: set[int]) -> dict[int, int]:
    level: dict[int, int] = {}
    for index in sorted(computed):
        node = graph.nodes[index]
        if index in read_back:
            level[index] = 0
        else:
            level[index] = max((level.get(a, 0) for a in node.arguments), default=0) + (
                node.op == "sum"
            )
    return level
