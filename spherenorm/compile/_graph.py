"""The step of a rule as a graph of values, from which kernels are printed.

Numbers that depend on a weight's shape (delta / sqrt(dim)) and hyper-parameters are arguments of
the graph, so that all shapes and values share one kernel.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["INPUTS", "Extent", "Node", "StepGraph"]

INPUTS = {"weight", "grad", "state"}


class Extent(enum.IntEnum):
    """The number of values of a node for a weight of shape (C, ...): 1, C, or one per entry."""

    SCALAR = 0
    ROW = 1
    FULL = 2


@dataclass(frozen=True)
class Node:
    """One value of the step.

    Attributes:
        index: its place in the graph; arguments have smaller ones.
        op: "weight", "grad", "state", "number" (an argument of the kernel), or the name of an
            operation or a reduction of `spherenorm.operations`.
        arguments: indices of the nodes it is computed from.
        extent: the number of its values.
        boolean: true if they are truth values.
        single: true if a scalar or a row, which back ends keep in double, is rounded to float32,
            as the rule's own code rounds it.
        detail: a state's name, or a number's place among the arguments.
    """

    index: int
    op: str
    arguments: tuple[int, ...]
    extent: Extent
    boolean: bool = False
    single: bool = False
    detail: Any = None

    @property
    def name(self) -> str:
        """The tensor that an input is the value of before the step."""
        return str(self.detail) if self.op == "state" else self.op


@dataclass
class StepGraph:
    """The nodes of one step.

    Attributes:
        outputs: the indices of the new weight ("weight") and of the new states by name.
        literals: the numbers of the step besides the hyper-parameters; they follow those among the
            kernel's arguments and may differ from shape to shape, while the nodes do not.
        states: the shape and dtype of each state.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    literals: list[float] = field(default_factory=list)
    states: dict[str, tuple[torch.Size, torch.dtype]] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Node]:
        """ "weight", "grad" and each state, by name."""
        return {n.name: n for n in self.nodes if n.op in INPUTS}
