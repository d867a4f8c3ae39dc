"""Step the weights of a param_group by compiled code: a generated kernel where it can be, Inductor where it cannot."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile import cpp, gpu
from spherenorm.compile.blocked import BlockedStep
from spherenorm.compile.build import BuildError, load_step
from spherenorm.compile.graph import StepGraph, trace
from spherenorm.compile.launch import DEVICES, Array, launcher, upload
from spherenorm.compile.likeness import Likeness, UnsupportedGraphError, filled, flatten_numbers
from spherenorm.registry import Recipe, reference
from spherenorm.rule import Rule, Scalar, State

__all__ = ["step_compiled", "step_eager"]

TYPES = {torch.float32: ("float", "float"), torch.float64: ("double", "double"), torch.bfloat16: ("float", "bfloat16")}
"""What a C++ kernel computes in, and what it stores weights in."""


def step_compiled(
    recipe: Recipe,
    hyper_parameters: Mapping[str, Any],
    rule: Rule,
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
) -> None:
    """Step `weights` and `states` in place by `rule`, which `recipe` made of `hyper_parameters`.

    A generated kernel, C++ on a CPU and Triton on a GPU, steps all weights of two or more dimensions together, and another
    all vectors. What the generators have no word for (see `Steps.kernel`) is compiled by Inductor, weight by weight.
    On a CPU without a C++ compiler, which Inductor would need too, steps are blocked ones.
    Hyper-parameters are arguments of the compiled code: changing them, unless from or to 0, compiles nothing. A rule that
    may change unnoticed (see `Likeness`) steps by its own code.
    """
    try:
        steps, numbers = _steps_of(recipe, hyper_parameters, rule)
    except UnsupportedGraphError as error:
        warnings.warn(f"compile=True: {error}; the rule's own code runs", stacklevel=2)
        for weight, grad, state in zip(weights, grads, states, strict=True):
            _take(weight, grad, state, *rule.step(weight, grad, state))
        return
    batches: dict[tuple[Program, torch.device], list[tuple[Kernel, Tensor, Tensor, State]]] = {}
    for weight, grad, state in zip(weights, grads, states, strict=True):
        kernel = steps.kernel(weight, grad, state)
        blocked = steps.blocked(weight, grad, state) if kernel is None and not steps.compiler else None
        if kernel is not None:
            batches.setdefault((kernel.program, weight.device), []).append((kernel, weight, grad, state))
        elif blocked is not None:
            blocked(weight, _laid_out_as(weight, grad), state, numbers.vector(weight.device).numpy())
        else:
            steps.by_inductor(weight, grad, state, numbers.scalars(weight.device))
    for (program, device), batch in batches.items():
        _run(program, batch, numbers.vector(device))


class Numbers:
    """The hyper-parameters of one step, in float64 where they are needed; those that are tensors on a GPU stay there."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        self.values = values
        self._vectors: dict[torch.device, Tensor] = {}
        self._scalars: dict[torch.device, list[Tensor]] = {}

    def vector(self, device: torch.device) -> Tensor:
        """As one tensor, which nobody may write to."""
        if device not in self._vectors:
            tensors = {i: v for i, v in enumerate(self.values) if isinstance(v, Tensor) and v.device.type == device.type}
            vector = upload(np.array([0.0 if i in tensors else float(v) for i, v in enumerate(self.values)]), device)
            if tensors:
                vector = vector.clone()
                for i, value in tensors.items():
                    vector[i : i + 1].copy_(value)
            self._vectors[device] = vector
        return self._vectors[device]

    def scalars(self, device: torch.device) -> list[Tensor]:
        """As 0-dim tensors."""
        if device not in self._scalars:
            options: dict[str, Any] = {"dtype": torch.float64, "device": device}
            self._scalars[device] = [v.to(**options) if isinstance(v, Tensor) else torch.full((), v, **options) for v in self.values]
        return self._scalars[device]


class Program(Protocol):
    """A compiled step of many weights; one program serves all shapes of one rank class.

    It is called with a table, int64: for each weight the pointers of weight, gradient and `states`, its rows and its
    columns; with each weight's literals; and with the hyper-parameters.
    """

    @property
    def states(self) -> tuple[str, ...]: ...
    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None: ...


@dataclass(frozen=True, eq=False)
class OnCPU:
    """A C++ kernel."""

    step: Callable[..., None]
    states: tuple[str, ...]

    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None:
        self.step(len(tensors), tensors.ctypes.data, literals.ctypes.data, numbers.data_ptr(), torch.get_num_threads())


