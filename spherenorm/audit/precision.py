"""`PreciseMode`: one precision in a whole forward pass, and a smaller eps in normalizations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spherenorm.torch_internals import count_dispatch_modes

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
