"""The second reading of a traced graph: explicit coordinates, entrywise operations (Adam's included) exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from theory.interpreter import interpret
from theory.one_step import letters
from theory.operations import Operations
from theory.trace import Trace

__all__ = ["Array", "Coordinates", "step_in_coordinates"]

Array = np.ndarray[Any, Any]


def _array(x: Any) -> Array:
    return x if isinstance(x, np.ndarray) else np.array(x, dtype=object)


@dataclass
class Coordinates(Operations):
    """The algebra of numpy arrays of sympy expressions, with the shapes of the tensors that were traced."""

    def _each(self, function: Callable[..., Any], *arrays: Any) -> Array:
        broadcast = np.broadcast_arrays(*map(_array, arrays))
        out = np.empty(broadcast[0].shape, dtype=object)
        for index in np.ndindex(out.shape):
            out[index] = function(*(a[index] for a in broadcast))
        return out

    def aten_add(self, a: Any, b: Any, alpha: Any = 1) -> Array:
        return self._each(lambda x, y: x + alpha * y, a, b)

    def aten_mul(self, a: Any, b: Any) -> Array:
        return self._each(lambda x, y: x * y, a, b)

    def aten_div(self, a: Any, b: Any) -> Array:
        return self._each(lambda x, y: x / y, a, b)

    def aten_pow(self, a: Any, b: Any) -> Array:
        return self._each(lambda x, y: x**y, a, b)

    def aten_neg(self, a: Any) -> Array:
        return self._each(lambda x: -x, a)

    def aten_sqrt(self, a: Any) -> Array:
        return self._each(lambda x: sp.sqrt(sp.factor(x)), a)

    def aten_abs(self, a: Any) -> Array:
        return self._each(lambda x: sp.Abs(sp.factor(x)), a)

    def aten_sign(self, a: Any) -> Array:
        return self._each(sp.sign, a)

    def aten_exp(self, a: Any) -> Array:
        return self._each(sp.exp, a)

    def aten_log(self, a: Any) -> Array:
        return self._each(sp.log, a)

    def aten_tanh(self, a: Any) -> Array:
        return self._each(sp.tanh, a)

    def aten_reciprocal(self, a: Any) -> Array:
        return self._each(lambda x: 1 / x, a)

    def aten_cos(self, a: Any) -> Array:
        return self._each(sp.cos, a)

    def aten_sin(self, a: Any) -> Array:
        return self._each(sp.sin, a)

    def aten_sinc(self, a: Any) -> Array:
        return self._each(lambda x: sp.sin(sp.pi * x) / (sp.pi * x), a)

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

    aten_detach = aten_alias = aten__to_copy = aten_clone

    def aten_eye(self, n: Any, *_: Any) -> Array:
        return np.array(sp.eye(int(n)).tolist(), dtype=object)

    def aten_scalar_tensor(self, value: Any, *_: Any) -> Array:
        return _array(value)

    def aten_full(self, size: Any, value: Any, *_: Any) -> Array:
        return self.aten_full_like(np.empty(tuple(map(int, size))), value)

    def aten_full_like(self, a: Any, value: Any, *_: Any) -> Array:
        return self._each(lambda _: sp.sympify(value), a)

    def _compare(self, relation: type[sp.Rel], a: Any, b: Any) -> Array:
        return self._each(lambda x, y: self.compare(relation, x, y), a, b)

    def aten_all(self, a: Any, *_: Any) -> Array:
        return _array(sp.And(*_array(a).flat))

    def aten_any(self, a: Any, *_: Any) -> Array:
        return _array(sp.Or(*_array(a).flat))

    def aten_bitwise_and(self, a: Any, b: Any) -> Array:
        return self._each(sp.And, a, b)

    def aten_bitwise_or(self, a: Any, b: Any) -> Array:
        return self._each(sp.Or, a, b)

    def aten_bitwise_not(self, a: Any) -> Array:
        return self._each(sp.Not, a)

    aten_logical_and, aten_logical_or, aten_logical_not = (
        aten_bitwise_and,
        aten_bitwise_or,
        aten_bitwise_not,
    )

    def aten_where(self, condition: Any, a: Any, b: Any) -> Array:
        return self._each(self.where, condition, a, b)


def step_in_coordinates(
    traced: Trace, weight: list[Any], grad: list[Any], **values: Any
) -> tuple[Array, dict[str, Array], Coordinates]:
    """One step of a recipe on explicit coordinates.

    Args:
        traced: a trace of dimension len(weight).
        weight, grad: sympy coordinates.
        values: hyper-parameters, and states (a list of coordinates, or a number) by their letter (m, v, t);
            hyper-parameters that are not given stay symbols, states that are not given are 0, as on the first step.

    Returns:
        The new weight, the new states, and the algebra with the assumptions made.
    """
    if len(weight) != traced.dimension:
        raise ValueError(
            f"the recipe was traced for dimension {traced.dimension}, the weight has {len(weight)} coordinates"
        )
    algebra, letter = Coordinates(), letters(traced)

    def value(kind: str, name: str) -> Any:
        if kind == "hyper":
            return _array(values.get(name, traced.numbers[name]))
        if kind == "state" and name in traced.scalar_states:
            return _array(values.get(letter[name], sp.Integer(0)))
        coordinates = {"weight": weight, "grad": grad}.get(kind) or values.get(
            letter.get(name, ""), [sp.Integer(0)] * len(weight)
        )
        return np.array([*map(sp.sympify, coordinates)], dtype=object).reshape(traced.shape)

    new, *states = interpret(
        traced.graph, algebra, [value(*i) for i in traced.inputs], traced.lines
    )
    return new, dict(zip((letter[n] for n in traced.outputs[1:]), states, strict=True)), algebra