def step_eager(
    recipe: Recipe,
    hyper_parameters: Mapping[str, Any],
    rule: Rule,
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    trace: bool = True,
) -> None:
    """Step `weights` and `states` in place by torch's own operations.

    With `trace`, a block at a time where that can be (see `blocked`): on a CPU, if the step can be traced and rows lie one
    after another in memory. Everything else steps by the rule's own code.
    """
    steps = None
    if trace:
        with contextlib.suppress(UnsupportedGraphError):
            steps, numbers = _steps_of(recipe, hyper_parameters, rule)
    for weight, grad, state in zip(weights, grads, states, strict=True):
        blocked = steps.blocked(weight, grad, state) if steps is not None else None
        if blocked is not None:
            blocked(weight, _laid_out_as(weight, grad), state, numbers.vector(weight.device).numpy())
        else:
            _take(weight, grad, state, *rule.step(weight, grad, state))


def _steps_of(recipe: Recipe, hyper_parameters: Mapping[str, Any], rule: Rule) -> tuple[Steps, Numbers]:
    """The compiled steps of `rule`, and its numbers.

    Raises:
        UnsupportedGraphError: the rule may change unnoticed.
    """
    values, structure = flatten_numbers(hyper_parameters)
    steps = _steps(recipe, structure, len(values))
    if not steps.likeness.of(rule):
        steps.renew()
        if not steps.likeness.of(rule):
            raise UnsupportedGraphError(f"{reference(recipe)} makes another rule each time")
    return steps, Numbers(values)


@dataclass(frozen=True, eq=False)
class Kernel:
    """The program for weights of one shape, the literals that it takes for this shape, and what states it works on."""

    program: Program
    literals: Array
    states: Mapping[str, tuple[torch.Size, torch.dtype]]


