"""The model under audit as a function of a point: of parameters, batch, random numbers and eps."""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spherenorm._numerics import wide_dtype
from spherenorm.audit._copies import copy_model, in_dtype, memory_of
from spherenorm.audit._nested import change_tensors, outputs_of
from spherenorm.audit._precise import LARGEST_EPS, PreciseMode, TensorSubstitution

_PERIOD = 1_048_573
"""A prime, so that no two rows of a large weight have the same noise."""


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
        inputs, keywords: of its forward pass.
        loss: takes the model's output; None keeps the whole output.
        dtype: of the arithmetic.

    Attributes:
        sharing: the parameters in one memory, by `memory_of` one of them.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        keywords: Mapping[str, Any],
        loss: Callable[[Any], Any] | None,
        dtype: torch.dtype,
    ) -> None:
        self.dtype = dtype
        self.model, self.loss = copy_model(model, loss, dtype)
        self.batch = change_tensors((tuple(inputs), dict(keywords)), lambda x: x)
        self.parameters = dict(self.model.named_parameters())
        self.start = dict(model.named_parameters())
        self.sharing: dict[int, list[Tensor]] = {}
        for parameter in self.parameters.values():
            self.sharing.setdefault(memory_of(parameter), []).append(parameter)
        self.buffers, self.theirs = [], []
        for module, original in zip(self.model.modules(), model.modules(), strict=True):
            for name, buffer in module._buffers.items():
                if buffer is not None and memory_of(buffer) in self.sharing:
                    continue  # it is placed with the parameters
                start = None if buffer is None else buffer.clone()
                self.buffers.append((module, name, start))
                self.theirs.append(original._buffers[name])
        self.left: list[Tensor | None] = [start for *_, start in self.buffers]
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
            parameter.data.copy_(self.start[name].detach())
            parameter.grad = None
        _move(self.parameters.values(), point.jitter, point.seed)
        _move(self.parameters.values(), point.nudge, point.seed + 1)
        for (module, name, start), left in zip(self.buffers, self.left, strict=True):
            buffer = left if point.jitter else start
            fresh = None if buffer is None else buffer.clone()
            if fresh is not None and "eps" in name and 0 < fresh.abs().max() <= LARGEST_EPS:
                fresh *= point.eps_factor
            module._buffers[name] = fresh

    @contextmanager
    def evaluation(self, point: Point) -> Iterator[None]:
        """The context of a forward and a backward pass: precision, eps, random numbers."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        self._substitution = substitution = self._stand_ins()
        mode = PreciseMode(self.dtype, point.eps_factor, self.doubts, substitution)
        try:
            with _seeded(point.seed), _eager(), mode:
                yield
        finally:
            substitution.give_back()
            torch.set_default_dtype(default)

    def _stand_ins(self) -> TensorSubstitution:
        """Copies of the caller's tensors at a point, to stand in for them."""
        copies: dict[int, Tensor] = {
            id(start): self.parameters[name] for name, start in self.start.items()
        }
        for (module, name, _), theirs in zip(self.buffers, self.theirs, strict=True):
            ours = module._buffers[name]
            if theirs is not None and ours is not None:
                copies[id(theirs)] = ours
        return TensorSubstitution(copies, {id(parameter) for parameter in self.parameters.values()})

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

        inputs, keywords = change_tensors(self.batch, moved)
        result = self.model(*inputs, **keywords)
        for parameter in self._substitution.foreign:
            self.doubts[
                f"the model uses a parameter of shape {tuple(parameter.shape)} that is not among"
                " its own, such as that of a second copy: it stays as it is when the others move"
            ] = None
        if not point.jitter and not point.nudge:
            now = (module._buffers[name] for module, name, _ in self.buffers)
            self.left = [None if buffer is None else buffer.detach().clone() for buffer in now]
        if self.loss is not None:
            result = self.loss(result)
        real = (_real_and_dense(x) for x in outputs_of(result))
        return [x for x in real if x.is_floating_point() and x.numel()]


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` or `DistributedDataParallel`."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _real_and_dense(x: Tensor) -> Tensor:
    """The entries of a tensor of any kind."""
    if x.is_nested:
        x = torch.cat([part.flatten() for part in x.unbind()])
    elif x.layout != torch.strided:
        x = x.to_dense()
    return torch.view_as_real(x) if x.is_complex() else x


def _move(parameters: Iterable[Tensor], size: float, seed: int) -> None:
    """Jitter the parameters that take a gradient."""
    moved = [x.data for x in parameters if size and x.requires_grad and x.is_floating_point()]
    noises = noises_of(moved, seed)
    for value in moved:
        usual = (value[0].numel() if value.ndim > 1 and len(value) else 1) ** -0.5
        noise = noises[value.device].like(value)
        value.addcmul_(value, noise, value=0.3 * size)
        value.add_(noise, alpha=0.1 * usual * size)


def noises_of(values: Sequence[Tensor], seed: int) -> dict[torch.device, Noise]:
    """Noise for these tensors, on each of their devices."""
    sizes = collections.defaultdict[torch.device, list[int]](list)
    for value in values:
        sizes[value.device].append(value.numel())
    return {device: Noise(seed, own, device) for device, own in sizes.items()}


class Noise:
    """Numbers in [-1, 1], one tensor after the other; the same ones again after `_PERIOD`.

    Drawing a number takes ten times as long as copying one, and a large model has many.

    Args:
        seed: of the numbers.
        sizes: of the tensors to come.
        device: theirs.
    """

    def __init__(self, seed: int, sizes: Sequence[int], device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self._period = min(sum(sizes), _PERIOD)
        draws = torch.empty(self._period, dtype=wide_dtype(device), device=device)
        draws.uniform_(-1, 1, generator=generator)
        longest = max(sizes, default=0) if sum(sizes) > _PERIOD else 0
        # As long as that any tensor's numbers are one stretch.
        self._draws = draws.repeat(1 - (-longest // _PERIOD))
        self._used = 0

    def like(self, value: Tensor) -> Tensor:
        """The next numbers, in the shape and type of a tensor."""
        first = self._used % max(self._period, 1)
        self._used = first + value.numel()
        return self._draws[first : self._used].view(value.shape).to(value)


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
