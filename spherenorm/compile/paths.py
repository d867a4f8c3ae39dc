"""Paths: the ways in which one weight can take a rule's step.

A path steps a weight and its state in place. Each but the rule's own code is made of one recorded
graph, or compiled by Inductor, for weights of one shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile import cpp, gpu
from spherenorm.compile.blocked import BlockedStep
from spherenorm.compile.build import load_step
from spherenorm.compile.graph import StepGraph
from spherenorm.compile.guard import Guard, UnsupportedRuleError
from spherenorm.compile.launch import DEVICES, Array, launcher, upload
from spherenorm.numerics import Scalar
from spherenorm.rule import State

__all__ = [
    "Blocks",
    "Inductor",
    "Kernel",
    "Numbers",
    "OwnCode",
    "Path",
    "laid_out_as",
    "memory",
    "misfit",
    "run_kernels",
    "take",
]

CPP_TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bfloat16"),
}
"""The types in which a C++ kernel computes, and in which it stores weights."""


class Numbers:
    """The numbers of a rule at one step, in float64; those that are tensors on a GPU stay there."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        self.values = values
        self._vectors: dict[torch.device, Tensor] = {}

    def vector(self, device: torch.device) -> Tensor:
        """All of them as one tensor, which nobody may write to."""
        if device not in self._vectors:
            here = {
                i: v
                for i, v in enumerate(self.values)
                if isinstance(v, Tensor) and v.device.type == device.type
            }
            read = [0.0 if i in here else float(v) for i, v in enumerate(self.values)]
            vector = upload(np.array(read), device)
            if here:
                vector = vector.clone()
                for i, value in here.items():
                    vector[i : i + 1].copy_(value)
            self._vectors[device] = vector
        return self._vectors[device]


class Path(Protocol):
    """One way to step a weight."""

    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str:
        """Why it is taken."""


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
        """Equal for paths that do the same, whatever the shape."""
        return tuple(self.step.graph.nodes), tuple(self.step.graph.outputs.items())

    def __call__(self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers) -> None:
        values = numbers.vector(weight.device).numpy()
        self.step(weight, laid_out_as(weight, grad), state, values)

    @classmethod
    def of(cls, guard: Guard, graph: StepGraph, dtype: torch.dtype) -> Blocks:
        return cls(BlockedStep(graph, len(guard.numbers), dtype))


class Program(Protocol):
    """A compiled step of many weights; one program serves all shapes of one rank class.

    It is called with a table, int64: for each weight the pointers of weight, gradient and `states`,
    its rows and its columns; with each weight's literals; and with the numbers.
    """

    @property
    def states(self) -> tuple[str, ...]: ...
    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None: ...


@dataclass(frozen=True)
class OnCPU:
    """A C++ kernel; kernels of one source are equal."""

    source: str
    defines: tuple[str, ...]
    states: tuple[str, ...]

    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None:
        step = load_step(self.source, self.defines)
        threads = torch.get_num_threads()
        step(len(tensors), tensors.ctypes.data, literals.ctypes.data, numbers.data_ptr(), threads)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A program, and the literals that it takes for weights of one shape."""

    program: Program
    literals: Array
    name: str
    reason: str = "recorded; one kernel for all weights of its kind"

    @property
    def identity(self) -> Any:
        """Equal for paths that do the same, whatever the shape."""
        return self.program

    @classmethod
    def of(cls, guard: Guard, graph: StepGraph, dtype: torch.dtype, device: str) -> Kernel:
        """The kernel of a graph.

        Raises:
            UnsupportedRuleError: the generator has no word for an operation or the dtype.
            BuildError: there is no C++ compiler, or it refuses the kernel.
        """
        literals, count = np.array(graph.literals, dtype=np.float64), len(guard.numbers)
        if device in DEVICES:
            try:
                program: Program = launcher(gpu.emit(graph, count, dtype))
            except ImportError as error:
                raise UnsupportedRuleError(
                    f"Triton, which makes kernels for {device}, is missing"
                ) from error
            return cls(program, literals, "Triton kernels")
        if dtype not in CPP_TYPES:
            raise UnsupportedRuleError(f"C++ kernels take no {dtype}")
        real, stored = CPP_TYPES[dtype]
        layout = cpp.emit(graph, count)
        defines = (f"-DREAL={real}", f"-DSTORED={stored}")
        load_step(layout.source, defines)
        return cls(OnCPU(layout.source, defines, layout.states), literals, "C++ kernel")

    def __call__(self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers) -> None:
        run_kernels(self.program, [(self, weight, grad, state)], numbers.vector(weight.device))


def run_kernels(
    program: Program, batch: Sequence[tuple[Kernel, Tensor, Tensor, State]], numbers: Tensor
) -> None:
    """Step all weights of a batch by their one program."""
    held, description = [], []
    for _, weight, grad, state in batch:
        grad = laid_out_as(weight, grad)  # noqa: PLW2901
        held.append(grad)
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        pointers = [state[name].data_ptr() for name in program.states]
        description.append((weight.data_ptr(), grad.data_ptr(), *pointers, rows, cols))
    literals = np.stack([kernel.literals for kernel, *_ in batch])
    program(np.array(description, dtype=np.int64), literals, numbers)
    # Autograd has not seen the write; it must notice if a graph still needs the old weight.
    torch.autograd.graph.increment_version([weight for _, weight, _, _ in batch])


class Inductor:
    """The rule's step under torch.compile, weight by weight, whatever their sizes (but 0 and 1)."""

    name = "Inductor"

    def __init__(self, guard: Guard, reason: str, device: torch.device, ndim: int) -> None:
        self.reason = reason
        self.identity = self
        # Arguments of the compiled code, at the present values of the numbers.
        self.slots = [torch.zeros((), dtype=dtype, device=device) for dtype in guard.dtypes]
        rule = guard.with_numbers(self.slots)

        def pure(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
            return rule.step(weight, grad, state)

        # A code object of its own: Dynamo gives one up after eight compilations.
        pure.__code__ = pure.__code__.replace(co_name=f"step_of_{ndim}_dimensions")
        self.compiled = torch.compile(pure, fullgraph=True, dynamic=True, backend=_inductor)

    def result(
        self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers
    ) -> tuple[Tensor, State]:
        """The new weight and state, which are new tensors: in place, Inductor's C++ backend fails
        on a fused row projection."""
        for slot, value in zip(self.slots, numbers.values, strict=True):
            slot.copy_(value) if isinstance(value, Tensor) else slot.fill_(value)
        found: tuple[Tensor, State] = self.compiled(weight.detach(), grad, state)
        return found

    def __call__(self, weight: Tensor, grad: Tensor, state: State, numbers: Numbers) -> None:
        take(weight.detach(), grad, state, *self.result(weight, grad, state, numbers))


def _inductor(graph: Any, inputs: Any) -> Callable[..., Any]:
    """Inductor without the scaled forms of addition.

    torch 2.13's Inductor drops the alpha of torch.add(a @ b, c, alpha=k) when it fuses the sum into
    the product: a momentum after a matrix product was 10 to 20 % off from the second step on.
    """
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    def scaled(operation: Any) -> Any:
        def without_alpha(x: Any, y: Any, *, alpha: Any = 1) -> Any:
            return NotImplemented if alpha == 1 else operation(x, alpha * y)

        return without_alpha

    aten = torch.ops.aten
    table = {
        **select_decomp_table(),
        aten.add.Tensor: scaled(torch.add),
        aten.sub.Tensor: scaled(torch.sub),
    }
    # AOTAutograd's cache on disk does not tell graphs apart by how they are decomposed; a rounding to
    # half precision within a step is the rule's own.
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(emulate_precision_casts=True),
    ):
        run: Any = compile_fx(graph, inputs, decompositions=table)
    return run  # type: ignore[no-any-return]


