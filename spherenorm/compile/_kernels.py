"""Kernels: one compiled step for many weights, made of a graph, and run on a batch of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import Scalar
from spherenorm.compile import cpp, gpu
from spherenorm.compile._backends import Work
from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.compile.gpu import DEVICES, Array, launcher, upload
from spherenorm.core import State

GRAD = 1
"""The column of gradients in a kernel's table."""


class Kernel(Protocol):
    """A compiled step of many weights; one kernel serves all shapes of one rank class.

    It is called with an int64 table, which holds for each weight the pointers of weight, gradient
    and `states`, its rows and its columns; with each weight's literals; and with the numbers.

    `by_passes` does the same for parts of weights. Between two passes it yields the totals of the
    parts, of shape (weights, `totals`), which the caller adds up in place; `totals` is 0 of a
    kernel of one pass.
    """

    @property
    def name(self) -> str: ...
    @property
    def states(self) -> tuple[str, ...]: ...
    @property
    def totals(self) -> int: ...
    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None: ...
    def by_passes(self, tensors: Array, literals: Array, numbers: Tensor) -> Iterator[Tensor]: ...


@dataclass(frozen=True, eq=False)
class Specialization:
    """A kernel, and the literals that it takes for weights of one shape.

    Attributes:
        identity: equal for paths whose steps are the same code, of any shape.
    """

    kernel: Kernel
    literals: Array
    reason: str = "recorded; one kernel for all weights of its kind"

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def identity(self) -> Any:
        return self.kernel

    @classmethod
    def of(
        cls, graph: StepGraph, numbers: int, dtype: torch.dtype, device: torch.device
    ) -> Specialization:
        """The kernel of a graph, made and compiled if there is none yet.

        Args:
            graph: of the step of weights of one shape.
            numbers: how many of its arguments are the rule's.
            dtype, device: of the weights.

        Raises:
            UnsupportedRuleError: an operation, the dtype or the device has no form in a kernel.
            BuildError: there is no C++ compiler, or it refuses the kernel.
            ImportError: there is no Triton.
        """
        literals = np.array(graph.literals, dtype=np.float64)
        if device.type in DEVICES:
            return cls(launcher(gpu.emit(graph, numbers, dtype)), literals)
        if device.type == "cpu":
            return cls(cpp.kernel(graph, numbers, dtype), literals)
        raise UnsupportedRuleError(f"no kernels are generated for {device.type}")

    def __call__(
        self, weight: Tensor, grad: Tensor, state: State, numbers: Sequence[Scalar]
    ) -> None:
        work = Work(weight, grad, state)
        Batch(self.kernel, [(self, work)]).run([work], vector(numbers, weight.device))
        torch.autograd.graph.increment_version(weight)


class Batch:
    """The weights of one rule that a kernel steps together, as the rows of its table.

    Args:
        kernel: of each specialization.
        members: the weights; their memory stays where it is, but for the gradients'.
    """

    def __init__(self, kernel: Kernel, members: Sequence[tuple[Specialization, Work]]) -> None:
        self.kernel = kernel
        self.literals = np.stack([path.literals for path, _ in members])
        self.table = np.array([_row(kernel, work) for _, work in members], dtype=np.int64)
        self.relaid = [
            i for i, (_, work) in enumerate(members) if work.grad.stride() != work.weight.stride()
        ]
        """Those whose gradients have to be copied into the weight's order in memory."""

    def run(self, works: Sequence[Work], numbers: Tensor) -> None:
        """Step the weights; the gradients are where the table has them.

        Args:
            works: the members as they are now.
            numbers: the rule's, on the weights' device.
        """
        laid = self._laid(works)
        self.kernel(self.table, self.literals, numbers)
        del laid

    def by_passes(self, works: Sequence[Work], numbers: Tensor) -> Iterator[Tensor]:
        """As `run`, for parts of weights; see `Kernel`."""
        laid = self._laid(works)
        yield from self.kernel.by_passes(self.table, self.literals, numbers)
        del laid

    def _laid(self, works: Sequence[Work]) -> list[Tensor]:
        """The gradients that are copied into the weight's order in memory; the table has them."""
        laid = [torch.empty_like(works[i].weight).copy_(works[i].grad) for i in self.relaid]
        for i, grad in zip(self.relaid, laid, strict=True):
            self.table[i, GRAD] = grad.data_ptr()
        return laid


def _row(kernel: Kernel, work: Work) -> tuple[int, ...]:
    weight, grad, state, *_ = work
    rows = weight.shape[0] if weight.ndim > 1 else 1
    cols = weight.numel() // rows if rows else 0
    pointers = [state[name].data_ptr() for name in kernel.states]
    return weight.data_ptr(), grad.data_ptr(), *pointers, rows, cols


def vector(numbers: Sequence[Scalar], device: torch.device) -> Tensor:
    """The numbers of a rule on a device, in float64; nobody may write to it.

    Those that are tensors on a GPU are not read by the host.
    """
    if device.type not in DEVICES:
        return torch.tensor([float(v) for v in numbers], dtype=torch.float64, device="cpu")
    here = [isinstance(v, Tensor) and v.device.type == device.type for v in numbers]
    read = [0.0 if on else float(v) for v, on in zip(numbers, here, strict=True)]
    found = upload(np.array(read), device)
    if any(here):
        found = found.clone()
        for i, value in enumerate(numbers):
            if here[i] and isinstance(value, Tensor):
                found[i : i + 1].copy_(value)
    return found
