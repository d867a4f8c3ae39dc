"""Step the weights of a param_group by compiled code: a generated kernel where it can be, Inductor where it cannot."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.blocked import BlockedStep
from spherenorm.compile.build import BuildError, load_step
from spherenorm.compile.cpp import emit
from spherenorm.compile.graph import UnsupportedGraphError, fill, flatten_numbers, trace
from spherenorm.registry import Recipe, build
from spherenorm.rule import State

__all__ = ["step_compiled", "step_eager"]

TYPES = {torch.float32: ("float", "float"), torch.float64: ("double", "double"), torch.bfloat16: ("float", "bfloat16")}
"""What a kernel computes in, and what it stores weights in."""


def step_compiled(
    recipe: Recipe, hyper_parameters: Mapping[str, Any], weights: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State]
) -> None:
    """Step `weights` and `states` in place.

    On a CPU, one call of a generated C++ kernel steps all weights of two or more dimensions, another all vectors. What
    the generator has no word for (see `Steps.kernel`) is compiled by Inductor, weight by weight. Hyper-parameters are
    arguments of the compiled code: changing them, unless from or to 0, compiles nothing.
    """
    numbers, structure = flatten_numbers(hyper_parameters)
    steps = _steps(recipe, structure, len(numbers))
    batches: dict[int, list[tuple[Kernel, Tensor, Tensor, State]]] = {}
    scalars: dict[torch.device, list[Tensor]] = {}
    for weight, grad, state in zip(weights, grads, states, strict=True):
        kernel = steps.kernel(weight, state)
        if kernel is None:
            if weight.device not in scalars:
                scalars[weight.device] = [torch.full((), number, dtype=torch.float64, device=weight.device) for number in numbers]
            steps.by_inductor(weight, grad, state, scalars[weight.device])
        else:
            batches.setdefault(id(kernel.step), []).append((kernel, weight, grad, state))
    for batch in batches.values():
        _run(batch, numbers)


def step_eager(
    recipe: Recipe,
    hyper_parameters: Mapping[str, Any],
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    trace: bool = True,
) -> None:
    """Step `weights` and `states` in place by torch's own operations.

    With `trace`, a block at a time where that can be (see `blocked`): on a CPU, if the step can be traced and rows lie one
    after another in memory. Everything else steps by the rule's own code.
    """
    rule = build(recipe, hyper_parameters)
    numbers, structure = flatten_numbers(hyper_parameters) if trace else ([], None)
    steps = _steps(recipe, structure, len(numbers)) if trace and _is_hashable(structure) else None
    arguments = np.array(numbers, dtype=np.float64)
    for weight, grad, state in zip(weights, grads, states, strict=True):
        blocked = steps.blocked(weight, state) if steps is not None else None
        if blocked is not None:
            blocked(weight, _laid_out_as(weight, grad), state, arguments)
        else:
            moved, new = rule.step(weight, grad, state)
            weight.copy_(moved)
            state.update(new)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled step: `step` serves all shapes of one rank class, `literals` are what it takes for this shape."""

    step: Callable[..., None]
    states: tuple[str, ...]
    literals: np.ndarray[Any, np.dtype[np.float64]]