def misfit(weight: Tensor, grad: Tensor, state: State, recorded: Mapping[str, Any]) -> str | None:
    """Say why the tensors are not as they were recorded; None if they are.

    Memory must hold one index of dimension 0 after another without gaps (contiguous or
    channels_last), the states' alike.

    Args:
        recorded: the shape and dtype of each state.
    """
    if type(weight) not in (Tensor, torch.nn.Parameter):
        return f"the weight is a {type(weight).__name__}"
    if type(grad) is not Tensor:
        return f"the gradient is a {type(grad).__name__}"
    if grad.dtype is not weight.dtype:
        return f"the gradient is {grad.dtype}, the weight {weight.dtype}"
    if weight.is_neg():
        return "the weight's memory holds its negative"
    if grad.device != weight.device:
        return f"the gradient is on {grad.device}, the weight on {weight.device}"
    device, strides, inference = weight.get_device(), None, torch.is_inference_mode_enabled()
    if not weight.is_contiguous():
        if weight.ndim != 4 or not weight.is_contiguous(memory_format=torch.channels_last):
            return "the weight's rows do not lie one after another in memory"
        strides = weight.stride()
    places = {weight.data_ptr(), grad.data_ptr()}
    for name, value in state.items():
        shape, dtype = recorded[name]
        if type(value) is not Tensor or value.shape != shape or value.dtype is not dtype:
            return f"the state {name!r} is not what init returns"
        frozen = value.is_inference() and not inference
        if value.get_device() != device or frozen or value.is_neg():
            return f"the state {name!r} is on another device, frozen, or kept as its negative"
        alike = value.is_contiguous() if strides is None else value.stride() == strides
        if not alike and not (
            strides is not None and shape != weight.shape and value.is_contiguous()
        ):
            return f"the state {name!r} is laid out otherwise than the weight"
        if value.data_ptr() in places and value.numel():
            return f"the state {name!r} shares its memory"
        places.add(value.data_ptr())
    return None


def laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the memory order of the weight, not lying across it, and as it is there.

    (Behind a conjugation, autograd gives a gradient whose memory holds the negative values.)
    """
    grad = grad.resolve_neg()
    overlaps = 0 < abs(grad.data_ptr() - weight.data_ptr()) < weight.nbytes
    if grad.stride() == weight.stride() and not overlaps:
        return grad
    return torch.empty_like(weight).copy_(grad)


def take(weight: Tensor, grad: Tensor, state: State, moved: Tensor, new: State) -> None:
    """Take over what a rule's own code returned.

    A rule may return the gradient, the weight or one tensor twice as its states; here each gets
    memory of its own, since the weight is written to, and the gradient is the caller's.
    """
    taken = {memory(weight), memory(grad)}
    for name, value in new.items():
        value = _placed_as(state[name], value)  # noqa: PLW2901
        if memory(value) in taken:
            value = value.clone()  # noqa: PLW2901
        taken.add(memory(value))
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


def memory(x: Tensor) -> int:
    """A number that two tensors have in common if they share memory."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.numel()
    return x.untyped_storage().data_ptr() if plain else id(x)
