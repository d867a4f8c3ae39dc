"""Stage 3, schedule: the passes that a kernel makes over a weight, and the loops of each pass.

A reduction over the whole tensor ends a pass, since what depends on it has to wait for all rows.
All passes but the last only reduce; the last one computes everything else and writes. A pass
computes what it needs from the inputs anew, except for sums over rows that an earlier pass has
saved. Within a pass, a sum over a row ends a loop over its entries.

Outputs that no step reads (`StepGraph.watched`) have passes of their own before the last one. A
compiler may order the sums of a loop by what else the loop has, so their reductions stay out of the
loops of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spherenorm.compile.graph import Extent, Node, StepGraph
from spherenorm.operations import REDUCTIONS
from spherenorm.record import Unsupported

Gate = tuple[int, bool]
"""A scalar boolean node, by its index, and the value at which a pass is needed."""
IndexedNodes = tuple[tuple[int, Node], ...]
"""Reductions over a whole tensor, each with its index among those of its pass."""


@dataclass(frozen=True)
class Loop:
    """A loop over the entries of a row, and what is computed before it.

    Attributes:
        rows: values per row that are computed or read before the loop. Sums over the row among
            them come from an earlier loop.
        row_sums: sums over the row that the loop accumulates.
        totals: reductions of entries over the whole tensor that it accumulates.
        totals_of_row_sums: reductions over the whole tensor that add up one of `row_sums`.
    """

    rows: tuple[Node, ...]
    row_sums: tuple[Node, ...]
    totals: IndexedNodes
    totals_of_row_sums: IndexedNodes

    @property
    def reduced(self) -> list[int]:
        """The indices of the entries that the loop reduces."""
        reductions = (*self.row_sums, *(n for _, n in self.totals))
        return [n.arguments[0] for n in reductions]


@dataclass(frozen=True)
class Pass:
    """A walk over a weight.

    Attributes:
        reductions: over the whole tensor; none in the last pass.
        row_totals: the reductions whose argument is a value per row.
        writes: (output name, node) of the values that it writes; only in the last pass.
        gate: the pass is needed only if this node has this value; None if always.
        rows, full: the values per row and per entry that it computes or reads, in order.
        read_back: indices of row sums that an earlier pass has saved.
        level: for each of these nodes, by index, the number of the row's own sums that it waits
            for; it belongs to the loop of that number.
        loops: in order; the last one has rows only, which are known after all entries.
    """

    reductions: IndexedNodes
    row_totals: IndexedNodes
    writes: tuple[tuple[str, Node], ...]
    gate: Gate | None
    rows: tuple[Node, ...]
    full: tuple[Node, ...]
    read_back: set[int]
    level: Mapping[int, int]
    loops: tuple[Loop, ...]

    @property
    def flat(self) -> bool:
        """True if no value belongs to a row, so that the entries may be cut anywhere."""
        return not self.rows

    def writes_of(self, extent: Extent) -> list[tuple[str, Node]]:
        """List the writes of one extent."""
        return [(name, n) for name, n in self.writes if n.extent is extent]

    def is_used_by_entries(self, index: int) -> bool:
        """Return whether a value per entry takes this value."""
        return any(index in n.arguments for n in self.full)


@dataclass(frozen=True)
class Schedule:
    """The passes of a step, and the tensors that it works on.

    Attributes:
        graph: of the step.
        pointer_index: the index of each tensor's pointer, by name: weight, gradient, states.
        passes: in order.
        passes_before: for each node, the number of passes after which it can be known.
        scalars: the scalar nodes that the outputs depend on, without reductions.
        saved: row sums that one pass saves for later ones, each with its index among those.
    """

    graph: StepGraph
    pointer_index: Mapping[str, int]
    passes: tuple[Pass, ...]
    passes_before: tuple[int, ...]
    scalars: tuple[Node, ...]
    saved: Mapping[int, int]

    @property
    def states(self) -> tuple[str, ...]:
        """The states' names, in the order of their pointers."""
        return tuple(self.pointer_index)[2:]

    @property
    def max_reductions(self) -> int:
        """The largest number of reductions of a pass, or 1."""
        return max([1, *(len(pass_.reductions) for pass_ in self.passes)])

    @property
    def counters(self) -> dict[str, int]:
        """The node of the new value of each state of one number, by the state's name."""
        nodes, outputs = self.graph.nodes, self.graph.outputs
        new_values = {name: outputs[name] for name in self.states}
        return {n: i for n, i in new_values.items() if nodes[i].extent is Extent.SCALAR}

    def scalars_of(self, stage: int) -> list[Node]:
        """List the scalars that are known after so many passes, and not before."""
        return [n for n in self.scalars if self.passes_before[n.index] == stage]

    def scalar_arguments(self, users: Iterable[Node]) -> list[int]:
        """List the indices of the scalars that `users` take."""
        indices = {index for n in users for index in n.arguments}
        return sorted(i for i in indices if self.graph.nodes[i].extent is Extent.SCALAR)

    def saved_by(self, pass_: Pass) -> list[int]:
        """List the indices of the row sums that a pass saves for later ones."""
        return [i for i in self.saved if i in pass_.level and i not in pass_.read_back]


