"""The model under audit as a function of a point: of parameters, batch, random numbers and eps."""

from __future__ import annotations

import collections
import copy
import itertools
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from spherenorm.audit.precise import LARGEST_EPS, PreciseMode
from spherenorm.torch_internals import is_dynamo_imported

_PERIOD = 131_071
"""Noise repeats after so many numbers, since drawing one takes ten times as long as copying it. A
prime, so that no two rows of a large weight have the same noise."""
_NAMED_EPS = re.compile(r"(^|[._])eps(ilon)?($|_)")
_CACHES = ("past_key_values", "past_key_value", "cache", "kv_cache")
_ATOMS = (type, str, bytes, int, float, complex, types.NoneType, types.ModuleType)
_OPAQUE = (*_ATOMS, types.FunctionType, types.BuiltinFunctionType, types.MethodType, nn.Module)
_CONTAINERS = (tuple, list, set, frozenset, collections.deque)
_PLAIN = ("Parameter", "Tensor", "Buffer")


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
        self, model: nn.Module, batch: Any, loss: Callable[[Any], Any] | None, dtype: torch.dtype
    ) -> None:
        self.dtype, self.doubts = dtype, dict[str, None]()
        _refuse_shared_memory(model)
        self.model, self.loss = _copied(model, loss, dtype)
        _refuse_shared_memory(model, self.model)
        self.parameters = dict(self.model.named_parameters())
        self.start = {name: x.detach() for name, x in model.named_parameters()}
        self._known = {id(x) for x in self.parameters.values()}
        self._callers = {_memory(x) for x in (*model.parameters(), *model.buffers())}
        self._buffers = [
            (module, name, None if buffer is None else buffer.clone())
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
        ]
        self._left = [start for *_, start in self._buffers]
        self.batch = batch
        if not isinstance(batch, Mapping):
            self.batch = tuple(batch) if isinstance(batch, tuple | list) else (batch,)

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
        taking = [x.data for x in self.parameters.values() if x.requires_grad]
        for size, seed in ((point.jitter, point.seed), (point.nudge, point.seed + 1)):
            for value, piece, noise in with_noise(taking, seed) if size else ():
                usual = (value[0].numel() if value.ndim > 1 and len(value) else 1) ** -0.5
                piece.addcmul_(piece, noise, value=0.3 * size)
                piece.add_(noise, alpha=0.1 * usual * size)
        for (module, name, start), left in zip(self._buffers, self._left, strict=True):
            buffer = left if point.jitter else start
            fresh = None if buffer is None else buffer.clone()
            if fresh is not None and _NAMED_EPS.search(name):
                fresh *= point.eps_factor if 0 < fresh.abs().max() <= LARGEST_EPS else 1
            module._buffers[name] = fresh

    @contextmanager
    def evaluation(self, point: Point) -> Iterator[PreciseMode]:
        """The context of a forward and a backward pass: precision, eps, random numbers.

        Compiled code runs as written, within the reach of a function mode. So do parts under
        reentrant checkpointing, whose own backward pass cannot give chosen gradients.
        """
        default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        mode = PreciseMode(self.dtype, point.eps_factor, self.doubts, self._known, self._callers)
        eager: Any = (
            torch.compiler.set_stance("force_eager") if is_dynamo_imported() else nullcontext()
        )
        try:
            with _seeded(point.seed), eager, _checkpoints_as_plain_calls(), mode:
                yield mode
        finally:
            torch.set_default_dtype(default)

    def outputs(
        self, point: Point, change: Callable[[], None] | None = None, watch: Any = None
    ) -> list[Tensor]:
        """The outputs at a point, without a graph.

        Args:
            point: the place.
            change: of the parameters there.
            watch: a context of the pass, whose `finish` gets the outputs.
        """
        self.place(point)
        if change is not None:
            change()
        with torch.no_grad(), self.evaluation(point) as mode, watch or nullcontext():
            found = self.run(point, mode)
        if watch is not None:
            watch.finish(found)
        return found

    def run(self, point: Point, mode: PreciseMode) -> list[Tensor]:
        """A forward pass, within `evaluation`: all real tensors in its output."""
        generator = torch.Generator().manual_seed(point.seed)

        def moved(x: Tensor) -> Tensor:
            value = _jittered(in_dtype(x, self.dtype), point.batch_jitter, generator)
            return value.requires_grad_() if x.requires_grad else value

        given = copy.deepcopy(self.batch, {id(x): moved(x) for x in tensors_of(self.batch)})
        result = self.model(**given) if isinstance(given, Mapping) else self.model(*given)
        if not point.jitter and not point.nudge:
            now = (module._buffers[name] for module, name, _ in self._buffers)
            self._left = [None if buffer is None else buffer.detach().clone() for buffer in now]
        if self.loss is not None:
            mode.in_loss = True  # (which may have parameters)
            result = self.loss(result)
        real = (_real_and_dense(x) for x in tensors_of(result, as_outputs=True))
        return [x for x in real if x.is_floating_point() and x.numel()]


