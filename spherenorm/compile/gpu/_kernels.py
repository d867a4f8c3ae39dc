"""From a step's graph to Triton kernels that step many weights of a GPU together.

A batch is all weights that share a kernel. For every stage of the schedule there are two launches,
whatever the number of weights: `advanceN`, one program per weight, adds up what pass N - 1 has
left, in a fixed order, and computes the scalars that are known from there on; `passN`, one program
per tile of a weight, does the walking. Scalars stay on the device, in float64, in a row of S per
weight; a pass that a decision makes needless returns at once. The host waits for nothing.
`_prelude.py` holds the parts that do not depend on the recipe, `_launch.py` the launching.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.compile._schedule import schedule
from spherenorm.compile.gpu._pass import PrintedPass, function
from spherenorm.compile.gpu._words import TritonWords, rounded
from spherenorm.operations import REDUCTIONS

DTYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
}
"""Those of weights and gradients; half precision is computed with in float32."""


@dataclass(frozen=True)
class KernelSource:
    """Kernels in Triton.

    Attributes:
        text: a Python module with the kernels `advance0`, `pass0`, `advance1`, ..., in the order of
            their launches.
        states: the states whose pointers follow those of weight and gradient.
        flat: for each pass, true if its tiles are runs of entries.
        scalars: the number of float64 values per weight; saved: per row; reductions: per program.
    """

    text: str
    states: tuple[str, ...]
    flat: tuple[bool, ...]
    scalars: int
    saved: int
    reductions: int


def emit(graph: StepGraph, numbers: int, dtype: torch.dtype) -> KernelSource:
    """The kernels of a graph whose first `numbers` arguments are hyper-parameters.

    Raises:
        UnsupportedRuleError: naming the operation or the dtype.
    """
    if dtype not in DTYPES:
        raise UnsupportedRuleError(f"weights of {dtype}")
    plan = schedule(graph)
    words = TritonWords(plan, DTYPES[dtype])
    text = [
        "import triton",
        "import triton.language as tl",
        "",
        "from spherenorm.compile.gpu._prelude import log1p, power, total_any, total_sum, totals",
    ]
    for stage in range(len(plan.passes)):
        text += [*_advance(words, stage, numbers), *PrintedPass(words, stage).source()]
    return KernelSource(
        text="\n".join([*text, ""]),
        states=plan.states,
        flat=tuple(each.flat for each in plan.passes),
        scalars=len(graph.nodes),
        saved=len(plan.saved),
        reductions=plan.reductions,
    )


def _advance(words: TritonWords, stage: int, numbers: int) -> list[str]:
    """The scalars that are known after `stage` passes; the last stage writes scalar states."""
    nodes, plan = words.nodes, words.plan
    out = [
        "@triton.jit",
        f"def advance{stage}(pointers, shape, literals, numbers, S, partial):",
        "tensor = tl.program_id(0)",
        *words.of_tensor(),
        f"literals += tensor * {len(plan.graph.literals)}",
    ]
    known: dict[int, str] = {}
    if stage > 0:
        out += _share(words, stage - 1)
        for k, n in plan.passes[stage - 1].reductions:
            total = f"total_{n.op}(partial + {k}, count, {plan.reductions})"
            known[n.index] = rounded(total) if n.single else total
    known |= {n.index: words.source_of_scalar(n, numbers) for n in plan.scalars_of(stage)}
    writes = plan.counters if stage == len(plan.passes) - 1 else {}
    asked = {a for i in known if nodes[i].op not in REDUCTIONS for a in nodes[i].arguments}
    asked |= {*writes.values()}
    out += [f"s{index} = {words.known(index)}" for index in sorted(asked - known.keys())]
    for index, value in known.items():
        double = ".to(tl.float64)" if nodes[index].boolean else ""
        out += [f"s{index} = {value}", f"tl.store(S + {index}, s{index}{double})"]
    if writes:
        # Every warp has read the old values before one of them writes the new.
        out.append("tl.debug_barrier()")
    out += [f"tl.store({words.pointer(name, 'tl.float64')}, s{i})" for name, i in writes.items()]
    return function(out)


def _share(words: TritonWords, p: int) -> list[str]:
    """The place and the number of the programs of pass `p` for this weight."""
    before = words.plan.passes[p]
    tiling = "flat" if before.flat else "tile"
    out = [
        f"partial += {words.at(f'{tiling}_first')} * {words.plan.reductions}",
        f"count = {words.at(f'{tiling}_count')}",
    ]
    if before.gate is not None:
        out.append(f"count = tl.where({words.wanted(before.gate)}, count, 0)")
    return out
