"""The algebra of explicit coordinates: the other reading of a recorded step.

In a dimension that one names, every entrywise operation, Adam's included, is exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import sympy as sp

from spherenorm_theory.algebra._assumptions import Assumptions, compare, where

Array = np.ndarray[Any, Any]


@dataclass
class Coordinates:
    """The algebra of numpy arrays of sympy expressions, in the shapes of the recorded tensors.

    Attributes:
        facts: the assumptions on scalars.
        shape, entered: the shapes of the present operation's result and first argument.
        operations: the functions of this algebra, by the names of aten.
    """

    facts: Assumptions = field(default_factory=Assumptions)
    shape: tuple[int, ...] = ()
    entered: tuple[int, ...] = ()
    operations: ClassVar[Mapping[str, Callable[..., Any]]]


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
    return lambda algebra, *arrays: _each(function, *arrays)


def _add(algebra: Coordinates, a: Any, b: Any, alpha: Any = 1) -> Array:
    return _each(lambda x, y: x + alpha * y, a, b)


def _sum(algebra: Coordinates, a: Any, dims: Any = None, keepdim: bool = False) -> Array:
    axes = tuple(int(d) for d in dims) if dims else None
    return _array(_array(a).sum(axis=axes, keepdims=keepdim))


def _mean(algebra: Coordinates, a: Any, dims: Any = None, keepdim: bool = False) -> Array:
    total = _sum(algebra, a, dims, keepdim)
    return _each(operator.truediv, total, sp.Rational(_array(a).size, total.size))


def _mm(algebra: Coordinates, a: Any, b: Any) -> Array:
    return _array(_array(a) @ _array(b))


def _add_product(
    algebra: Coordinates, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _each(lambda x, y: beta * x + alpha * y, a, _mm(algebra, b, c))


def _select(algebra: Coordinates, a: Any, dim: Any, index: Any) -> Array:
    return _array(np.take(_array(a), int(index), axis=int(dim)))


def _permute(algebra: Coordinates, a: Any, dims: Any) -> Array:
    return np.transpose(_array(a), [int(d) for d in dims])


def _view(algebra: Coordinates, a: Any, *_: Any) -> Array:
    return _array(a).reshape(algebra.shape)


def _expand(algebra: Coordinates, a: Any, *_: Any) -> Array:
    return np.broadcast_to(_array(a), algebra.shape)


def _same(algebra: Coordinates, a: Any, *_: Any) -> Array:
    return _array(a)


def _eye(algebra: Coordinates, n: Any, *_: Any) -> Array:
    return np.array(sp.eye(int(n)).tolist(), dtype=object)


def _full(algebra: Coordinates, size: Any, value: Any, *_: Any) -> Array:
    return _full_like(algebra, np.empty(tuple(map(int, size))), value)


def _full_like(algebra: Coordinates, a: Any, value: Any, *_: Any) -> Array:
    return _each(lambda _: sp.sympify(value), a)


def _compare(algebra: Coordinates, relation: type[sp.Rel], a: Any, b: Any) -> Array:
    return _each(lambda x, y: compare(algebra.facts, relation, x, y), a, b)


def _where(algebra: Coordinates, condition: Any, a: Any, b: Any) -> Array:
    return _each(lambda *entries: where(algebra.facts, *entries), condition, a, b)


ENTRYWISE: Mapping[str, Callable[..., Any]] = {
    **{"mul": operator.mul, "div": operator.truediv, "pow": operator.pow, "neg": operator.neg},
    **{"reciprocal": lambda x: 1 / x, "remainder": sp.Mod},
    "sqrt": lambda x: sp.sqrt(sp.factor(x)),
    "abs": lambda x: sp.Abs(sp.factor(x)),
    **{"sign": sp.sign, "exp": sp.exp, "log": sp.log, "tanh": sp.tanh},
    **{"cos": sp.cos, "sin": sp.sin, "sinc": lambda x: sp.sin(sp.pi * x) / (sp.pi * x)},
    **{"logical_and": sp.And, "logical_or": sp.Or, "logical_not": sp.Not},
}

Coordinates.operations = {
    **{name: _entrywise(function) for name, function in ENTRYWISE.items()},
    **{"add": _add, "sum": _sum, "mean": _mean},
    **dict.fromkeys(("mm", "mv", "bmm", "dot", "vdot"), _mm),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _add_product),
    **{"select": _select, "permute": _permute, "t": lambda algebra, a: np.transpose(_array(a))},
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _view),
    **{"expand": _expand, "clone": _same, "_to_copy": _same, "scalar_tensor": _same},
    **{"eye": _eye, "full": _full, "full_like": _full_like},
    **{"compare": _compare, "where": _where},
    "all": lambda algebra, a, *_: _array(sp.And(*_array(a).flat)),
    "any": lambda algebra, a, *_: _array(sp.Or(*_array(a).flat)),
}
