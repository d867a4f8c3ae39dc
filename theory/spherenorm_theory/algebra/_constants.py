"""Constant tensors that hold sizes, and what code decides by them: `torch.ones(n).sum() > 64`.

A record of one shape has a number in their place, and does not show where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_SYMBOLS = {name: symbol for symbol, name in COMPARISONS.items()}

_COPIES = {"tensor", "as_tensor", "asarray"}
_FILLED = {"full", "full_like", "new_full"}
_SHAPED = {
    *("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "eye"),
    *("empty", "empty_like", "new_empty"),
}
_FACTORIES = {*_COPIES, *_FILLED, *_SHAPED, "scalar_tensor", "new_tensor", "arange", "linspace"}
"""Functions that take the shape of a tensor at most, and not its entries; but for copies of one."""

_SHAPING = {
    *_SHAPED,
    *("rand", "randn", "rand_like", "randn_like", "reshape", "reshape_as", "view", "view_as"),
    *("expand", "expand_as", "broadcast_to", "repeat", "flatten", "unflatten", "squeeze"),
    *("unsqueeze", "permute", "transpose", "t", "narrow", "select", "split", "chunk", "unbind"),
    *("getitem", "get", "stack", "cat", "contiguous", "clone", "detach", "to", "double"),
}
"""Functions that take sizes as lengths and places, and keep entries."""

_CONTINUOUS = {
    *_SHAPING,
    *_COPIES,
    *(way + name for way in ("", "r", "i") for name in ("add", "sub", "mul", "truediv", "pow")),
    *("div", "rdiv", "true_divide", "neg", "reciprocal", "square", "sqrt", "rsqrt", "exp", "log"),
    *("sum", "mean", "prod", "norm", "vector_norm", "dot", "vdot", "mv", "mm", "bmm", "matmul"),
    *(
        "addmm",
        "addmv",
        "baddbmm",
        "rmatmul",
        "lerp",
        "addcmul",
        "addcdiv",
        "fill",
        "copy",
        "setitem",
        "where",
    ),
}
"""Functions that decide nothing by the numbers they take."""

_ESCAPES = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.equal, torch.equal),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(Tensor.allclose, torch.allclose),
}
"""Functions whose results are plain."""


@dataclass(frozen=True)
class _Constant:
    """A tensor that was computed without the weight, the gradient and the state.

    Attributes:
        tensor: which is kept, so that no other one has its id.
        by_shape: its shape follows sizes.
        by_entries: its entries do.
    """

    tensor: Tensor
    by_shape: bool
    by_entries: bool

    @property
    def number(self) -> float:
        """The entry, or the sum of several ones."""
        return float(self.tensor.double().sum())


class Constants:
    """The constant tensors of code that runs, from call to call."""

    def __init__(self) -> None:
        self._known: dict[int, _Constant] = {}

    def follow(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        sizes: Sequence[Any],
        result: Any,
    ) -> list[tuple[str, Any]]:
        """The decisions of torch functions by sizes: questions and their answers.

        A number that decides in another way than a comparison has an empty question.

        Args:
            function: of torch, which was called.
            args, options: what it was given.
            sizes: those in `args` and `options` that are sizes, by their `value`.
            result: what it gave.
        """
        name, results = function.__name__.strip("_"), _tensors(result)
        entered = _tensors((args[:1] if name.endswith("_as") else args, options))
        made = name in _FACTORIES and not (name in _COPIES and entered)
        found = [self._known[id(x)] for x in entered if id(x) in self._known and not made]
        constant = made or (bool(found) and len(found) == len(entered))
        numbers = [size.value for size in _as_numbers(name, args, options, sizes)]
        numbers += [each.number for each in found if each.by_entries]
        decides = function in _ESCAPES or (bool(results) and not made and name not in _CONTINUOUS)
        if not constant:
            self._forget([*results, *entered[: name == "setitem"]])  # written into
        for tensor in results if constant else ():
            shaped = [each for each in found if each.by_shape]
            shrinks = any(each.tensor.numel() > tensor.numel() for each in shaped)
            self._known[id(tensor)] = _Constant(
                tensor,
                by_shape=bool(sizes) or bool(shaped) or name.endswith("_like"),
                by_entries=shrinks or (bool(numbers) and not decides),
            )
        if not decides:
            return []
        if constant and len(numbers) == 1 and name in _SYMBOLS and results[0].numel() == 1:
            other = args[1]
            if isinstance(other, (int, float)) and all(other is not size for size in sizes):
                return [(f"{_SYMBOLS[name]} {other!r}", bool(results[0]))]
        return [("", number) for number in numbers]

    def _forget(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._known.pop(id(tensor), None)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def _as_numbers(
    name: str, args: Sequence[Any], options: Mapping[str, Any], sizes: Sequence[Any]
) -> Sequence[Any]:
    """The sizes that a function does not take as lengths."""
    if name in _FILLED:
        fill = options.get("fill_value", args[-1])
        return [size for size in sizes if size is fill]
    return [] if name in _SHAPING else sizes
