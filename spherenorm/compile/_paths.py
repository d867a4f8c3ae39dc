"""Paths: the ways in which one weight can take a rule's step.

A path steps a weight and its state in place. Known paths: `OwnCode`, the rule as it is written;
`Blocks`, torch's own operations on blocks that stay in cache; `Specialization`, one kernel; and
`Inductor`, compiled by torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spherenorm._rule import State
from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import Guard
from spherenorm.compile._inductor import Inductor
from spherenorm.compile._kernels import Specialization
from spherenorm.compile._memory import laid_out_as
from spherenorm.compile._numbers import Numbers
from spherenorm.compile.blocks import BlockedStep

__all__ = ["Blocks", "Inductor", "OwnCode", "Path", "Specialization"]


class Path(Protocol):
    """One way to step a weight."""

    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str:
        """The reason for which it is taken."""


@dataclass(frozen=True)
class OwnCode:
    """The rule's own code, operation by operation."""

    reason: str
    name: str = "rule"


@dataclass(frozen=True, eq=False)
class Blocks:
    """torch's own operations on cache-sized blocks, in reused buffers."""

    step: BlockedStep
    reason: str = "recorded; runs on blocks of rows that stay in cache"
    name: str = "blocks"

    @property
    def identity(self) -> Any:
        """Equal for paths whose steps are the same code, of any shape."""
        return tuple(self.step.graph.nodes), tuple(self.step.graph.outputs.items())

    def __call__(self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers) -> None:
        values = numbers.vector(weight.device).numpy()
        self.step(weight, laid_out_as(weight, grad), state, values)

    @classmethod
    def of(cls, guard: Guard, graph: StepGraph, dtype: torch.dtype) -> Blocks:
        return cls(BlockedStep(graph, len(guard.numbers), dtype))
