"""The model under audit as a function of a point: of parameters, batch, random numbers and eps."""

from __future__ import annotations

import copy
import itertools
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spherenorm.audit._nested import changed, outputs_of, tensors_of
from spherenorm.audit._precise import LARGEST_EPS, PreciseMode

_PERIOD = 1_048_573
"""Noise repeats after so many numbers, since drawing one takes ten times as long as copying it. A
prime, so that no two rows of a large weight have the same noise."""
_NAMED_EPS = re.compile(r"(^|[._])eps(ilon)?($|_)")


@dataclass(frozen=True)
class Point:
    """A place at which the model is evaluated.

    Attributes:
        seed: of the model's own random numbers, and of the jitter.
        jitter: of the parameters; 0 leaves them as they are, 1 is the usual size.
        batch_jitter: of the batch, likewise.
        eps_factor: multiplies the eps of every normalization.
        nudge: a further jitter of the parameters, to see what depends on them.
    """

    seed: int = 0
    jitter: float = 0.0
    batch_jitter: float = 0.0
    eps_factor: float = 1.0
    nudge: float = 0.0


class Subject:
    """A copy of a model, a batch, and a loss if there is one; the caller's are left alone.

    Args:
        model: is copied.
        batch: a tensor, a tuple or list of the model's arguments, or a mapping of its keyword
            arguments.
        loss: takes the model's output; None keeps the whole output.
        dtype: of the arithmetic.

    Raises:
        ValueError: the model cannot be copied apart.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        loss: Callable[[Any], Any] | None,
        dtype: torch.dtype,
    ) -> None:
        _refuse_shared_memory(model)
        self.dtype = dtype
        (self.model, self.loss), self._kept = _copied(model, loss)
        for module in filter(lambda each: isinstance(each, nn.Module), (self.model, self.loss)):
            module._apply(lambda x: in_dtype(x, dtype))
        self._aliases = {_memory(x) for x in (*model.parameters(), *self._kept)}
        self.parameters = dict(self.model.named_parameters())
        self.start = {name: x.detach() for name, x in model.named_parameters()}
        pairs = zip(model.modules(), self.model.modules(), strict=True)
        self._buffers = [
            (theirs, ours, name, None if buffer is None else buffer.clone())
            for theirs, ours in pairs
            for name, buffer in ours._buffers.items()
        ]
        self._left = [start for *_, start in self._buffers]
        self._theirs = dict(model.named_parameters())
        self.batch = arguments_of(batch)
        self.doubts: dict[str, None] = {}

    def place(self, point: Point) -> None:
        """Give all parameters and buffers their values at a point.

        At the own point, buffers have the caller's values. At a jittered point they have those that
        a pass at the own point has left: many (a running center, a memory) start at 0.

        A parameter that takes a gradient becomes w (1 + 0.3 u) + 0.1 a u, with u uniform in
        [-1, 1] for each entry and a the usual size of an entry. Gains stay positive, and entries
        that start at 0 leave it.
        """
        for name, parameter in self.parameters.items():
            parameter.data.copy_(self.start[name])
            parameter.grad = None
        taking = [x.data for x in self.parameters.values() if x.requires_grad]
        for size, seed in ((point.jitter, point.seed), (point.nudge, point.seed + 1)):
            if size:
                for value, noise in with_noise(taking, seed):
                    usual = (value[0].numel() if value.ndim > 1 and len(value) else 1) ** -0.5
                    value.addcmul_(value, noise, value=0.3 * size)
                    value.add_(noise, alpha=0.1 * usual * size)
        for (_, module, name, start), left in zip(self._buffers, self._left, strict=True):
            buffer = left if point.jitter else start
            fresh = None if buffer is None else buffer.clone()
            if (
                fresh is not None
                and _NAMED_EPS.search(name)
                and 0 < fresh.abs().max() <= LARGEST_EPS
            ):
                fresh *= point.eps_factor
            module._buffers[name] = fresh

    @contextmanager
    def evaluation(self, point: Point) -> Iterator[None]:
        """The context of a forward and a backward pass: precision, eps, random numbers."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        copies: dict[int, Any] = {id(x): self.parameters[name] for name, x in self._theirs.items()}
        for theirs, ours, name, _ in self._buffers:
            copies[id(theirs._buffers[name])] = ours._buffers[name]
        copies.pop(id(None), None)
        known = {id(x) for x in self.parameters.values()}
        self._mode = mode = PreciseMode(
            self.dtype, point.eps_factor, self.doubts, copies, known, self._aliases
        )
        try:
            with _seeded(point.seed), _eager(), mode:
                yield
        finally:
            mode.give_back()
            torch.set_default_dtype(default)

    def outputs(self, point: Point, change: Callable[[], None] | None = None) -> list[Tensor]:
        """The outputs at a point, without a graph, after a change of the parameters there."""
        self.place(point)
        if change is not None:
            change()
        with self.evaluation(point):
            return [x.detach() for x in self.run(point)]

    def run(self, point: Point) -> list[Tensor]:
        """A forward pass, within `evaluation`."""
        generator = torch.Generator().manual_seed(point.seed)

        def moved(x: Tensor) -> Tensor:
            value = _jittered(in_dtype(x, self.dtype), point.batch_jitter, generator)
            return value.requires_grad_() if x.requires_grad else value

        inputs, keywords = changed(self.batch, moved)
        result = self.model(*inputs, **keywords)
        if any(isinstance(x, nn.Parameter) for x in self._mode.strangers):
            self.doubts[
                "the model uses a parameter that is not among its own, such as that of a second"
                " copy: it stays as it is when the others move"
            ] = None
        if not point.jitter and not point.nudge:
            now = (module._buffers[name] for _, module, name, _ in self._buffers)
            self._left = [None if buffer is None else buffer.detach().clone() for buffer in now]
        if self.loss is not None:
            result = self.loss(result)
        real = (_real_and_dense(x) for x in outputs_of(result))
        return [x for x in real if x.is_floating_point() and x.numel()]


