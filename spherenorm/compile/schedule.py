"""When a step's values can be known: the passes that a kernel makes over a weight.

A tensor-wide reduction ends a pass, since what depends on it has to wait for all rows. All passes but the last only
reduce; the last one computes everything else and writes. A pass recomputes what it needs from the inputs, except for sums
over rows that an earlier pass has left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spherenorm.compile.graph import Extent, Node, StepGraph
from spherenorm.compile.guard import UnsupportedRuleError

__all__ = ["REDUCTIONS", "Gate", "Operands", "Pass", "Schedule", "schedule"]

REDUCTIONS = {"sum", "any", "all"}
Gate = tuple[int, bool]
"""A decision, by its (scalar) node, and which way it has to fall."""


@dataclass(frozen=True)
class Pass:
    """One walk over a weight.

    Attributes:
        targets: the reductions it makes; of the last pass, the outputs that are not scalars.
        gate: unless this decision has fallen so, nobody needs the pass; None if it is always needed.
        nodes: the rows and entries that it computes or reads, in order.
        read_back: those among them that are row sums which an earlier pass has left.
        level: for each of `nodes`, how many of the row's own sums have to be complete before it; what is of level l is
            computed in loop l over the row.
    """

    targets: tuple[Node, ...]
    gate: Gate | None
    nodes: tuple[int, ...]
    read_back: frozenset[int]
    level: Mapping[int, int]


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
    passes: list[Pass] = []
    saved: dict[int, int] = {}
    left: set[int] = set()
    for p in range(last + 1):
        if p < last:
            targets = tuple(
                n
                for n in nodes
                if _is_reduction(n) and n.index in alive and stage[n.index] == p + 1
            )
            roots = [a for n in targets for a in n.arguments]
            shared = {gates[n.index] for n in targets}
            gate = shared.pop() if len(shared) == 1 else None
            gate = gate if gate is not None and stage[gate[0]] <= p else None
        else:
            targets = tuple(
                nodes[i] for i in graph.outputs.values() if nodes[i].extent is not Extent.SCALAR
            )
            roots, gate = [n.index for n in targets], None
        computed, read_back = _closure(graph, roots, left)
        for index in sorted(read_back):
            saved.setdefault(index, len(saved))
        if gate is None:
            left |= {i for i in computed if nodes[i].op == "sum" and nodes[i].extent is Extent.ROW}
        passes.append(
            Pass(
                targets,
                gate,
                tuple(sorted(computed)),
                frozenset(read_back),
                _levels(graph, computed, read_back),
            )
        )
    scalars = frozenset(
        i for i in alive if nodes[i].extent is Extent.SCALAR and not _is_reduction(nodes[i])
    )
    return Schedule(tuple(passes), tuple(stage), scalars, saved)


class Operands:
    """The tensors that a step works on, in the order of their pointers: weight, gradient, states.

    Attributes:
        states: the states' names.
        place: of each tensor, by name.
        old: the node of each tensor's value before the step.

    Raises:
        UnsupportedRuleError: a new value has another extent than the tensor (a state set to one number).
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
    """For each node, the decision without which none of its users needs it; None if it is needed anyway."""
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
    """What has to be computed or read for `roots`, and which of it are row sums that were `left` by an earlier pass."""
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
