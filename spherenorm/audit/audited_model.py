"""The model under audit as a function of a point: of parameters, batch, random numbers and eps.

`AuditedModel` evaluates it; `PreciseMode` sets the precision and the eps of its forward pass.
"""

from __future__ import annotations

import collections
import copy
import itertools
import random
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spherenorm.torch_internals import count_dispatch_modes, is_dynamo_imported

SMALL_EPS_FACTOR = 1e-10
"""Factor on every eps that shows what holds in the limit of eps = 0."""
MAX_EPS = 1e-2
"""Largest number that counts as the eps of a normalization."""
_MAX_ADDED_EPS = 1e-3
"""Largest number that counts as an eps where it is added to a tensor or bounds it from below."""
_ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__", "where"}
_CLAMPS = {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_"}
_NORMS_WITHOUT_EPS = {
    *("normal", "normal_", "log_normal_", "trunc_normal_", "local_response_norm"),
    *("renorm", "renorm_", "embedding_renorm_"),
}
"""Functions with "norm" in their name whose small numbers are no eps."""
_CASTS = {"float", "half", "bfloat16"}
_BATCH_STATISTICS = {"batch_norm": "BatchNorm", "instance_norm": "InstanceNorm"}
_NOISE_PERIOD = 131_071
"""Noise repeats after this many numbers, because drawing a number takes ten times as long as
copying one. A prime, so that no two rows of a large weight have the same noise."""
_EPS_NAME = re.compile(r"(^|[._])eps(ilon)?($|_)")
_CACHE_NAMES = ("past_key_values", "past_key_value", "cache", "kv_cache")
_ATOM_TYPES = (type, str, bytes, int, float, complex, types.NoneType, types.ModuleType)
_FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_OPAQUE_TYPES = (*_ATOM_TYPES, *_FUNCTION_TYPES, nn.Module)
_CONTAINER_TYPES = (tuple, list, set, frozenset, collections.deque)
_CLASSES_WITH_STORAGE = ("Parameter", "Tensor", "Buffer")


@dataclass(frozen=True)
class Point:
    """A point at which the model is evaluated.

    Attributes:
        seed: seed for the model's own random numbers, and for the jitter.
        jitter: size of the noise on the parameters; 0 leaves them as they are, 1 is the usual size.
        batch_jitter: size of the noise on the batch, in the same scale.
        eps_factor: factor on the eps of every normalization.
        nudge: size of a second noise on the parameters, which shows what depends on them.
    """

    seed: int = 0
    jitter: float = 0.0
    batch_jitter: float = 0.0
    eps_factor: float = 1.0
    nudge: float = 0.0


class AuditedModel:
    """A copy of a model with its batch and loss; the caller's objects are never written.

    Args:
        model: the model; it is copied.
        batch: a tensor, a tuple or list of the model's arguments, or a mapping of its keyword
            arguments.
        loss: a function of the model's output; None keeps the whole output.
        dtype: dtype of the arithmetic.

    Attributes:
        caveats: sentences that say why the audit may be wrong, as the keys of a dict.
        parameters: the copy's parameters by name.

    Raises:
        ValueError: the model cannot be copied, or the copy would share memory with it.
    """

    def __init__(
        self, model: nn.Module, batch: Any, loss: Callable[[Any], Any] | None, dtype: torch.dtype
    ) -> None:
        self.dtype = dtype
        self.caveats: dict[str, None] = {}
        _refuse_shared_memory(model)
        self.model, self.loss = _copy_model_and_loss(model, loss, dtype)
        _refuse_shared_memory(model, self.model)
        self.parameters = dict(self.model.named_parameters())
        self._initial_values = {name: x.detach() for name, x in model.named_parameters()}
        self._parameter_ids = {id(x) for x in self.parameters.values()}
        self._caller_addresses = {_address(x) for x in (*model.parameters(), *model.buffers())}
        self._buffers = [
            (module, name, None if buffer is None else buffer.clone())
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
        ]
        self._buffers_after_forward = [buffer for _, _, buffer in self._buffers]
        self.batch = batch
        if not isinstance(batch, Mapping):
            self.batch = tuple(batch) if isinstance(batch, tuple | list) else (batch,)

    def move_to(self, point: Point) -> None:
        """Give all parameters and buffers their values at a point.

        Without jitter, buffers have the caller's values. With jitter they have the values that the
        last pass without jitter left, because many (a running center, a memory) start at 0.

        A parameter that takes a gradient becomes w (1 + 0.3 u) + 0.1 a u, with u uniform in
        [-1, 1] for each entry and a the usual size of an entry. Gains stay positive, and entries
        that start at 0 leave it.
        """
        for name, parameter in self.parameters.items():
            parameter.data.copy_(self._initial_values[name])
        trainable = [x.data for x in self.parameters.values() if x.requires_grad]
        for size, seed in ((point.jitter, point.seed), (point.nudge, point.seed + 1)):
            if size:
                _add_noise(trainable, size, seed)
        for (module, name, initial), after_forward in zip(
            self._buffers, self._buffers_after_forward, strict=True
        ):
            source = after_forward if point.jitter else initial
            buffer = None if source is None else source.clone()
            if buffer is not None and _EPS_NAME.search(name) and 0 < buffer.abs().max() <= MAX_EPS:
                buffer *= point.eps_factor
            module._buffers[name] = buffer

    @contextmanager
    def evaluation(self, point: Point) -> Iterator[PreciseMode]:
        """Set precision, eps and random numbers for a forward and a backward pass.

        Compiled code runs eagerly, because a function mode does not reach into it. So do parts
        under reentrant checkpointing, whose own backward pass takes no chosen gradients.
        """
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        mode = PreciseMode(
            self.dtype, point.eps_factor, self.caveats, self._parameter_ids, self._caller_addresses
        )
        # Importing Dynamo takes seconds. While nothing has imported it, nothing is compiled.
        eager: Any = nullcontext()
        if is_dynamo_imported():
            eager = torch.compiler.set_stance("force_eager")
        try:
            with _seeded(point.seed), eager, _without_reentrant_checkpointing(), mode:
                yield mode
        finally:
            torch.set_default_dtype(default_dtype)

    def outputs_at(
        self, point: Point, change: Callable[[], None] | None = None, tracer: Any = None
    ) -> list[Tensor]:
        """Return the outputs at a point, without a graph.

        Args:
            point: the point.
            change: a function that changes the parameters after they have moved to the point.
            tracer: a context for the pass; its `finish` is called with the outputs.
        """
        self.move_to(point)
        if change is not None:
            change()
        with torch.no_grad(), self.evaluation(point) as mode, tracer or nullcontext():
            outputs = self.forward(point, mode)
        if tracer is not None:
            tracer.finish(outputs)
        return outputs

    def forward(self, point: Point, mode: PreciseMode) -> list[Tensor]:
        """Run a forward pass, within `evaluation`, and return all real tensors of its output."""
        generator = torch.Generator().manual_seed(point.seed)
        inputs: dict[int, Any] = {}
        for x in find_tensors(self.batch):
            value = _jitter(copy_to_dtype(x, self.dtype), point.batch_jitter, generator)
            inputs[id(x)] = value.requires_grad_() if x.requires_grad else value
        batch = copy.deepcopy(self.batch, inputs)
        try:
            result = self.model(**batch) if isinstance(batch, Mapping) else self.model(*batch)
        except Exception as error:
            tensors = [f"{tuple(x.shape)} of {x.dtype}" for x in find_tensors(self.batch)]
            error.add_note(
                "Raised by the model on the argument `batch`, whose tensors have these shapes: "
                f"{', '.join(tensors) or 'none'}. The audit runs the model on copies of them, the "
                f"floating ones in {self.dtype}; indices must be integers"
            )
            raise
        if not point.jitter and not point.nudge:
            buffers = [module._buffers[name] for module, name, _ in self._buffers]
            self._buffers_after_forward = [
                None if buffer is None else buffer.detach().clone() for buffer in buffers
            ]
        if self.loss is not None:
            mode.in_loss = True  # A loss may have parameters of its own.
            result = self.loss(result)
        outputs = [_to_real_dense(x) for x in find_tensors(result, as_outputs=True)]
        return [x for x in outputs if x.is_floating_point() and x.numel()]


def find_tensors(
    value: Any, visited: dict[int, Any] | None = None, *, as_outputs: bool = False
) -> Iterator[Tensor]:
    """Yield each tensor in dicts, lists, tuples, sets and attributes once, in order.

    Modules and functions are not searched.

    Args:
        value: the object to search.
        visited: objects that were searched before, by id; the search adds to it.
        as_outputs: skip caches of keys and values, and refuse objects that cannot be searched.

    Raises:
        ValueError: with `as_outputs`, an object has no attributes to search.
    """
    visited = {} if visited is None else visited
    class_name = type(value).__name__
    if id(value) in visited or isinstance(value, _OPAQUE_TYPES):
        return
    if as_outputs and class_name.endswith("Cache"):
        return
    # Keeping the object alive keeps its id from being given to another one.
    visited[id(value)] = value
    if isinstance(value, Tensor):
        yield value
        return
    if not isinstance(value, (Mapping, *_CONTAINER_TYPES)):
        if as_outputs and not hasattr(value, "__dict__"):
            raise ValueError(
                f"the model returns a {class_name}, in which no tensors can be found: pass a loss"
                " that takes them out"
            )
        value = getattr(value, "__dict__", {})
    items: Any = value
    if isinstance(value, Mapping):
        items = list(value.values())
        if as_outputs:
            items = [x for key, x in value.items() if str(key).lstrip("_") not in _CACHE_NAMES]
    for item in items:
        yield from find_tensors(item, visited, as_outputs=as_outputs)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, `DataParallel` or `DistributedDataParallel`.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def copy_to_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of `x`, in `dtype` if it is real, in its complex counterpart if complex."""
    if x.is_floating_point():
        return x.detach().to(dtype, copy=True)
    return x.detach().to(dtype.to_complex(), copy=True) if x.is_complex() else x.detach().clone()


def pair_with_noise(values: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (tensor, piece of it, noise for the piece) for all entries of real dense tensors.

    The noise is uniform in [-1, 1] and depends on the seed and the sizes alone.
    """
    real = [x for x in values if x.is_floating_point() and x.numel()]
    period = min(sum(x.numel() for x in real), _NOISE_PERIOD)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(period, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    two_periods = draws.repeat(2)
    offset = 0
    for value in real:
        flat = value.as_strided((value.numel(),), (1,))
        for piece in torch.split(flat, period):
            noise = two_periods[offset : offset + len(piece)]
            offset = (offset + len(piece)) % period
            yield value, piece, noise.to(piece)


def _add_noise(values: Sequence[Tensor], size: float, seed: int) -> None:
    """Replace each entry w by w (1 + 0.3 size u) + 0.1 size a u; see `AuditedModel.move_to`."""
    for value, piece, noise in pair_with_noise(values, seed):
        fan_in = value[0].numel() if value.ndim > 1 and len(value) else 1
        piece.addcmul_(piece, noise, value=0.3 * size)
        piece.add_(noise, alpha=0.1 * fan_in**-0.5 * size)


def _copy_model_and_loss(model: nn.Module, loss: Any, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """Return copies in `dtype` that share no parameter or buffer with the caller's.

    Attributes that hold a graph are detached. An attribute that shares memory with a parameter
    stays the caller's tensor, so that `PreciseMode` raises an error when the model reads it.
    """
    memo: dict[int, Any] = {}
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    for x in itertools.chain(*((*m.parameters(), *m.buffers()) for m in modules)):
        if not (x.is_floating_point() or x.is_complex()):
            # Quantized weights are copied by their own class, with their scales.
            memo[id(x)] = copy.deepcopy(x)
            continue
        value = copy_to_dtype(x, dtype)
        memo[id(x)] = nn.Parameter(value, x.requires_grad) if isinstance(x, nn.Parameter) else value
    addresses = {_address(x) for x in model.parameters()}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is compiled by torch.jit, and the audit cannot see into it:"
                " pass the model from before that"
            )
        for x in find_tensors({key: x for key, x in vars(module).items() if key != "_modules"}):
            if id(x) not in memo and _address(x) in addresses:
                memo[id(x)] = x
            elif id(x) not in memo and x.grad_fn is not None:
                memo[id(x)] = x.detach().clone()
    try:
        copies: tuple[nn.Module, Any] = copy.deepcopy((model, loss), memo)
    except Exception as error:
        raise ValueError(f"the model cannot be copied for the audit: {error}") from error
    return copies


def _refuse_shared_memory(model: nn.Module, model_copy: nn.Module | None = None) -> None:
    """Refuse parameters and buffers that overlap in memory, with each other or with a copy's.

    Raises:
        ValueError: two overlap in memory.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if model_copy is not None:
        copies = (*model_copy.named_parameters(), *model_copy.named_buffers())
        tensors += [(f"its copy by __deepcopy__, {name},", x) for name, x in copies]
    spans = []
    for name, x in tensors:
        if _has_storage(x) and x.numel() and not x.is_meta:
            last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
            start = x.data_ptr()
            end = start + (last + 1) * x.element_size()
            spans.append((str(x.device), start, end, name))
    for (device_a, _, end_a, a), (device_b, start_b, _, b) in itertools.pairwise(sorted(spans)):
        if device_a == device_b and start_b < end_a:
            raise ValueError(
                f"{a} and {b} share memory, so that neither can move alone: make one of them a"
                " copy, or one parameter of both"
            )


def _has_storage(x: Tensor) -> bool:
    """Return True for a strided tensor of torch's own classes, which has one block of memory."""
    return x.layout is torch.strided and type(x).__name__ in _CLASSES_WITH_STORAGE


def _address(x: Tensor) -> int:
    """Return the address of a tensor's memory, or its id if it has no memory of its own."""
    return (x.untyped_storage().data_ptr() if _has_storage(x) else 0) or id(x)


def _to_real_dense(x: Tensor) -> Tensor:
    """Return the entries of a nested, sparse or complex tensor as a real dense one."""
    if x.is_nested:
        x = torch.cat([part.flatten() for part in x.unbind()])
    elif x.layout != torch.strided:
        x = x.to_dense()
    return torch.view_as_real(x) if x.is_complex() else x


def _jitter(value: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Return a tensor of the batch with noise in units of its entries."""
    if not (size and value.is_floating_point() and value.numel()):
        return value
    finite = torch.where(value.isfinite(), value, 0)
    root_mean_square = finite.square().mean().sqrt().item() or 1.0
    noise = torch.rand(value.shape, generator=generator).to(value) * 2 - 1
    return value + size * (0.3 * finite.abs() + 0.1 * root_mean_square) * noise


@contextmanager
def _without_reentrant_checkpointing() -> Iterator[None]:
    """Call the parts under torch's `checkpoint(use_reentrant=True)` as plain functions."""
    checkpoint_module = sys.modules.get("torch.utils.checkpoint")
    if checkpoint_module is None:  # What is not imported is not used.
        yield
        return

    def call(run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return run_function(*args)

    with mock.patch.object(checkpoint_module.CheckpointFunction, "apply", call):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random numbers of Python, NumPy and torch, and restore their states on exit."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    cuda_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if cuda_in_use else ()
    with torch.random.fork_rng(devices=devices):
        try:
            random.seed(seed)
            np.random.seed(seed)
            if torch.accelerator.is_available():
                torch.manual_seed(seed)
            else:
                # torch.manual_seed formats stack traces here, a quarter of a small audit's time.
                torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


class PreciseMode(TorchFunctionMode):
    """A function mode that computes in `dtype` and multiplies every eps.

    An eps is a small positive Python number that a normalization takes (at most 1e-2), or that is
    added to a tensor or bounds it from below (at most 1e-3).

    Args:
        dtype: dtype of the model's parameters; a lower precision that the model asks for is
            replaced by it.
        eps_factor: factor on every eps; 1 leaves it as it is.
        caveats: receives sentences that say why the audit may be wrong.
        parameter_ids: the `id` of each parameter of the model; another parameter is a caveat.
        caller_addresses: memory of the caller's parameters and buffers, which nothing may read.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        eps_factor: float,
        caveats: dict[str, None],
        parameter_ids: Collection[int],
        caller_addresses: Collection[int],
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.eps_factor = eps_factor
        self.caveats = caveats
        self.in_loss = False
        self._parameter_ids = parameter_ids
        self._caller_addresses = caller_addresses
        by_precision = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        self._lower_dtypes = frozenset(by_precision[: by_precision.index(dtype)])

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = dict(kwargs or {})
        if name == "__get__":
            return func(*args, **kwargs)
        # Names that end in _ write to an argument, as __setitem__ and __iadd__ do.
        in_place = name.endswith("_")
        args = tuple(self._convert(arg, in_place) for arg in args)
        kwargs = {key: self._convert(arg, in_place) for key, arg in kwargs.items()}
        if name in _CASTS and len(args) == 1:
            return args[0].to(self.dtype)
        if name in _BATCH_STATISTICS:
            self._note_weak_batch_statistics(name, args, kwargs)
        if self.eps_factor != 1:
            args, kwargs = self._scale_eps(name, args, kwargs)
        if name == "conv2d" and not kwargs and _is_slow_convolution(*args):
            return _convolve_by_matmul(*args)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.dtype in self._lower_dtypes and not in_place:
            return result.to(self.dtype)
        return result

    def _convert(self, arg: Any, in_place: bool) -> Any:
        """Return an argument in the mode's precision, or as it is if the function writes to it."""
        if isinstance(arg, Tensor):
            self._refuse_callers_memory(arg)
            self._note_foreign_parameter(arg)
            return arg if in_place or arg.dtype not in self._lower_dtypes else arg.to(self.dtype)
        if type(arg) in (list, tuple):
            return type(arg)(self._convert(item, in_place) for item in arg)
        if isinstance(arg, torch.dtype) and arg in self._lower_dtypes and not in_place:
            return self.dtype
        return arg

    def _refuse_callers_memory(self, x: Tensor) -> None:
        if type(x) not in (Tensor, nn.Parameter) or x.layout is not torch.strided or not x.numel():
            return
        if x.untyped_storage().data_ptr() in self._caller_addresses:
            raise ValueError(
                f"the model or its loss reads a tensor of shape {tuple(x.shape)} in the"
                " memory of a parameter or buffer of yours, which a copy does not move, as a"
                " .data or a closure does: read the parameter itself; pass the unwrapped"
                " model, and a model to its loss by functools.partial(loss, model)"
            )

    def _note_foreign_parameter(self, x: Tensor) -> None:
        foreign = isinstance(x, nn.Parameter) and id(x) not in self._parameter_ids
        if foreign and x.requires_grad and not self.in_loss:
            self.caveats[
                "the model uses a parameter that is not among its own, such as that of a second"
                " copy: it stays as it is when the others move"
            ] = None

    def _scale_eps(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a function with every eps among them multiplied."""
        largest = MAX_EPS
        n_positional = len(args)  # So many leading arguments may be an eps,
        keywords = set(kwargs)  # and so may these.
        if name in _ADDITIONS:
            largest = _MAX_ADDED_EPS
            keywords = set()
        elif name in _CLAMPS and n_positional < 3 and kwargs.get("max") is None:
            largest = _MAX_ADDED_EPS  # With two bounds, a clamp sets a range and holds no eps.
        elif name != "cosine_similarity" and ("norm" not in name or name in _NORMS_WITHOUT_EPS):
            n_positional = 0
            keywords = {"eps"}

        def scale(x: Any) -> Any:
            return x * self.eps_factor if isinstance(x, float) and 0 < x <= largest else x

        new_args = (*map(scale, args[:n_positional]), *args[n_positional:])
        return new_args, {key: scale(x) if key in keywords else x for key, x in kwargs.items()}

    def _note_weak_batch_statistics(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note a BatchNorm or InstanceNorm with constant statistics, or with too few values."""
        layer = _BATCH_STATISTICS[name]
        x = args[0] if args else kwargs["input"]
        flag = "training" if name == "batch_norm" else "use_input_stats"
        uses_batch = args[5] if len(args) > 5 else kwargs.get(flag, name == "instance_norm")
        n_samples = x.shape[0] if name == "batch_norm" else 1
        n_values = n_samples * x[0, 0].numel() if x.ndim > 1 else n_samples
        if not uses_batch:
            self.caveats[
                f"{layer} is in eval mode, where its statistics are constants: what holds here may"
                " be another thing in training"
            ] = None
        elif n_values <= 2:
            self.caveats[
                f"{layer} saw {n_values} values per channel, of which it makes signs: use a larger"
                " batch"
            ] = None


def _is_slow_convolution(x: Tensor, weight: Tensor, *options: Any) -> bool:
    """Return True for large filters and few images in float64, where torch's `conv2d` is slow.

    torch reads the filters once for each image. The columns of the whole batch take no more memory
    than the filters then. Under a dispatch mode the answer is False, so that the mode sees the
    convolution.

    Args:
        x: input of `conv2d`.
        weight: filters.
        options: bias, stride, padding, dilation and groups.
    """
    if x.ndim != 4 or len(options) != 5:
        return False
    _, _, padding, _, groups = options
    if groups != 1 or not isinstance(padding, tuple):
        return False
    if not x.is_cpu or x.dtype is not torch.float64:
        return False
    columns_fit = x.numel() * weight[0, 0].numel() <= weight.numel()
    return columns_fit and count_dispatch_modes() == 0


def _convolve_by_matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return `conv2d` as one product of matrices for the whole batch."""
    kernel = weight.shape[2:]
    dims = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    out_size = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in dims]
    columns = nn.functional.unfold(x, kernel, dilation, padding, stride)
    product = weight.flatten(1) @ columns.movedim(1, 0).flatten(1)
    result = product.view(len(weight), len(x), *out_size).movedim(0, 1)
    return result if bias is None else result + bias[:, None, None]
