"""One precision for a whole forward pass, and a smaller eps in every normalization."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EPS_LIMIT = 1e-10
"""The eps of normalizations is multiplied by this to see what holds up to it."""
LARGEST_EPS = 1e-2
"""Of a normalization; a larger number is none."""
_LARGEST_ADDED = 1e-3
_ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__", "where"}
_BOUNDS = {"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_"}
_NO_EPS = {"normal", "normal_", "log_normal_", "trunc_normal_", "local_response_norm"}
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
        known: the `id` of each parameter of the model.
        callers: the memories of the caller's parameters and buffers, which nothing may read.

    Attributes:
        has_stranger: a function has taken a parameter that is not among the known ones.
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
        self.has_stranger, self._known, self._callers = False, known, callers
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
            if isinstance(arg, nn.Parameter) and arg.requires_grad and id(arg) not in self._known:
                self.has_stranger = True
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
        if name in _BOUNDS:
            if len(args) < 3 and named.get("max") is None:  # two bounds are a range
                return self._shrunk(args, named, _LARGEST_ADDED)
        elif name in _ADDITIONS:
            return self._shrunk(args, {}, _LARGEST_ADDED)[0], named
        elif name == "cosine_similarity" or ("norm" in name and name not in _NO_EPS):
            return self._shrunk(args, named, LARGEST_EPS)
        elif "eps" in named:
            return args, named | self._shrunk((), {"eps": named["eps"]}, LARGEST_EPS)[1]
        return args, named

    def _shrunk(
        self, args: tuple[Any, ...], named: Mapping[str, Any], largest: float
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def shrunk(x: Any) -> Any:
            return x * self.eps_factor if isinstance(x, float) and 0 < x <= largest else x

        return tuple(map(shrunk, args)), {key: shrunk(x) for key, x in named.items()}

    def _observe(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        layer, x = _BATCH_STATISTICS[name], args[0] if args else named["input"]
        flag = "training" if name == "batch_norm" else "use_input_stats"
        if not (args[5] if len(args) > 5 else named.get(flag, name == "instance_norm")):
            self.doubts[
                f"{layer} is in eval mode, where its statistics are constants: what holds here may"
                " be another thing in training"
            ] = None
            return
        over = x.shape[0] if name == "batch_norm" else 1
        count = over * x[0, 0].numel() if x.ndim > 1 else over
        if count <= 2:
            self.doubts[
                f"{layer} saw {count} values per channel, of which it makes signs: use a larger"
                " batch"
            ] = None
