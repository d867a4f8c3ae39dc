"""Operations of a graph on numbers, by numpy, and on tensors, by torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SAME = {name: getattr(operator, name) for name in ("add", "sub", "mul", "neg")}
_SAME |= {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_SAME |= {"rsub": lambda x, y: y - x, "logical_and": operator.and_, "logical_or": operator.or_}
_NUMPY: dict[str, Callable[..., Any]] = {
    **_SAME,
    "div": np.divide, "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "cast": np.float32,
    "addcmul": lambda x, y, z: x + y * z,
    "lerp": lambda x, y, w: x + w * (y - x) if w < 0.5 else y - (y - x) * (1 - w),
    "where": lambda condition, x, y: x if condition else y,
}  # fmt: skip
"""Operations whose name in numpy is another one."""
_TORCH: dict[str, Callable[..., Any]] = {
    **_SAME, "div": operator.truediv, "pow": operator.pow, "cast": lambda x: x
}  # fmt: skip
"""Operations that take numbers beside tensors; the others are those of that name in torch."""
_TENSORS_ONLY = ("where", "lerp", "maximum", "minimum", "addcmul")


def of_numbers(op: str, single: bool = False) -> Callable[..., Any]:
    """An operation on numbers of numpy in double; `single`: its result is rounded to float32."""
    function = _NUMPY.get(op) or getattr(np, op)
    return (lambda *values: np.float64(np.float32(function(*values)))) if single else function


def of_tensors(
    op: str, numbers: tuple[bool, ...], dtype: torch.dtype, device: torch.device
) -> Callable[..., Tensor]:
    """An operation on tensors.

    Args:
        op: its name.
        numbers: for each argument, whether it is a number.
        dtype: that it is computed in.
        device: of numbers that have to become tensors.
    """
    function = _TORCH.get(op) or getattr(torch, op)
    if op not in _TENSORS_ONLY or not (op == "lerp" or any(numbers)):
        return function  # type: ignore[no-any-return]

    def lifted(*values: Any) -> Tensor:
        given = list(values)
        for i, number in enumerate(numbers):
            if number:
                kind = torch.bool if isinstance(given[i], bool | np.bool_) else dtype
                given[i] = torch.full((), given[i], dtype=kind, device=device)
            elif op == "lerp":  # which takes one dtype
                given[i] = given[i].to(dtype)
        return function(*given)  # type: ignore[no-any-return]

    return lifted
