"""The step of a graph by torch's own operations, a block of rows at a time.

Run as it is written, a rule makes a new tensor of the weight's size at each operation, and most of
its time goes into fetching memory. Here each intermediate lives in one of a few buffers of `BLOCK`
entries that stay in cache, a new state is written where the old one lay, a scaled sum is one
operation, and what a decision has made needless is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import working_dtype
from spherenorm.compile._graph import Extent, Node, StepGraph
from spherenorm.compile._schedule import schedule
from spherenorm.compile.blocks._planner import PlannedPass, plan_pass
from spherenorm.compile.blocks._printer import make_function, scalar_expression
from spherenorm.compile.blocks._values import Facts
from spherenorm.operations import REDUCTIONS

__all__ = ["BlockedStep"]

BLOCK = 524288
"""Entries of a block: many enough to hide the cost of a call, few enough to stay in cache."""


class BlockedStep:
    """The step of a graph, for the shape and dtype that it was recorded with.

    Args:
        numbers: how many of the graph's arguments are hyper-parameters, the first ones.
        dtype: of the weight.
    """

    def __init__(self, graph: StepGraph, numbers: int, dtype: torch.dtype) -> None:
        self.graph, self.plan, self.numbers = graph, schedule(graph), numbers
        self.names = [
            name for name, node in graph.inputs.items() if node.extent is not Extent.SCALAR
        ]
        self.work = working_dtype(dtype)
        self.facts = Facts(graph, self.plan, tuple(self.names), dtype, self.work)
        self.counters = [
            (name, index) for name, index in graph.outputs.items() if name not in self.names
        ]
        self.literals = np.array(graph.literals)
        choices = [n for n in graph.nodes if n.op == "where" and n.extent is not Extent.SCALAR]
        decisions = sorted(
            {n.arguments[0] for n in choices if graph.nodes[n.arguments[0]].extent is Extent.SCALAR}
        )
        stages = range(len(self.plan.passes))
        self.decisions = [[c for c in decisions if self.plan.stage[c] <= p] for p in stages]
        self.scalars = [
            make_function("scalars", "S, H, L, state", self._scalars(stage)) for stage in stages
        ]
        self._plans: dict[tuple[int, tuple[bool, ...]], PlannedPass] = {}

    def __call__(
        self,
        weight: Tensor,
        grad: Tensor,
        state: Mapping[str, Tensor],
        numbers: np.ndarray[Any, Any],
    ) -> None:
        """Step `weight` and `state` in place; the rows of all lie in one order in memory."""
        rows = weight.shape[0] if weight.ndim > 1 else 1
        given = {"weight": weight, "grad": grad, **state}
        whole = [_as_rows(given[name], rows) for name in self.names]
        whole += [whole[0].new_empty((rows, 1), dtype=self.work) for _ in self.plan.saved]
        scalars: list[Any] = [None] * len(self.graph.nodes)
        with np.errstate(all="ignore"):
            for p, each in enumerate(self.plan.passes):
                self.scalars[p](scalars, numbers, self.literals, state)
                targets = [n for _, n in each.reductions]
                totals = [REDUCTIONS[n.op].start for n in targets]
                if weight.numel() and (
                    each.gate is None or bool(scalars[each.gate[0]]) is each.gate[1]
                ):
                    for parts in self._parts(self._planned(p, scalars), scalars, whole):
                        totals = [
                            REDUCTIONS[n.op].combine(total, part)
                            for n, total, part in zip(targets, totals, parts, strict=True)
                        ]
                for n, total in zip(targets, totals, strict=True):
                    scalars[n.index] = rounded(total, n) if n.op == "sum" else total
        for name, index in self.counters:
            state[name].fill_(scalars[index])

    def _parts(
        self, planned: PlannedPass, scalars: Sequence[Any], whole: Sequence[Tensor]
    ) -> Iterator[Sequence[Any]]:
        """The share of one block after another in the reductions."""
        buffers: list[Tensor] = []
        for block in _blocks(whole, planned.flat):
            if not buffers:  # the first block is the largest
                buffers = [
                    torch.empty_like(block[0], dtype=self.work) for _ in range(planned.buffers)
                ]
            elif len(block[0]) < len(buffers[0]):
                buffers = [each[: len(block[0])] for each in buffers]
            yield planned.function(scalars, block, buffers)

    def _planned(self, p: int, scalars: Sequence[Any]) -> PlannedPass:
        """Pass `p`, planned when its decisions first fall so."""
        fallen = tuple([bool(scalars[c]) for c in self.decisions[p]])
        if (p, fallen) not in self._plans:
            decisions = dict(zip(self.decisions[p], fallen, strict=True))
            self._plans[p, fallen] = plan_pass(self.facts, p, decisions)
        return self._plans[p, fallen]

    def _scalars(self, stage: int) -> Iterator[str]:
        """The scalars that are known once `stage` passes are over."""
        for node in self.graph.nodes:
            if node.index not in self.plan.scalars or self.plan.stage[node.index] != stage:
                continue
            if node.op == "number":
                value = (
                    f"H[{node.detail}]"
                    if node.detail < self.numbers
                    else f"L[{node.detail - self.numbers}]"
                )
            elif node.op == "state":
                value = f"np.float64(state[{node.detail!r}].item())"
            else:
                value = scalar_expression(node)
            yield f"S[{node.index}] = {value}"


def rounded(total: float, node: Node) -> np.float64:
    """A sum as the rule's own code has it, which may be infinite in float32 only."""
    value: np.float64 = np.float64(np.float32(total) if node.single else total)
    return value


def _as_rows(x: Tensor, rows: int) -> Tensor:
    """(rows, entries of each) in the order of memory, sharing it."""
    if not x.is_contiguous():
        x = x.permute(0, 2, 3, 1)  # channels_last
    return x.view(rows, x.numel() // max(rows, 1))


def _blocks(whole: Sequence[Tensor], flat: bool) -> Iterable[Sequence[Tensor]]:
    """The blocks of `whole`, the first of which is the weight; cut between rows unless `flat`."""
    rows, cols = whole[0].shape
    size = max(1, BLOCK // cols)
    if (size >= rows and not flat) or rows * cols <= BLOCK:
        return [whole]
    if flat:
        # What has one value per row has no part in a flat pass.
        whole, size = (
            [
                x.view(-1) if x.shape == whole[0].shape else x.new_empty(rows * cols, device="meta")
                for x in whole
            ],
            BLOCK,
        )
    return zip(*(torch.split(x, size) for x in whole), strict=True)