def schedule(graph: StepGraph) -> Schedule:
    """Return the passes that the outputs of a graph need.

    Raises:
        Unsupported: a new value has another extent than the tensor (a state set to one number).
    """
    for name, index in graph.outputs.items():
        if graph.nodes[index].extent is not graph.inputs[name].extent:
            raise Unsupported(f"the new {name} has one value for many")
    scheduler = _Scheduler(graph)
    n_passes = 1 + max(scheduler.passes_before[index] for index in graph.outputs.values())
    passes = tuple(scheduler.next_pass(i) for i in range(n_passes))
    names = ["weight", "grad", *(name for name in graph.outputs if name != "weight")]
    live_scalars = [
        n for n in graph.nodes if n.index in scheduler.alive and n.extent is Extent.SCALAR
    ]
    read_back = dict.fromkeys(index for pass_ in passes for index in sorted(pass_.read_back))
    return Schedule(
        graph=graph,
        pointer_index={name: i for i, name in enumerate(names)},
        passes=passes,
        passes_before=tuple(scheduler.passes_before),
        scalars=tuple(n for n in live_scalars if not _is_reduction(n)),
        saved={index: i for i, index in enumerate(read_back)},
    )


def find_gates(graph: StepGraph) -> tuple[set[int], list[Gate | None]]:
    """Find the nodes that the outputs depend on, and the condition under which each is needed.

    Returns:
        The indices of the live nodes; and for each node the gate without which no user needs it,
        or None if it is needed anyway, as those of watched outputs are.
    """
    nodes, outputs = graph.nodes, set(graph.outputs.values())
    read = graph.nodes_of(graph.outputs.keys() - graph.watched)
    users = [list[Node]() for _ in nodes]
    for node in nodes:
        if node.index in read:
            for argument in node.arguments:
                users[argument].append(node)
    gates: list[Gate | None] = [None] * len(nodes)
    for node in reversed(nodes):
        gates_of_uses = {
            _gate_of_use(nodes, node, user, gates[user.index]) for user in users[node.index]
        }
        if len(gates_of_uses) == 1 and node.index not in outputs:
            gates[node.index] = gates_of_uses.pop()
    return read | graph.nodes_of(graph.watched), gates


def _gate_of_use(nodes: list[Node], node: Node, user: Node, gate: Gate | None) -> Gate | None:
    """Return the gate of `node` as an argument of `user`, whose own gate is `gate`."""
    if user.op == "where" and nodes[user.arguments[0]].extent is Extent.SCALAR:
        condition, if_true, if_false = user.arguments
        if node.index == if_true and node.index not in (condition, if_false):
            return condition, True
        if node.index == if_false and node.index not in (condition, if_true):
            return condition, False
    return gate


def _is_reduction(node: Node) -> bool:
    """Return whether a node reduces the whole tensor, which ends a pass."""
    return node.op in REDUCTIONS and node.extent is Extent.SCALAR


