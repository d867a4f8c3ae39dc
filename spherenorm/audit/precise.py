"""One precision for a whole forward pass, and a smaller eps in every normalization."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spherenorm.torch_internals import count_dispatch_modes

EPS_LIMIT = 1e-10
"""The eps of normalizations is multiplied by this to see what holds up to it."""
LARGEST_EPS = 1e-2
"""Of a normalization; a larger number is none."""
_LARGEST_ADDED = 1e-3
_ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__", "where"}
_BOUNDS = {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_"}
_NO_EPS = {
    *("normal", "normal_", "log_normal_", "trunc_normal_", "local_response_norm"),
    *("renorm", "renorm_", "embedding_renorm_"),
}
_CASTS = {"float", "half", "bfloat16"}
_BATCH_STATISTICS = {"batch_norm": "BatchNorm", "instance_norm": "InstanceNorm"}


class PreciseMode(TorchFunctionMode):
    """Computes in `dtype` where a model asks for a lower precision, and multiplies every eps.

    An eps is a small positive Python number that a normalization takes (at most 1e-2), or that is
    added to a tensor or bounds it from below (at most 1e-3).

    Args:
        dtype: of the model's parameters.
        eps_factor: multiplies every eps; 1 leaves it as it is.
        doubts: gets sentences about what was seen that makes an audit doubtful.
        known: the `id` of each parameter of the model; another one is a doubt.
        callers: the memories of the caller's parameters and buffers, which nothing may read.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        eps_factor: float,
        doubts: dict[str, None],
        known: Collection[int],
        callers: Collection[int],
    ) -> None:
        super().__init__()
        self.dtype, self.eps_factor, self.doubts = dtype, eps_factor, doubts
        self.in_loss, self._known, self._callers = False, known, callers
        lower = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        self._lower = frozenset(lower[: lower.index(dtype)])

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "__get__":
            return func(*args, **named)
        in_place = name.endswith("_")  # __setitem__ and __iadd__ too: they write to an argument
        args = tuple(self._taken(arg, in_place) for arg in args)
        named = {key: self._taken(arg, in_place) for key, arg in named.items()}
        if name in _CASTS and len(args) == 1:
            return args[0].to(self.dtype)
        if name in _BATCH_STATISTICS:
            self._observe(name, args, named)
        if self.eps_factor != 1:
            args, named = self._with_small_eps(name, args, named)
        if name == "conv2d" and not named and _is_slow(*args):
            return _convolved(*args)
        result = func(*args, **named)
        if isinstance(result, Tensor) and result.dtype in self._lower and not in_place:
            return result.to(self.dtype)
        return result

    def _taken(self, arg: Any, as_is: bool) -> Any:
        """An argument in the common precision, unless it is to be written."""
        if isinstance(arg, Tensor):
            plain = type(arg) in (Tensor, nn.Parameter) and arg.layout is torch.strided
            if plain and arg.numel() and arg.untyped_storage().data_ptr() in self._callers:
                raise ValueError(
                    f"the model or its loss reads a tensor of shape {tuple(arg.shape)} in the"
                    " memory of a parameter or buffer of yours, which a copy does not move, as a"
                    " .data or a closure does: read the parameter itself; pass the unwrapped"
                    " model, and a model to its loss by functools.partial(loss, model)"
                )
            strange = isinstance(arg, nn.Parameter) and id(arg) not in self._known
            if strange and arg.requires_grad and not self.in_loss:
                self.doubts[
                    "the model uses a parameter that is not among its own, such as that of a second"
                    " copy: it stays as it is when the others move"
                ] = None
            return arg.to(self.dtype) if arg.dtype in self._lower and not as_is else arg
        if type(arg) in (list, tuple):
            return type(arg)(self._taken(each, as_is) for each in arg)
        if isinstance(arg, torch.dtype) and arg in self._lower and not as_is:
            return self.dtype
        return arg

    def _with_small_eps(
        self, name: str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function with every eps among them multiplied."""
        largest, places, keys = LARGEST_EPS, len(args), set(named)
        if name in _ADDITIONS:
            largest, keys = _LARGEST_ADDED, set()
        elif name in _BOUNDS and places < 3 and named.get("max") is None:
            largest = _LARGEST_ADDED  # (two bounds are a range)
        elif name != "cosine_similarity" and ("norm" not in name or name in _NO_EPS):
            places, keys = 0, {"eps"}

        def shrunk(x: Any) -> Any:
            return x * self.eps_factor if isinstance(x, float) and 0 < x <= largest else x

        new = {key: shrunk(x) if key in keys else x for key, x in named.items()}
        return (*map(shrunk, args[:places]), *args[places:]), new

    def _observe(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note batch statistics that say little."""
        layer, x = _BATCH_STATISTICS[name], args[0] if args else named["input"]
        flag = "training" if name == "batch_norm" else "use_input_stats"
        over = x.shape[0] if name == "batch_norm" else 1
        count = over * x[0, 0].numel() if x.ndim > 1 else over
        if not (args[5] if len(args) > 5 else named.get(flag, name == "instance_norm")):
            self.doubts[
                f"{layer} is in eval mode, where its statistics are constants: what holds here may"
                " be another thing in training"
            ] = None
        elif count <= 2:
            self.doubts[
                f"{layer} saw {count} values per channel, of which it makes signs: use a larger"
                " batch"
            ] = None


def _is_slow(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    """True for large filters and few images, in float64: torch reads them once for each image.

    The columns of the whole batch take no more memory than the filters then. A pass whose
    operations are watched sees the convolution.
    """
    simple = x.ndim == 4 and len(rest) == 5 and rest[-1] == 1 and isinstance(rest[2], tuple)
    if not simple or not x.is_cpu or x.dtype is not torch.float64:
        return False
    few = x.numel() * weight[0, 0].numel() <= weight.numel()
    return few and count_dispatch_modes() == 0


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """`conv2d` as one product of matrices for the whole batch."""
    kernel = weight.shape[2:]
    each = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    size = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in each]
    columns = nn.functional.unfold(x, kernel, dilation, padding, stride)
    product = weight.flatten(1) @ columns.movedim(1, 0).flatten(1)
    found = product.view(len(weight), len(x), *size).movedim(0, 1)
    return found if bias is None else found + bias[:, None, None]
