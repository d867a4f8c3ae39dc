"""Entrywise operations on tensors without memory, whose shapes and dtypes are soon known.

torch takes 100 us for each, in Python, and the record of a step has a hundred of them per shape.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

__all__ = ["carried_out"]

NUMBERS = (bool, int, float)
_dtypes: dict[Any, torch.dtype] = {}
"""The dtype of a result, by the operation and the kinds of its arguments."""


def carried_out(function: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The result of `function`, on the meta device."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    entrywise = torch.Tag.pointwise in function.tags and not function._schema.is_mutable
    plain = any(x.is_meta for x in tensors) and all(x.is_contiguous() for x in tensors)
    if not (entrywise and plain) or any(isinstance(x, list) for x in args):
        return function(*args, **kwargs)
    key = function, *map(_kind, args), *((name, _kind(x)) for name, x in kwargs.items())
    if key not in _dtypes:
        result = function(*args, **kwargs)
        if isinstance(result, Tensor):
            _dtypes[key] = result.dtype
        return result
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=_dtypes[key], device="meta")


def _kind(x: Any) -> Any:
    """The part of an argument that decides the dtype of the result."""
    if isinstance(x, Tensor):
        return x.dtype, x.ndim == 0
    return type(x) if isinstance(x, NUMBERS) else x