def tensors_of(
    value: Any, seen: dict[int, Any] | None = None, *, as_outputs: bool = False
) -> Iterator[Tensor]:
    """The tensors in dicts, lists, tuples, sets and attributes, in order, each once.

    Modules and functions are not gone through; as outputs, caches of keys and values are not, too.

    Raises:
        ValueError: as outputs, an object has tensors that cannot be found.
    """
    seen, kind = {} if seen is None else seen, type(value).__name__
    if id(value) in seen or isinstance(value, _OPAQUE) or (as_outputs and kind.endswith("Cache")):
        return
    seen[id(value)] = value  # kept, so that no other gets its identity
    if isinstance(value, Tensor):
        yield value
        return
    if not isinstance(value, (Mapping, *_CONTAINERS)):
        if as_outputs and not hasattr(value, "__dict__"):
            raise ValueError(
                f"the model returns a {kind}, in which no tensors can be found: pass a loss that"
                " takes them out"
            )
        value = getattr(value, "__dict__", {})
    items: Any = value
    if isinstance(value, Mapping):
        names = (str(key).lstrip("_") if as_outputs else "" for key in value)
        items = [x for name, x in zip(names, value.values(), strict=True) if name not in _CACHES]
    for item in items:
        yield from tensors_of(item, seen, as_outputs=as_outputs)


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
    return x.detach().to(dtype.to_complex(), copy=True) if x.is_complex() else x.detach().clone()


def with_noise(values: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each real dense tensor, in pieces, with numbers in [-1, 1]; the same for the same seed."""
    real = [x for x in values if x.is_floating_point() and x.numel()]
    period = min(sum(x.numel() for x in real), _PERIOD)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(period, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    twice, used = draws.repeat(2), 0
    for value in real:
        in_memory = value.as_strided((value.numel(),), (1,))
        for piece in torch.split(in_memory, period):
            noise = twice[used : used + len(piece)]
            used = (used + len(piece)) % period
            yield value, piece, noise.to(piece)


def _copied(model: nn.Module, loss: Any, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """Copies in `dtype` that share nothing with the caller's; graphs that they keep are cut off.

    An attribute that shares memory with a parameter stays the caller's: to read it is an error.
    """
    memo: dict[int, Any] = {}
    modules = [each for each in (model, loss) if isinstance(each, nn.Module)]
    for x in itertools.chain(*((*each.parameters(), *each.buffers()) for each in modules)):
        if not (x.is_floating_point() or x.is_complex()):
            # Quantized weights are copied by their own class, with their scales.
            memo[id(x)] = copy.deepcopy(x)
            continue
        value = in_dtype(x, dtype)
        memo[id(x)] = nn.Parameter(value, x.requires_grad) if isinstance(x, nn.Parameter) else value
    memories = {_memory(x) for x in model.parameters()}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is compiled by torch.jit, and the audit cannot see into it:"
                " pass the model from before that"
            )
        for x in tensors_of({k: x for k, x in vars(module).items() if k != "_modules"}):
            if id(x) not in memo and _memory(x) in memories:
                memo[id(x)] = x
            elif id(x) not in memo and x.grad_fn is not None:
                memo[id(x)] = x.detach().clone()
    try:
        copied: tuple[nn.Module, Any] = copy.deepcopy((model, loss), memo)
    except Exception as error:
        raise ValueError(f"the model cannot be copied for the audit: {error}") from error
    return copied


def _refuse_shared_memory(model: nn.Module, copied: nn.Module | None = None) -> None:
    """Refuse parameters and buffers of which one moves when another does, or one of a copy.

    Raises:
        ValueError: two overlap in memory.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    if copied is not None:
        ours = (*copied.named_parameters(), *copied.named_buffers())
        named += [(f"its copy by __deepcopy__, {name},", x) for name, x in ours]
    spans = []
    for name, x in named:
        if x.layout is torch.strided and x.numel() and not x.is_meta and type(x).__name__ in _PLAIN:
            last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
            first = x.data_ptr()
            spans.append((str(x.device), first, first + (last + 1) * x.element_size(), name))
    for (device, _, end, a), (other, begin, _, b) in itertools.pairwise(sorted(spans)):
        if device == other and begin < end:
            raise ValueError(
                f"{a} and {b} share memory, so that neither can move alone: make one of them a"
                " copy, or one parameter of both"
            )


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


@contextmanager
def _checkpoints_as_plain_calls() -> Iterator[None]:
    """Call the parts under `checkpoint(use_reentrant=True)` of torch without checkpointing."""
    checkpoints = sys.modules.get("torch.utils.checkpoint")
    if checkpoints is None:  # Nothing has imported it, so that nothing uses it.
        yield
        return

    def call(run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return run_function(*args)

    with mock.patch.object(checkpoints.CheckpointFunction, "apply", call):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of Python, NumPy and torch from `seed`; their states are put back."""
    state, numpy_state = random.getstate(), np.random.get_state()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else ()):
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
