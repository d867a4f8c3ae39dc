"""The operations of formal vectors, by the names of aten."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import _assumptions as scalars
from spherenorm_theory.algebra._formal import DIMENSION, Entries, Formal, Product
from spherenorm_theory.algebra._lookup import COMPARE, derived
from spherenorm_theory.algebra._vectors import Vector


def _ones(x: sp.Expr) -> Vector:
    """The vector with the scalar x in every entry."""
    return Vector({"1": x}) if x != 0 else Vector()


def _vector(x: Any) -> Vector:
    return x if isinstance(x, Vector) else _ones(x)


# Entry by entry: a linear operation gives a vector, any other one an atom


def _add(formal: Formal, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
    a, b = formal.linear(a), formal.linear(b if alpha == 1 else _mul(formal, b, alpha))
    if isinstance(a, Vector) or isinstance(b, Vector):
        return _vector(a) + _vector(b)
    total, facts = a + b, formal.facts
    if not facts.is_nonnegative(a, b):
        return total
    one = facts.is_positive(a) or facts.is_positive(b)
    (facts.squares if one else facts.magnitudes).add(total)
    return total


def _neg(formal: Formal, a: Any) -> Any:
    return _mul(formal, a, sp.Integer(-1))


def _mul(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) and isinstance(b, Vector):
        return _product(formal, a, b)
    if isinstance(a, Vector):
        return a * b
    if isinstance(b, Vector):
        return b * a
    return scalars.multiply(formal.facts, a, b)


def _product(formal: Formal, a: Vector, b: Vector) -> Any:
    for constant, other in ((a, b), (b, a)):
        if {*constant.terms} == {"1"}:  # the same number in every entry is a scale
            return other * constant["1"]
    if prod(formal.shape) > prod(formal.entered) > 1:
        raise NotImplementedError("an outer product is no vector")
    return Product(a, b)


def _div(formal: Formal, a: Any, b: Any) -> Any:
    b = formal.linear(b)
    if isinstance(b, Vector) and {*b.terms} == {"1"}:
        b = b["1"]
    if isinstance(b, Vector):
        a = formal.linear(a)
        return formal.atom(f"({a}) / ({b})", "u", operator.truediv, a, b)
    return _mul(formal, a, _reciprocal(formal, b))


def _addcdiv(formal: Formal, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
    # The factor stays outside, so that the ratio is the same atom with any factor.
    return _add(formal, a, _div(formal, b, c), value)


def _reciprocal(formal: Formal, a: Any) -> Any:
    if isinstance(a, Vector):
        return formal.atom(f"1/({a})", "e", np.reciprocal, a)
    return scalars.signed(formal.facts, 1 / a, a) if formal.facts.is_nonnegative(a) else 1 / a


def _pow(formal: Formal, a: Any, b: Any) -> Any:
    a = formal.linear(a)
    if b == sp.Rational(1, 2):
        return _sqrt(formal, a)
    if b == 2:
        return _mul(formal, a, a)
    if isinstance(a, Vector):
        return formal.atom(f"({a})**{b}", "e", np.power, a, b)
    return scalars.signed(formal.facts, a**b, a) if formal.facts.is_nonnegative(a) else a**b


def _sqrt(formal: Formal, a: Any) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom(f"sqrt({a})", "e", np.sqrt, a)
    return scalars.signed(formal.facts, scalars.root(formal.facts, a), a)


def _apply(function: Any, entrywise: Callable[..., Any], letter: str = "e") -> Callable[..., Any]:
    """`function` of a scalar; of a vector, the atom for its function in every entry."""

    def operation(formal: Formal, a: Any) -> Any:
        a = formal.linear(a)
        if isinstance(a, Vector):
            return formal.atom(f"{str(function).lower()}({a})", letter, entrywise, a)
        return function(a)

    return operation


def _abs(formal: Formal, a: Any) -> Any:
    magnitude = _apply(sp.Abs, np.abs)(formal, a)
    if not isinstance(magnitude, Vector):
        formal.facts.magnitudes.add(magnitude)
    return magnitude


def _sign(formal: Formal, a: Any) -> Any:
    sign, facts = _apply(sp.sign, np.sign, "u")(formal, a), formal.facts
    if isinstance(sign, sp.Integer) and sp.sign(scalars.at_zero(facts, formal.linear(a))) != sign:
        facts.assume(sp.Ne, a, sp.Integer(0))
    return sign


def _cos(formal: Formal, a: sp.Expr) -> sp.Expr:
    return sp.cos(scalars.angle(formal.facts, a))


def _sin(formal: Formal, a: sp.Expr) -> sp.Expr:
    return sp.sin(scalars.angle(formal.facts, a))


def _sinc(formal: Formal, a: sp.Expr) -> sp.Expr:
    """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
    angle = scalars.angle(formal.facts, sp.pi * a)
    formal.facts.assume(sp.Ne, angle, sp.Integer(0))
    return sp.sin(angle) / angle


