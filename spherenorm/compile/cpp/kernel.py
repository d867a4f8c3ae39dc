"""From a step's graph to one fused C++ kernel for a CPU.

The kernel walks over a weight as often as the schedule has passes. Within a pass it takes a row
(one index of dimension 0) at a time, in as many loops as the row's own sums ask for, while the row
stays in cache; the last pass writes weight and state in place. Sums are taken over fixed chunks in
a fixed order, so the result does not depend on the number of threads. `prelude.hpp` and
`driver.hpp` hold the parts that do not depend on the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
import torch

from spherenorm.compile.cpp.build import Step, load_step, threads
from spherenorm.compile.cpp.printed_pass import CppWords, PrintedPass
from spherenorm.compile.graph import INPUTS, StepGraph
from spherenorm.compile.key import UnsupportedRuleError
from spherenorm.compile.schedule import Schedule, schedule
from spherenorm.operations import REDUCTIONS

Array = np.ndarray[Any, np.dtype[Any]]

TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bfloat16"),
}
"""The types in which a kernel computes, and in which it stores weights."""


@dataclass(frozen=True)
class CppKernel:
    """A kernel in C++; those of one source are equal.

    Attributes:
        source: exports `step(count, tensors, literals, numbers, threads)`.
        defines: the compiler's, of the types.
        states: the states whose pointers follow those of weight and gradient.
    """

    source: str
    defines: tuple[str, ...]
    states: tuple[str, ...]
    step: Step = field(compare=False, repr=False)
    name = "C++ kernel"

    def __call__(self, tensors: Array, literals: Array, numbers: Array) -> None:
        """Step many weights in place.

        Args:
            tensors: int64, for each weight the pointers of weight, gradient and `states`, its rows
                and its columns.
            literals: float64, of each weight's graph.
            numbers: float64, the rule's.

        Raises:
            MemoryError: for scratch; nothing is written then.
        """
        places = [each.ctypes.data for each in (tensors, literals, numbers)]
        if self.step(len(tensors), *places, threads()):
            raise MemoryError(f"no memory for the scratch of a step of {len(tensors)} weights")


def kernel(graph: StepGraph, numbers: int, dtype: torch.dtype) -> CppKernel:
    """The kernel of a graph whose first `numbers` arguments are hyper-parameters, compiled.

    Raises:
        BuildError: there is no compiler, or it refuses the kernel.
        UnsupportedRuleError: no kernel stores the dtype, or a state takes over another input's old
            value, which may be overwritten by then.
    """
    if dtype not in TYPES:
        raise UnsupportedRuleError(f"C++ kernels take no {dtype}")
    for name, index in graph.outputs.items():
        node = graph.nodes[index]
        if node.op in INPUTS - {"grad"} and node is not graph.inputs[name]:
            raise UnsupportedRuleError(f"{name} takes over the old value of another input")
    plan = schedule(graph)
    words = CppWords(plan)
    files = (resources.files(__package__) / name for name in ("prelude.hpp", "driver.hpp"))
    prelude, driver = (file.read_text(encoding="utf-8") for file in files)
    passes = [PrintedPass(words, number) for number in range(len(plan.passes))]
    parts = [
        prelude,
        _sizes(plan, max(len(each.scratch) for each in passes)),
        *(each.source() for each in passes),
        *_choices(plan),
        *_function(
            "static void advance(int stage, const int64_t* P, const double* L, const double* H,"
            " double* S, const double* partial, int64_t chunks)",
            *["(void)P; (void)L; (void)H; (void)partial; (void)chunks;", "switch (stage) {"],
            *(line for stage in range(len(passes)) for line in _stage(words, stage, numbers)),
            "}",
        ),
        *_function(
            "static void finish(const int64_t* P, const double* S)",
            "(void)P; (void)S;",
            *(
                f"*reinterpret_cast<double*>(P[{plan.place[name]}]) = S[{index}];"
                for name, index in plan.counters.items()
            ),
        ),
        driver,
    ]
    real, stored = TYPES[dtype]
    defines = (f"-DREAL={real}", f"-DSTORED={stored}")
    source = "\n".join(parts)
    return CppKernel(source, defines, plan.states, load_step(source, defines))


def _sizes(plan: Schedule, scratch: int) -> str:
    sizes = {
        "POINTERS": len(plan.place),
        "LITERALS": len(plan.graph.literals),
        "SCALARS": len(plan.graph.nodes),
        "PASSES": len(plan.passes),
        "SAVED": len(plan.saved),
        "SCRATCH": scratch,
        "REDUCTIONS": plan.reductions,
    }
    return f"enum {{ {', '.join(f'{name} = {size}' for name, size in sizes.items())} }};"


def _choices(plan: Schedule) -> list[str]:
    """Of each pass: whether it is flat, whether it is wanted, and its function."""
    flat = ", ".join(str(each.flat).lower() for each in plan.passes)
    wanted = [
        f"if (pass == {p}) return (S[{each.gate[0]}] != 0) == {str(each.gate[1]).lower()};"
        for p, each in enumerate(plan.passes)
        if each.gate is not None
    ]
    cases = [f"case {p}: pass{p}(part); break;" for p in range(len(plan.passes))]
    return [
        f"static const bool flat[PASSES] = {{{flat}}};",
        *_function(
            "static bool wanted(int pass, const double* S)",
            *["(void)pass; (void)S;", *wanted, "return true;"],
        ),
        *_function("static void run(int pass, const Part& part)", "switch (pass) {", *cases, "}"),
    ]


def _stage(words: CppWords, stage: int, numbers: int) -> list[str]:
    """The totals of the pass before a stage, then the scalars that they make known, in double."""
    out = [f"case {stage}:"]
    for k, n in words.plan.passes[stage - 1].reductions if stage else ():
        row = REDUCTIONS[n.op]
        combine = row.cpp.format("total", f"partial[c * REDUCTIONS + {k}]")
        loop = f"for (int64_t c = 0; c < chunks; ++c) {combine}"
        total = "rounded(total)" if n.single else "total"
        out.append(f"{{ double total = {row.start}; {loop} S[{n.index}] = {total}; }}")
    for n in words.plan.scalars_of(stage):
        out.append(f"S[{n.index}] = {words.source_of_scalar(n, numbers)};")
    return [*out, "break;"]


def _function(head: str, *lines: str) -> list[str]:
    return [f"{head} {{", *lines, "}"]
