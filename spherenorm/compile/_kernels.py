"""Kernels: compiled steps of many weights, and their specializations to one shape of weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spherenorm._rule import State
from spherenorm.compile import cpp, gpu
from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._memory import laid_out_as
from spherenorm.compile._numbers import Numbers
from spherenorm.compile.cpp import load_step
from spherenorm.compile.gpu import DEVICES, Array, launcher

__all__ = ["CppKernel", "Kernel", "Specialization", "run_kernel"]

CPP_TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bfloat16"),
}
"""The types in which a C++ kernel computes, and in which it stores weights."""


class Kernel(Protocol):
    """A compiled step of many weights; one kernel serves all shapes of one rank class.

    It is called with an int64 table, which holds for each weight the pointers of weight, gradient
    and `states`, its rows and its columns; with each weight's literals; and with the numbers.
    """

    @property
    def states(self) -> tuple[str, ...]: ...
    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None: ...


@dataclass(frozen=True)
class CppKernel:
    """A C++ kernel; kernels of one source are equal."""

    source: str
    defines: tuple[str, ...]
    states: tuple[str, ...]

    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None:
        step = load_step(self.source, self.defines)
        described = tensors.ctypes.data, literals.ctypes.data, numbers.data_ptr()
        step(len(tensors), *described, cpp.threads())


@dataclass(frozen=True, eq=False)
class Specialization:
    """A kernel, and the literals that it takes for weights of one shape."""

    kernel: Kernel
    literals: Array
    name: str
    reason: str = "recorded; one kernel for all weights of its kind"

    @property
    def identity(self) -> Any:
        """Equal for paths whose steps are the same code, of any shape."""
        return self.kernel

    @classmethod
    def of(cls, guard: Guard, graph: StepGraph, dtype: torch.dtype, device: str) -> Specialization:
        """The kernel of a graph, made and compiled if there is none yet.

        Args:
            guard: of the rule.
            graph: of its step, for weights of one shape.
            dtype: of the weights.
            device: the type of their device.

        Raises:
            UnsupportedRuleError: an operation or the dtype has no form in such a kernel.
            BuildError: there is no C++ compiler, or it refuses the kernel.
        """
        literals, count = np.array(graph.literals, dtype=np.float64), len(guard.numbers)
        if device in DEVICES:
            try:
                launched: Kernel = launcher(gpu.emit(graph, count, dtype))
            except ImportError as error:
                raise UnsupportedRuleError(
                    f"Triton, which makes kernels for {device}, is missing"
                ) from error
            return cls(launched, literals, "Triton kernels")
        if dtype not in CPP_TYPES:
            raise UnsupportedRuleError(f"C++ kernels take no {dtype}")
        real, stored = CPP_TYPES[dtype]
        source = cpp.emit(graph, count)
        defines = (f"-DREAL={real}", f"-DSTORED={stored}")
        load_step(source.text, defines)
        return cls(CppKernel(source.text, defines, source.states), literals, "C++ kernel")

    def __call__(self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers) -> None:
        run_kernel(self.kernel, [(self, weight, grad, state)], numbers.vector(weight.device))


def run_kernel(
    kernel: Kernel,
    batch: Sequence[tuple[Specialization, Tensor, Tensor, State]],
    numbers: Tensor,
) -> None:
    """Step all weights of a batch by their one kernel.

    Args:
        kernel: that of each specialization.
        batch: the specialization, weight, gradient and state of each weight.
        numbers: of the rule, on the weights' device.
    """
    held, description = [], []
    for _, weight, grad, state in batch:
        grad = laid_out_as(weight, grad)  # noqa: PLW2901
        held.append(grad)
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        pointers = [state[name].data_ptr() for name in kernel.states]
        description.append((weight.data_ptr(), grad.data_ptr(), *pointers, rows, cols))
    literals = np.stack([each.literals for each, *_ in batch])
    kernel(np.array(description, dtype=np.int64), literals, numbers)
    # Autograd has not seen the write; it must notice if a graph still needs the old weight.
    torch.autograd.graph.increment_version([weight for _, weight, _, _ in batch])
