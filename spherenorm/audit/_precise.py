"""One precision for a whole forward pass, a smaller eps in every normalization, and copies in place
of the caller's tensors, which a loss or a hook may still reach.
"""

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
_OTHER_NORMS = {"cosine_similarity"}
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
        copies: of the caller's parameters and buffers, by the `id` of these. They stand in for
            them: a loss may name the caller's model, and a hook its variables.
        known: the `id` of each parameter under audit.
        aliases: the memories of the caller's parameters, which nothing may read past `copies`.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        eps_factor: float,
        doubts: dict[str, None],
        copies: Mapping[int, Tensor],
        known: Collection[int],
        aliases: Collection[int],
    ) -> None:
        super().__init__()
        self.dtype, self.eps_factor, self.doubts = dtype, eps_factor, doubts
        self._copies, self._known, self._aliases = copies, known, aliases
        self._grads: dict[int, tuple[Tensor, Tensor | None]] = {}
        lower = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        self._lower = frozenset(lower[: lower.index(dtype)])

    @property
    def strangers(self) -> list[Tensor]:
        """The tensors of others that take a gradient and that functions have taken so far."""
        return [x for x, _ in self._grads.values()]

    def give_back(self) -> None:
        """Give each of the `strangers` its gradient again."""
        for tensor, grad in self._grads.values():
            tensor.grad = grad

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_")  # __setitem__ and __iadd__ too: they write to an argument
        as_is = name == "__get__"
        args = tuple(self._taken(arg, in_place or as_is) for arg in args)
        named = {key: self._taken(arg, in_place or as_is) for key, arg in (kwargs or {}).items()}
        if as_is:
            return func(*args, **named)
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
        """An argument, with copies for the caller's tensors, and in the common precision."""
        if isinstance(arg, Tensor):
            arg = self._copies.get(id(arg), arg)
            seen = id(arg) in self._known or id(arg) in self._grads
            if arg.requires_grad and arg.is_leaf and not seen:
                self._grads[id(arg)] = arg, arg.grad
                arg.grad = None
            if as_is:
                return arg
            self._refuse_alias(arg)
            return arg.to(self.dtype) if arg.dtype in self._lower else arg
        if type(arg) in (list, tuple):
            return type(arg)(self._taken(each, as_is) for each in arg)
        if isinstance(arg, torch.dtype) and not as_is:
            return self.dtype if arg in self._lower else arg
        return arg

    def _refuse_alias(self, x: Tensor) -> None:
        plain = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
        if plain and x.numel() and x.untyped_storage().data_ptr() in self._aliases:
            raise ValueError(
                f"the model or its loss reads a tensor of shape {tuple(x.shape)} that shares memory"
                " with a parameter, as .data does, and that would not move with it: let it read the"
                " parameter; pass the unwrapped model"
            )

    def _with_small_eps(
        self, name: str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function with every eps among them multiplied."""
        if name in _BOUNDS:
            if len(args) < 3 and named.get("max") is None:  # two bounds are a range
                args = (*args[:1], *(self._shrunk(x, _LARGEST_ADDED) for x in args[1:]))
                named = {key: self._shrunk(x, _LARGEST_ADDED) for key, x in named.items()}
        elif name in _ADDITIONS:
            args = tuple(self._shrunk(x, _LARGEST_ADDED) for x in args)
        elif name in _OTHER_NORMS or ("norm" in name and name not in _NO_EPS):
            args = tuple(self._shrunk(x, LARGEST_EPS) for x in args)
            named = {key: self._shrunk(x, LARGEST_EPS) for key, x in named.items()}
        elif "eps" in named:
            named["eps"] = self._shrunk(named["eps"], LARGEST_EPS)
        return args, named

    def _shrunk(self, arg: Any, largest: float) -> Any:
        return arg * self.eps_factor if isinstance(arg, float) and 0 < arg <= largest else arg

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