class _Scheduler:
    """Makes the passes of a graph, from the first to the last.

    Attributes:
        alive: indices of the nodes that the outputs depend on.
        gates: for each node the gate without which it is not needed, or None.
        read: indices of the nodes that outputs which a step reads depend on.
        passes_before: see `Schedule`.
        n_read_passes: how many passes reduce for these nodes; the others come after them.
        saved: the row sums that the passes so far have saved.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.alive, self.gates = find_gates(graph)
        self.read = graph.nodes_of(graph.outputs.keys() - graph.watched)
        self.passes_before: list[int] = []
        self.n_read_passes = 0
        for node in self.nodes:  # nodes of watched outputs alone are the last ones
            self.passes_before.append(self._stage_of(node))
            if node.index in self.read:
                self.n_read_passes = max(self.n_read_passes, self.passes_before[-1])
        self.saved: set[int] = set()

    def _stage_of(self, node: Node) -> int:
        of_arguments = max((self.passes_before[a] for a in node.arguments), default=0)
        if not _is_reduction(node):
            return of_arguments
        if node.index not in self.read:
            return 1 + max(of_arguments, self.n_read_passes)
        # A reduction that a decision may make needless waits for that decision.
        gate = self.gates[node.index]
        if gate is not None and gate[0] < node.index:
            return 1 + max(of_arguments, self.passes_before[gate[0]])
        return 1 + of_arguments

    def next_pass(self, number: int) -> Pass:
        """Return pass `number`; the last one is that of the outputs."""
        nodes, passes_before = self.nodes, self.passes_before
        reductions = tuple(
            enumerate(
                n
                for n in nodes
                if _is_reduction(n)
                and n.index in self.alive
                and passes_before[n.index] == number + 1
            )
        )
        writes: list[tuple[str, Node]] = []
        gate = None
        if reductions:
            gate = self._common_gate(reductions, number)
            roots = [a for _, n in reductions for a in n.arguments]
        else:
            outputs = [(name, nodes[i]) for name, i in self.graph.outputs.items()]
            outputs = [(name, n) for name, n in outputs if n.extent is not Extent.SCALAR]
            writes = [(name, n) for name, n in outputs if n is not self.graph.inputs[name]]
            roots = [n.index for _, n in outputs]
        level = self._levels(roots)
        read_back = level.keys() & self.saved
        rows = tuple(nodes[i] for i in level if nodes[i].extent is Extent.ROW)
        full = tuple(nodes[i] for i in level if nodes[i].extent is Extent.FULL)
        if gate is None and number < self.n_read_passes:
            self.saved |= {n.index for n in rows if n.op == "sum"}
        row_indices = {n.index for n in rows}
        return Pass(
            reductions=reductions,
            row_totals=tuple((k, n) for k, n in reductions if n.arguments[0] in row_indices),
            writes=tuple(writes),
            gate=gate,
            rows=rows,
            full=full,
            read_back=read_back,
            level=level,
            loops=_loops(reductions, rows, full, read_back, level),
        )

    def _common_gate(self, reductions: IndexedNodes, number: int) -> Gate | None:
        """Return the gate that all reductions of a pass share, if it is known before the pass."""
        gates = {self.gates[n.index] for _, n in reductions}
        gate = gates.pop()
        if gates or gate is None or self.passes_before[gate[0]] > number:
            return None
        return gate

    def _levels(self, roots: list[int]) -> dict[int, int]:
        """Return the level of the rows and entries that `roots` depend on, in order."""
        needed: set[int] = set()
        pending = list(roots)
        while pending:
            index = pending.pop()
            if index in needed or self.nodes[index].extent is Extent.SCALAR:
                continue
            needed.add(index)
            if index not in self.saved:
                pending.extend(self.nodes[index].arguments)
        level: dict[int, int] = {}
        for index in sorted(needed):
            node = self.nodes[index]
            of_arguments = max((level.get(a, 0) for a in node.arguments), default=0)
            level[index] = 0 if index in self.saved else of_arguments + (node.op == "sum")
        return level


def _loops(
    reductions: IndexedNodes,
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
        sum_of_entry = {n.arguments[0]: n for n in reversed(row_sums)}
        totals, totals_of_row_sums = [], []
        for k, n in reductions:
            entry = n.arguments[0]
            if entry not in entries or level[entry] != number:
                continue
            if n.op == "sum" and entry in sum_of_entry:
                totals_of_row_sums.append((k, sum_of_entry[entry]))
            else:
                totals.append((k, n))
        loops.append(
            Loop(
                rows=tuple(n for n in rows if level[n.index] == number),
                row_sums=row_sums,
                totals=tuple(totals),
                totals_of_row_sums=tuple(totals_of_row_sums),
            )
        )
    return tuple(loops)