class Steps:
    """The compiled steps of one recipe with one structure of hyper-parameters."""

    def __init__(self, recipe: Recipe, structure: Any, count: int) -> None:
        self.recipe, self.structure, self.count = recipe, structure, count
        self.compiler = True
        """False once the C++ compiler was missing or has failed."""
        self.renew()

    def renew(self) -> None:
        """Forget what was compiled: the recipe makes another rule than it did."""
        self.likeness = Likeness(self.recipe, self.structure, self.count)
        self._kernels: dict[Any, Kernel | None] = {}
        self._blocked: dict[Any, tuple[BlockedStep | None, Mapping[str, Any]]] = {}
        self._inductor: dict[Any, Callable[..., Any]] = {}

    def blocked(self, weight: Tensor, grad: Tensor, state: State) -> BlockedStep | None:
        """The blocked step for a weight; None for what only the rule's own code can do."""
        if weight.device.type != "cpu" or not weight.numel():
            return None
        key = (weight.shape, weight.dtype)
        if key not in self._blocked:
            try:
                graph = trace(self.recipe, self.structure, self.count, tuple(weight.shape), weight.dtype)
                self._blocked[key] = BlockedStep(graph, self.count, weight.dtype), graph.states
            except Exception:
                # Whatever a rule does that a trace does not stand, a wrong recipe included: its own code will do or say it.
                self._blocked[key] = None, {}
        step, states = self._blocked[key]
        return step if step is not None and _fits(weight, grad, state, states) else None

    def kernel(self, weight: Tensor, grad: Tensor, state: State) -> Kernel | None:
        """The kernel for a weight; None for what only Inductor compiles: devices other than CPU and GPU, fp16 on a CPU,
        tensor subclasses, memory in which rows do not lie one after another, and steps with an operation unknown to the
        generator."""
        key = (weight.shape, weight.dtype, weight.device.type)
        if key not in self._kernels:
            self._kernels[key] = self._make_kernel(tuple(weight.shape), weight.dtype, weight.device.type)
        kernel = self._kernels[key]
        return kernel if kernel is not None and _fits(weight, grad, state, kernel.states) else None

    def _make_kernel(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Kernel | None:
        make = self._triton if device in DEVICES else self._cpp if device == "cpu" and dtype in TYPES else None
        if make is None:
            return None
        try:
            graph = trace(self.recipe, self.structure, self.count, shape, dtype)
            return Kernel(make(graph, dtype), np.array(graph.literals, dtype=np.float64), graph.states)
        except UnsupportedGraphError:
            return None
        except BuildError as error:
            warnings.warn(f"compile=True: {error}", stacklevel=2)
            self.compiler = device != "cpu"
            return None

    def _cpp(self, graph: StepGraph, dtype: torch.dtype) -> Program:
        return _on_cpu(cpp.emit(graph, self.count), dtype)

    def _triton(self, graph: StepGraph, dtype: torch.dtype) -> Program:
        try:
            return launcher(gpu.emit(graph, self.count, dtype))
        except ImportError as error:
            raise BuildError(f"no Triton, with which one kernel would step all weights: {error}") from error

    def by_inductor(self, weight: Tensor, grad: Tensor, state: State, numbers: list[Tensor]) -> None:
        """One weight's step under torch.compile; one compilation for each rank and dtype, whatever the sizes (but 0 and 1)."""
        key = (weight.dtype, tuple(min(size, 2) for size in weight.shape))  # sizes of 0 and 1 are compiled apart anyway
        if key not in self._inductor:

            def pure(weight: Tensor, grad: Tensor, state: State, numbers: list[Tensor]) -> tuple[Tensor, State]:
                return self.recipe(**filled(self.structure, numbers)).step(weight, grad, state)

            # A code object of its own: Dynamo gives one up after eight compilations, whichever function they were for.
            pure.__code__ = pure.__code__.replace(co_name=f"step_of_{weight.ndim}_dimensions")
            self._inductor[key] = torch.compile(pure, fullgraph=True, dynamic=True)
        # Copied outside: Inductor's C++ backend fails on a row projection fused in place.
        _take(weight.detach(), grad, state, *self._inductor[key](weight.detach(), grad, state, numbers))


@functools.cache
def _on_cpu(layout: cpp.Layout, dtype: torch.dtype) -> OnCPU:
    """The one program of a layout: weights that share it are stepped together."""
    real, stored = TYPES[dtype]
    return OnCPU(load_step(layout.source, (f"-DREAL={real}", f"-DSTORED={stored}")), layout.states)


@functools.lru_cache(maxsize=256)
def _steps(recipe: Recipe, structure: Any, count: int) -> Steps:
    return Steps(recipe, structure, count)


def _fits(weight: Tensor, grad: Tensor, state: State, traced: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
    """Whether all is as it was traced, and memory holds one index of dimension 0 after another without gaps (contiguous,
    channels_last), states alike."""
    if type(weight) not in (Tensor, torch.nn.Parameter) or grad.dtype is not weight.dtype:
        return False
    device, strides, inference = weight.get_device(), None, torch.is_inference_mode_enabled()
    if not weight.is_contiguous():
        if weight.ndim != 4 or not weight.is_contiguous(memory_format=torch.channels_last):
            return False
        strides = weight.stride()
    for name, value in state.items():
        shape, dtype = traced[name]
        if value.shape != shape or value.dtype is not dtype or value.get_device() != device:
            return False
        if value.is_inference() and not inference:
            return False
        if strides is None and not value.is_contiguous():
            return False
        if strides is not None and shape == weight.shape and value.stride() != strides:
            return False
    return True


def _laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the memory order of the weight, and not lying across it."""
    if grad.stride() == weight.stride() and not 0 < abs(grad.data_ptr() - weight.data_ptr()) < weight.nbytes:
        return grad
    return torch.empty_like(weight).copy_(grad)


def _take(weight: Tensor, grad: Tensor, state: State, moved: Tensor, new: State) -> None:
    """Take over what a rule's own code returned.

    A rule may return the gradient, the weight or one tensor twice as its states; here each gets memory of its own, since
    the weight is written to, and the gradient is the caller's, who may.
    """
    taken = {_memory(weight), _memory(grad)}
    for name, value in new.items():
        value = _placed_as(state[name], value)  # noqa: PLW2901
        if _memory(value) in taken:
            value = value.clone()  # noqa: PLW2901
        taken.add(_memory(value))
        state[name] = value
    weight.copy_(_placed_as(weight, moved))


def _placed_as(before: Tensor, after: Tensor) -> Tensor:
    """`after` in the shards of `before`, if that is a DTensor.

    An operation may gather a dimension of fewer entries than processes, which `copy_` does not
    cut again.
    """
    placements = getattr(before, "placements", None)
    if placements is None or placements == getattr(after, "placements", None):
        return after
    placed: Tensor = after.redistribute(placements=placements)  # type: ignore[attr-defined]
    return placed


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr() if type(x) in (Tensor, torch.nn.Parameter) and x.numel() else id(x)


def _run(program: Program, batch: Sequence[tuple[Kernel, Tensor, Tensor, State]], numbers: Tensor) -> None:
    held, description = [], []
    for _, weight, grad, state in batch:
        grad = _laid_out_as(weight, grad)  # noqa: PLW2901
        held.append(grad)
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        description.append((weight.data_ptr(), grad.data_ptr(), *[state[name].data_ptr() for name in program.states], rows, cols))
    program(np.array(description, dtype=np.int64), np.stack([kernel.literals for kernel, *_ in batch]), numbers)
    # Autograd has not seen the write; it must notice if a graph still needs the old weight.
    torch.autograd.graph.increment_version([weight for _, weight, _, _ in batch])