def arguments_of(batch: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments and keyword arguments of a model in one batch."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` or `DistributedDataParallel`."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of `x`, in `dtype` if it is real, in the complex type of that precision if complex."""
    if x.is_floating_point():
        return x.detach().to(dtype, copy=True)
    if x.is_complex():
        return x.detach().to(dtype.to_complex(), copy=True)
    return x.detach().clone()


def with_noise(values: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each real tensor with numbers in [-1, 1] of its shape; the same ones for the same seed."""
    real = [x for x in values if x.is_floating_point()]
    period = min(sum(x.numel() for x in real), _PERIOD)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(period, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    longest = max((x.numel() for x in real), default=0)
    repeated = draws.repeat(2 + longest // max(period, 1))
    used = 0
    for value in real:
        noise = repeated[used : used + value.numel()].view(value.shape)
        used = (used + value.numel()) % max(period, 1)
        yield value, noise.to(value)


def _copied(model: nn.Module, loss: Any) -> tuple[tuple[nn.Module, Any], list[Tensor]]:
    """Copies that share nothing with the caller's; what they keep of a graph is cut off it.

    Also returns copies of tensors that share memory with a parameter, which theirs do not.
    """
    memo: dict[int, Any] = {}
    aliases = []
    parameters = {id(x): _memory(x) for x in model.parameters()}
    memories = set(parameters.values())
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is compiled by torch.jit, and the audit cannot see into it:"
                " pass the model from before that"
            )
        own = {key: x for key, x in vars(module).items() if key not in ("_parameters", "_modules")}
        for x in tensors_of(own):
            alias = id(x) not in parameters and _memory(x) in memories
            if alias or x.grad_fn is not None:
                memo[id(x)] = x.detach().clone()
                aliases += [memo[id(x)]] * alias
    try:
        copied = copy.deepcopy((model, loss), memo)
    except Exception as error:
        raise ValueError(f"the model cannot be copied for the audit: {error}") from error
    theirs = {_memory(x) for x in (*model.parameters(), *model.buffers())}
    for name, x in (*copied[0].named_parameters(), *copied[0].named_buffers()):
        if _memory(x) in theirs:
            raise ValueError(
                f"the model cannot be copied for the audit: {name} of the copy is the model's own;"
                " let the __deepcopy__ of the module that has it copy its tensors"
            )
    return copied, aliases


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse parameters of which one moves when another does.

    Raises:
        ValueError: two overlap in memory.
    """
    spans = []
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if x.layout is torch.strided and x.numel() and not x.is_meta and type(x).__name__ in _PLAIN:
            last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
            first = x.data_ptr()
            spans.append((str(x.device), first, first + (last + 1) * x.element_size(), name))
    spans.sort()
    for (device, _, end, a), (other, begin, _, b) in itertools.pairwise(spans):
        if device == other and begin < end:
            raise ValueError(
                f"{a} and {b} share memory, so that neither can move alone: make one of them a"
                " copy, or one parameter of both"
            )


_PLAIN = ("Parameter", "Tensor", "Buffer")


def _memory(x: Tensor) -> int:
    """The address of the memory of a tensor; its identity, if it has none of its own."""
    strided = x.layout is torch.strided and type(x).__name__ in _PLAIN
    return (x.untyped_storage().data_ptr() if strided else 0) or id(x)


def _real_and_dense(x: Tensor) -> Tensor:
    """The entries of a tensor of any kind."""
    if x.is_nested:
        x = torch.cat([part.flatten() for part in x.unbind()])
    elif x.layout != torch.strided:
        x = x.to_dense()
    return torch.view_as_real(x) if x.is_complex() else x


def _jittered(value: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """A tensor of the batch, with noise in units of its entries."""
    if not (size and value.is_floating_point() and value.numel()):
        return value
    finite = torch.where(value.isfinite(), value, 0)
    typical = finite.square().mean().sqrt().item() or 1.0
    noise = torch.rand(value.shape, generator=generator).to(value) * 2 - 1
    return value + size * (0.3 * finite.abs() + 0.1 * typical) * noise


def _eager() -> AbstractContextManager[Any]:
    """Compiled code runs as written, within the reach of a function mode."""
    if "torch._dynamo" not in sys.modules:  # an import of seconds, and nothing is compiled
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of Python, NumPy and torch from `seed`; their states are put back."""
    state, numpy_state = random.getstate(), np.random.get_state()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if on_gpu else ()
    with torch.random.fork_rng(devices=devices):
        try:
            random.seed(seed)
            np.random.seed(seed)
            # Without a GPU torch.manual_seed formats stack traces, a quarter of a small audit.
            gpu = torch.accelerator.is_available()
            (torch.manual_seed if gpu else torch.default_generator.manual_seed)(seed)
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)
