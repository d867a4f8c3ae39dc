"""Batches: weights whose recorded step one executor takes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spherenorm.compile import cpp
from spherenorm.compile.backends import Work
from spherenorm.compile.graph import StepGraph
from spherenorm.compile.horizontal import Horizontal
from spherenorm.numerics import Scalar

GRAD = 1
"""The column of gradients in a kernel's table."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """An executor of the recorded step.

    Attributes:
        graph: of the step of weights of one shape.
        literals: its numbers beside the rule's.
        identity: equal for weights that step together.
        executor: the kernel in C++, or the class of the horizontal executor.
    """

    graph: StepGraph
    literals: np.ndarray[Any, Any]
    identity: Any
    reason: str
    executor: cpp.CppKernel | type[Horizontal]

    @property
    def name(self) -> str:
        return self.executor.name


class KernelBatch:
    """The weights that a kernel steps, as the rows of its table.

    The table has the places of weight, gradient and states, the rows and the columns of each.

    Args:
        kernel: in C++.
        literals: of each weight.
        works: the weights; their memory stays where it is, but for the gradients'.
    """

    def __init__(
        self, kernel: cpp.CppKernel, literals: np.ndarray[Any, Any], works: Sequence[Work]
    ) -> None:
        self.kernel, self.literals = kernel, literals
        self.table = np.array([self._row(work) for work in works], dtype=np.int64)
        strides = ((work.grad.stride(), work.weight.stride()) for work in works)
        self.relaid = [i for i, (ours, theirs) in enumerate(strides) if ours != theirs]
        """Those whose gradients have to be copied into the weight's order in memory."""

    def _row(self, work: Work) -> tuple[int, ...]:
        weight, grad, state, *_ = work
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        pointers = [state[name].data_ptr() for name in self.kernel.states]
        return weight.data_ptr(), grad.data_ptr(), *pointers, rows, cols

    def run(self, works: Sequence[Work], numbers: Sequence[Scalar]) -> None:
        """Step the weights in place; the gradients are where the table has them.

        Args:
            works: the weights as they are now.
            numbers: the rule's.

        Raises:
            MemoryError: for scratch; before anything is written.
        """
        laid = [torch.empty_like(works[i].weight).copy_(works[i].grad) for i in self.relaid]
        for i, grad in zip(self.relaid, laid, strict=True):
            self.table[i, GRAD] = grad.data_ptr()
        self.kernel(self.table, self.literals, np.array([float(n) for n in numbers]))
        # Autograd has not seen the write; it must notice if a graph still needs the old weight.
        torch.autograd.graph.increment_version([work.weight for work in works])


def batch_of(path: Recorded, works: Sequence[Work], paths: Sequence[Recorded] = ()) -> Any:
    """The batch of weights of one identity.

    Args:
        path: of any of them.
        works: the weights.
        paths: of each; by default the same.
    """
    literals = np.stack([each.literals for each in paths or [path] * len(works)])
    if isinstance(path.executor, cpp.CppKernel):
        return KernelBatch(path.executor, literals, works)
    return path.executor(path.graph, literals, works)
