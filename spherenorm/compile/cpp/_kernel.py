"""From a step's graph to one fused C++ kernel for a CPU.

The kernel walks over a weight as often as the schedule has passes. Within a pass it takes a row
(one index of dimension 0) at a time, in as many loops as the row's own sums ask for, while the row
stays in cache; the last pass writes weight and state in place. Sums are taken over fixed chunks in
a fixed order, so the result does not depend on the number of threads. `_prelude.hpp` and
`_driver.hpp` hold the parts that do not depend on the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from spherenorm.compile._graph import INPUTS, Extent, Node, StepGraph
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.compile._schedule import Operands, schedule
from spherenorm.compile.cpp._names import Names
from spherenorm.compile.cpp._pass import PrintedPass
from spherenorm.operations import REDUCTIONS

__all__ = ["KernelSource", "emit"]


@dataclass(frozen=True)
class KernelSource:
    """A kernel in C++.

    Attributes:
        text: exports `step(count, tensors, literals, numbers, threads)`.
        states: the states whose pointers follow those of weight and gradient in a tensor's
            description.
    """

    text: str
    states: tuple[str, ...]


def emit(graph: StepGraph, numbers: int) -> KernelSource:
    """The kernel of a graph whose first `numbers` arguments are hyper-parameters.

    Raises:
        UnsupportedRuleError: a state takes over another input's old value, which may be overwritten
            by then.
    """
    _refuse_swaps(graph)
    names = Names(graph, schedule(graph), Operands(graph))
    prelude, driver = (
        (resources.files(__package__) / name).read_text()
        for name in ("_prelude.hpp", "_driver.hpp")
    )
    passes = [PrintedPass(names, number) for number in range(len(names.plan.passes))]
    parts = [
        prelude,
        _sizes(names, passes),
        *(_scalars(names, stage, numbers) for stage in range(len(passes))),
        *(each.source() for each in passes),
        _flat(names),
        _wanted(names),
        _run(names),
        _advance(names),
        _finish(names),
        driver,
    ]
    return KernelSource("\n".join(parts), names.operands.states)


def _refuse_swaps(graph: StepGraph) -> None:
    """The kernel writes some results before it has read all old values.

    Raises:
        UnsupportedRuleError: a state takes over another input's old value, which may be overwritten
            by then.
    """
    for name, index in graph.outputs.items():
        node = graph.nodes[index]
        if node.op in INPUTS - {"grad"} and node is not graph.inputs[name]:
            raise UnsupportedRuleError(f"{name} takes over the old value of another input")


def _sizes(names: Names, passes: list[PrintedPass]) -> str:
    sizes = {
        "POINTERS": len(names.operands.place),
        "LITERALS": len(names.graph.literals),
        "SCALARS": len(names.nodes),
        "PASSES": len(passes),
        "SAVED": len(names.plan.saved),
        "SCRATCH": max(len(each.scratch) for each in passes),
        "REDUCTIONS": max([1, *(len(each.reductions) for each in names.plan.passes)]),
    }
    return f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};"


def _scalars(names: Names, stage: int, numbers: int) -> str:
    """The scalars that are known once `stage` passes are over, in double."""
    lines = []
    for node in names.nodes:
        if node.index in names.plan.scalars and names.plan.stage[node.index] == stage:
            lines.append(f"S[{node.index}] = {_scalar(names, node, numbers)};")
    arguments = "const int64_t* P, const double* L, const double* H, double* S"
    return _function(
        f"static void scalars{stage}({arguments})", ["(void)P; (void)L; (void)H;", *lines]
    )


def _scalar(names: Names, node: Node, numbers: int) -> str:
    if node.op == "number":
        given = node.detail < numbers
        return f"H[{node.detail}]" if given else f"L[{node.detail - numbers}]"
    if node.op == "state":
        return f"*reinterpret_cast<const double*>(P[{names.operands.place[node.detail]}])"
    return names.expression(node, Extent.SCALAR)


def _flat(names: Names) -> str:
    flat = ", ".join("true" if each.flat else "false" for each in names.plan.passes)
    return f"static const bool flat[PASSES] = {{{flat}}};"


def _wanted(names: Names) -> str:
    lines = [
        f"if (pass == {p}) return (S[{each.gate[0]}] != 0) == {str(each.gate[1]).lower()};"
        for p, each in enumerate(names.plan.passes)
        if each.gate is not None
    ]
    head = "static bool wanted(int pass, const double* S)"
    return _function(head, ["(void)pass; (void)S;", *lines, "return true;"])


def _run(names: Names) -> str:
    cases = [f"case {p}: pass{p}(part); break;" for p in range(len(names.plan.passes))]
    return _function(
        "static void run(int pass, const Part& part)", ["switch (pass) {", *cases, "}"]
    )


def _advance(names: Names) -> str:
    """The totals of a pass, then the scalars that they make known."""
    totals = []
    for p, each in enumerate(names.plan.passes):
        for k, n in each.reductions:
            row = REDUCTIONS[n.op]
            combine = row.cpp.format("total", f"partial[c * REDUCTIONS + {k}]")
            loop = f"for (int64_t c = 0; c < chunks; ++c) {combine}"
            total = "rounded(total)" if n.single else "total"
            totals.append(
                f"if (stage == {p + 1}) {{ double total = {row.start_cpp};"
                f" {loop} S[{n.index}] = {total}; }}"
            )
    cases = [
        f"case {stage}: scalars{stage}(P, L, H, S); break;"
        for stage in range(len(names.plan.passes))
    ]
    head = (
        "static void advance(int stage, const int64_t* P, const double* L, const double* H,"
        " double* S, const double* partial, int64_t chunks)"
    )
    lines = ["(void)partial; (void)chunks;", *totals, "switch (stage) {", *cases, "}"]
    return _function(head, lines)


def _finish(names: Names) -> str:
    writes = [
        f"*reinterpret_cast<double*>(P[{names.operands.place[name]}]) = S[{index}];"
        for name, index in names.graph.outputs.items()
        if name != "weight" and names.nodes[index].extent is Extent.SCALAR
    ]
    head = "static void finish(const int64_t* P, const double* S)"
    return _function(head, ["(void)P; (void)S;", *writes])


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([f"{head} {{", *lines, "}"])
