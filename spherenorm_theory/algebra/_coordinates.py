"""The algebra of explicit coordinates: the other reading of a recorded step.

In a dimension that one names, every entrywise operation, Adam's included, is exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra._operations import Operations

__all__ = ["Array", "Coordinates"]

Array = np.ndarray[Any, Any]


def _array(x: Any) -> Array:
    return x if isinstance(x, np.ndarray) else np.array(x, dtype=object)


def _each(function: Callable[..., Any], *arrays: Any) -> Array:
    """`function` of each entry of the arrays, which are broadcast."""
    broadcast = np.broadcast_arrays(*map(_array, arrays))
    out = np.empty(broadcast[0].shape, dtype=object)
    for index in np.ndindex(out.shape):
        out[index] = function(*(a[index] for a in broadcast))
    return out


def _entrywise(function: Callable[..., Any]) -> Callable[..., Array]:
    """The operation that applies `function` to each entry."""

    def operation(self: Coordinates, *arrays: Any) -> Array:
        return _each(function, *arrays)

    return operation


@dataclass
class Coordinates(Operations):
    """The algebra of numpy arrays of sympy expressions, in the shapes of the recorded tensors."""

    aten_mul = _entrywise(operator.mul)
    aten_div = _entrywise(operator.truediv)
    aten_pow = _entrywise(operator.pow)
    aten_neg = _entrywise(operator.neg)
    aten_reciprocal = _entrywise(lambda x: 1 / x)
    aten_sqrt = _entrywise(lambda x: sp.sqrt(sp.factor(x)))
    aten_abs = _entrywise(lambda x: sp.Abs(sp.factor(x)))
    aten_sign = _entrywise(sp.sign)
    aten_exp = _entrywise(sp.exp)
    aten_log = _entrywise(sp.log)
    aten_tanh = _entrywise(sp.tanh)
    aten_cos = _entrywise(sp.cos)
    aten_sin = _entrywise(sp.sin)
    aten_sinc = _entrywise(lambda x: sp.sin(sp.pi * x) / (sp.pi * x))

    def aten_add(self, a: Any, b: Any, alpha: Any = 1) -> Array:
        return _each(lambda x, y: x + alpha * y, a, b)

    def aten_sum(self, a: Any, dims: Any = None, keepdim: bool = False) -> Array:
        axes = tuple(int(d) for d in dims) if dims else None
        return _array(_array(a).sum(axis=axes, keepdims=keepdim))

    def aten_mean(self, a: Any, dims: Any = None, keepdim: bool = False) -> Array:
        total = self.aten_sum(a, dims, keepdim)
        return self.aten_div(total, sp.Rational(_array(a).size, total.size))

    def aten_mm(self, a: Any, b: Any) -> Array:
        return _array(_array(a) @ _array(b))

    aten_mv = aten_bmm = aten_dot = aten_vdot = aten_mm

    def aten_select(self, a: Any, dim: Any, index: Any) -> Array:
        return _array(np.take(_array(a), int(index), axis=int(dim)))

    def aten_permute(self, a: Any, dims: Any) -> Array:
        return np.transpose(_array(a), [int(d) for d in dims])

    def aten_t(self, a: Any) -> Array:
        return np.transpose(_array(a))

    def aten_view(self, a: Any, *_: Any) -> Array:
        return _array(a).reshape(self.shape)

    aten__unsafe_view = aten_reshape = aten_unsqueeze = aten_squeeze = aten_view

    def aten_expand(self, a: Any, *_: Any) -> Array:
        return np.broadcast_to(_array(a), self.shape)

    def aten_clone(self, a: Any, *_: Any) -> Array:
        return _array(a)

    aten__to_copy = aten_clone

    def aten_eye(self, n: Any, *_: Any) -> Array:
        return np.array(sp.eye(int(n)).tolist(), dtype=object)

    def aten_scalar_tensor(self, value: Any, *_: Any) -> Array:
        return _array(value)

    def aten_full(self, size: Any, value: Any, *_: Any) -> Array:
        return self.aten_full_like(np.empty(tuple(map(int, size))), value)

    def aten_full_like(self, a: Any, value: Any, *_: Any) -> Array:
        return _each(lambda _: sp.sympify(value), a)

    def _compare(self, relation: type[sp.Rel], a: Any, b: Any) -> Array:
        return _each(lambda x, y: self.compare(relation, x, y), a, b)

    def aten_all(self, a: Any, *_: Any) -> Array:
        return _array(sp.And(*_array(a).flat))

    def aten_any(self, a: Any, *_: Any) -> Array:
        return _array(sp.Or(*_array(a).flat))

    aten_logical_and = _entrywise(sp.And)
    aten_logical_or = _entrywise(sp.Or)
    aten_logical_not = _entrywise(sp.Not)

    def aten_where(self, condition: Any, a: Any, b: Any) -> Array:
        return _each(self.where, condition, a, b)