class Steps:
    """The compiled steps of one recipe with one structure of hyper-parameters."""

    def __init__(self, recipe: Recipe, structure: Any, count: int) -> None:
        self.recipe, self.structure, self.count = recipe, structure, count
        self._kernels: dict[Any, Kernel | None] = {}
        self._blocked: dict[Any, BlockedStep | None] = {}
        self._inductor: dict[int, Callable[..., Any]] = {}

    def blocked(self, weight: Tensor, state: State) -> BlockedStep | None:
        """The blocked step for a weight; None for what only the rule's own code can do."""
        if not _fits(weight, state):
            return None
        key = (weight.shape, weight.dtype)
        if key not in self._blocked:
            try:
                graph = trace(self.recipe, self.structure, self.count, tuple(weight.shape), weight.dtype)
                self._blocked[key] = BlockedStep(graph, self.count, weight.dtype)
            except Exception:
                # Whatever a rule does that a trace does not stand, a wrong recipe included: its own code will do or say it.
                self._blocked[key] = None
        return self._blocked[key]

    def kernel(self, weight: Tensor, state: State) -> Kernel | None:
        """The kernel for a weight; None for what only Inductor compiles: other devices than the CPU, fp16, tensor
        subclasses, memory in which rows do not lie one after another, and steps with an operation unknown to the generator."""
        key = (weight.shape, weight.dtype)
        if key not in self._kernels:
            self._kernels[key] = self._make_kernel(tuple(weight.shape), weight.dtype)
        kernel = self._kernels[key]
        return kernel if kernel is not None and _fits(weight, state) else None

    def _make_kernel(self, shape: tuple[int, ...], dtype: torch.dtype) -> Kernel | None:
        if dtype not in TYPES:
            return None
        real, stored = TYPES[dtype]
        try:
            graph = trace(self.recipe, self.structure, self.count, shape, dtype)
            layout = emit(graph, self.count)
            step = load_step(layout.source, (f"-DREAL={real}", f"-DSTORED={stored}"))
        except UnsupportedGraphError:
            return None
        except BuildError as error:
            warnings.warn(f"compile=True: {error}", stacklevel=2)
            return None
        return Kernel(step, layout.states, np.array(graph.literals, dtype=np.float64))

    def by_inductor(self, weight: Tensor, grad: Tensor, state: State, numbers: list[Tensor]) -> None:
        """One weight's step under torch.compile; one compilation for each rank, whatever the sizes."""
        if weight.ndim not in self._inductor:

            def pure(weight: Tensor, grad: Tensor, state: State, numbers: list[Tensor]) -> tuple[Tensor, State]:
                rule = build(self.recipe, {name: fill(value, numbers) for name, value in self.structure})
                return rule.step(weight, grad, state)

            self._inductor[weight.ndim] = torch.compile(pure, fullgraph=True, dynamic=True)
        moved, new = self._inductor[weight.ndim](weight.detach(), grad, state, numbers)
        # Copied outside: Inductor's C++ backend fails on a row projection fused in place.
        weight.detach().copy_(moved)
        state.update(new)


@functools.cache
def _steps(recipe: Recipe, structure: Any, count: int) -> Steps:
    return Steps(recipe, structure, count)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _fits(weight: Tensor, state: State) -> bool:
    """Whether memory holds one index of dimension 0 after another without gaps (contiguous, channels_last), states alike."""
    if weight.device.type != "cpu" or type(weight) not in (Tensor, torch.nn.Parameter):
        return False
    if weight.is_contiguous():
        return all(value.is_contiguous() for value in state.values())
    in_rows = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return in_rows and all(value.stride() == weight.stride() for value in state.values() if value.shape == weight.shape)


def _laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    return grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)


def _run(batch: Sequence[tuple[Kernel, Tensor, Tensor, State]], numbers: Sequence[float]) -> None:
    names, step = batch[0][0].states, batch[0][0].step
    held, description = [], []
    for _, weight, grad, state in batch:
        grad = _laid_out_as(weight, grad)  # noqa: PLW2901
        held.append(grad)
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        description.append((weight.data_ptr(), grad.data_ptr(), *[state[name].data_ptr() for name in names], rows, cols))
    tensors = np.array(description, dtype=np.int64)
    literals = np.stack([kernel.literals for kernel, *_ in batch])
    arguments = np.array(numbers, dtype=np.float64)
    step(len(batch), tensors.ctypes.data, literals.ctypes.data, arguments.ctypes.data, torch.get_num_threads())
    # Autograd has not seen the write; it must notice if a graph still needs the old weight.
    torch.autograd.graph.increment_version([weight for _, weight, _, _ in batch])