def _clamp(formal: Formal, a: Any, low: Any = None, high: Any = None) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom(f"clamp({a}, {low}, {high})", "u", np.clip, a, low, high)
    return derived("clamp", formal)(a, low, high)


# Sums and matrices


def _sum(formal: Formal, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if prod(formal.shape) == prod(formal.entered):
        return a  # a sum over dimensions of length 1
    if prod(formal.shape) > 1:
        raise NotImplementedError("a sum over some of the entries")
    a = formal.linear(a) if isinstance(a, Entries) else a
    if isinstance(a, Product):
        return _dot(formal, a.a, a.b)
    return formal.space.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a


def _mean(formal: Formal, a: Any, dims: Any = None, keepdim: bool = False) -> Any:
    total = _sum(formal, a, dims, keepdim)
    summed = isinstance(a, (Vector, Product)) and total is not a
    return total / DIMENSION if summed else total


def _dot(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if not (isinstance(a, Vector) and isinstance(b, Vector)):
        return _mul(formal, a, b)
    if prod(formal.shape) > 1:
        raise NotImplementedError("an outer product is no combination of vectors")
    inner = scalars.shorten(formal.facts, formal.space.inner(a, b))
    if a == b:
        formal.facts.squares.add(inner)
    return inner


def _add_product(formal: Formal, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add(formal, _mul(formal, a, sp.sympify(beta)), _dot(formal, b, c), sp.sympify(alpha))


# Shapes and constants: a weight is one unit, so that another shape of it holds the same entries


def _select(formal: Formal, a: Any, *_: Any) -> Any:
    if prod(formal.shape) != prod(formal.entered):
        raise NotImplementedError("one entry of a vector")
    return a  # the only index of a dimension of length 1


def _expand(formal: Formal, a: Any, *_: Any) -> Any:
    return _ones(a) if isinstance(a, sp.Expr) and prod(formal.shape) > 1 else a


def _eye(formal: Formal, n: sp.Expr, *_: Any) -> sp.Expr:
    if n != 1:
        raise NotImplementedError("the identity matrix of more than one unit")
    return sp.Integer(1)


def _full(formal: Formal, size: Any, value: Any, *_: Any) -> Any:
    return value if all(n == 1 for n in size) else _ones(value)


def _full_like(formal: Formal, a: Any, value: Any, *_: Any) -> Any:
    return _ones(value) if isinstance(a, (Vector, Product)) else value


# Decisions


def _compare(formal: Formal, relation: type[sp.Rel], a: Any, b: Any) -> Any:
    if not any(isinstance(x, (Vector, Product, Entries)) for x in (a, b)):
        return scalars.compare(formal.facts, relation, *map(formal.linear, (a, b)))
    a, b = formal.entry(a), formal.entry(b)
    zero = a if isinstance(a, Vector) and b == 0 and relation is sp.Eq else None
    return Entries(f"{a} {scalars.SHOWN[relation]} {b}", COMPARE[relation], (a, b), zero)


def _all(formal: Formal, a: Any, *_: Any) -> Any:
    if not isinstance(a, Entries):
        return a
    if a.zero is None:
        raise NotImplementedError("whether a condition holds for all entries")
    if a.zero.terms:
        formal.facts.assume(sp.Gt, formal.space.inner(a.zero, a.zero), sp.Integer(0))
    return sp.false if a.zero.terms else sp.true


def _any(formal: Formal, a: Any, *_: Any) -> Any:
    if isinstance(a, Entries):
        raise NotImplementedError("whether a condition holds for any entry")
    return a


def _logical(sign: str, of_scalars: Any, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """Logic of scalars by sympy; of conditions on entries, the condition on each entry."""

    def operation(formal: Formal, *conditions: Any) -> Any:
        if not any(isinstance(each, Entries) for each in conditions):
            return of_scalars(*conditions)
        texts = [f"({each})" for each in conditions]
        text = f" {sign} ".join(texts) if len(texts) > 1 else f"{sign} {texts[0]}"
        return Entries(text, entrywise, conditions)

    return operation


def _extreme(name: str, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """The greater or smaller of two numbers; of vectors, the atom of that of each entry."""

    def operation(formal: Formal, a: Any, b: Any) -> Any:
        a, b = formal.linear(a), formal.linear(b)
        if isinstance(a, Vector) or isinstance(b, Vector):
            return formal.atom(f"{name}({a}, {b})", "e", entrywise, a, b)
        return derived(name, formal)(a, b)

    return operation


def _remainder(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) or isinstance(b, Vector):
        return formal.atom(f"({a}) % ({b})", "u", np.remainder, a, b)
    if b.free_symbols:
        formal.facts.assume(sp.Ne, b, sp.Integer(0))
    return sp.Mod(a, b)


def _where(formal: Formal, condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Entries):
        a, b = formal.entry(a), formal.entry(b)
        return formal.atom(f"where({condition}, {a}, {b})", "u", np.where, condition, a, b)
    a, b = formal.linear(a), formal.linear(b)
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return scalars.where(formal.facts, condition, a, b)
    condition = scalars.settle(formal.facts, condition, *map(_vector, (a, b)))
    if condition in (sp.true, sp.false):
        chosen = _vector(a if condition == sp.true else b)
        return formal.composite(chosen) if formal.curved and len(chosen.terms) > 1 else chosen
    switch = scalars.where(formal.facts, condition, sp.Integer(1), sp.Integer(0))
    return _add(formal, _mul(formal, a, switch), _mul(formal, b, 1 - switch))


def _same(formal: Formal, a: Any, *_: Any) -> Any:
    return a


Formal.operations = {
    **{"add": _add, "neg": _neg, "mul": _mul, "div": _div, "addcdiv": _addcdiv},
    **{"reciprocal": _reciprocal, "pow": _pow, "sqrt": _sqrt, "abs": _abs, "sign": _sign},
    **{"exp": _apply(sp.exp, np.exp), "log": _apply(sp.log, np.log, "u")},
    **{"tanh": _apply(sp.tanh, np.tanh, "u"), "cos": _cos, "sin": _sin, "sinc": _sinc},
    **{"clamp": _clamp, "clamp_min": _clamp, "sum": _sum, "mean": _mean},
    "clamp_max": lambda formal, a, high: _clamp(formal, a, None, high),
    **dict.fromkeys(("dot", "vdot", "mm", "mv", "bmm"), _dot),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _add_product),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _same),
    **dict.fromkeys(("permute", "t", "transpose", "clone", "scalar_tensor"), _same),
    "_to_copy": lambda formal, a, *_: formal.linear(a),
    **{"select": _select, "expand": _expand},
    **{"eye": _eye, "full": _full, "full_like": _full_like},
    **{"compare": _compare, "all": _all, "any": _any, "where": _where, "remainder": _remainder},
    "maximum": _extreme("maximum", np.maximum),
    "minimum": _extreme("minimum", np.minimum),
    "logical_and": _logical("and", sp.And, np.logical_and),
    "logical_or": _logical("or", sp.Or, np.logical_or),
    "logical_not": _logical("not", sp.Not, np.logical_not),
}
