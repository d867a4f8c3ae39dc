"""The operations of formal vectors, and the reading of a record by them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import sympy as sp
import torch

from spherenorm import rules as r
from spherenorm.operations import OPERATIONS, of_overload
from spherenorm.record import Call, Record, Value
from spherenorm_theory.algebra import facts as scalars
from spherenorm_theory.algebra.formal import Entries, Formal, Product
from spherenorm_theory.algebra.letters import MARK, RANK, SCALE, SHARE
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.symbols import DIMENSION, Norm, Vector, exact, tidy
from spherenorm_theory.algebra.trace import TraceError

RELATIONS = {"gt": sp.Gt, "lt": sp.Lt, "ge": sp.Ge, "le": sp.Le, "eq": sp.Eq, "ne": sp.Ne}
COMPARE = {relation: getattr(operator, name) for name, relation in RELATIONS.items()}
"""Each relation of sympy as a function of numbers."""
STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
"""Options that say how a tensor is stored, not what it holds."""
UNCHANGED = {"detach", "alias", "lift_fresh", "lift_fresh_copy"}
"""Operations of aten that give the entries they take."""


def interpret(record: Record, formal: Formal, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a record on formal vectors and scalars.

    Args:
        record: of a step.
        formal: the algebra.
        inputs: a value for each input.

    Raises:
        TraceError: an operation that has no meaning on formal vectors, with the line it came from.
    """
    values: dict[Value, Any] = dict(zip(record.inputs, inputs, strict=True))
    for value, constant in record.constants.items():
        if any(value in call.values() for call in record.needed):
            if constant.numel() != 1:
                shape = tuple(constant.shape)
                raise TraceError(
                    f"the step holds a constant tensor of shape {shape}, which has no symbol"
                )
            values[value] = exact(constant.item())
    for call in record.needed:
        values[call.result] = formal.fold(_done(call, formal, values))
        if call.in_place:
            # The record has ordinary operations in place of these, but for some inside of torch's
            # own.
            values[call.arguments[0]] = values[call.result]
    outputs = record.outputs if isinstance(record.outputs, (list, tuple)) else [record.outputs]
    return [formal.linear(values[out]) for out in outputs]


def _done(call: Call, formal: Formal, values: Mapping[Value, Any]) -> Any:
    """The result of one operation."""
    plain = call.packet.removesuffix("_")
    row = of_overload(call.name)
    operation = _find(formal, plain) or (None if row is None else _find(formal, row.name))
    if plain in UNCHANGED:
        operation = partial(_same, formal)
    if operation is None and plain == "copy":
        raise TraceError(
            "the code writes into the weight, the gradient or the state that it is given, where a "
            "rule returns new tensors; read `x.mul(a)` for `x.mul_(a)`"
        )
    name = call.name.rpartition(".")[0]
    if operation is None:
        raise TraceError(f"{name} has no meaning on formal vectors yet; it came from {call.line}")
    _refuse_rounding(call)
    _refuse_mixing(call)
    try:
        arguments = [formal.fold(_value(values, a)) for a in call.arguments]
        options = {k: _value(values, v) for k, v in call.options.items() if k not in STORAGE}
    except (OverflowError, ValueError) as error:
        raise TraceError(
            f"{name} has a number that is not finite, which has no meaning on formal vectors; it "
            f"came from {call.line}"
        ) from error
    entered = [tuple(a.shape) for a in call.arguments if isinstance(a, Value)]
    formal.entered, formal.shape = entered[0] if entered else (), tuple(call.result.shape)
    try:
        return operation(*arguments, **options)
    except (TypeError, NotImplementedError, KeyError, AttributeError) as error:
        given = [*arguments, *(f"{k}={v}" for k, v in options.items())]
        shown = ", ".join(show(x) if isinstance(x, Vector) else str(x) for x in given)
        raise TraceError(
            f"{name}({shown}) has no meaning on formal vectors ({error}); it came from {call.line}"
        ) from error


def _find(formal: Formal, name: str) -> Callable[..., Any] | None:
    """The operation of this name, its own or as the library's row derives it from others."""
    if name in TABLE:
        return partial(TABLE[name], formal)
    if name in RELATIONS:
        return partial(_compare, formal, RELATIONS[name])
    row = OPERATIONS.get(name)
    return None if row is None or row.derived is None else _derived(name, formal)


def _derived(name: str, formal: Formal) -> Callable[..., Any]:
    function = OPERATIONS[name].derived
    assert function is not None
    return partial(function, _Operations(formal))


@dataclass(frozen=True)
class _Operations:
    """The operations as methods, of exact numbers."""

    formal: Formal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = _find(self.formal, name)
        if operation is None:
            raise AttributeError(f"aten_{name}")
        return lambda *arguments: operation(*map(_exact, arguments))


def _exact(argument: Any) -> Any:
    plain = isinstance(argument, (int, float)) and not isinstance(argument, bool)
    return exact(argument) if plain else argument


def _value(values: Mapping[Value, Any], argument: Any) -> Any:
    if isinstance(argument, Value):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return [_value(values, a) for a in argument]
    return _exact(argument)


def _refuse_rounding(call: Call) -> None:
    """Refuse an operation that rounds numbers, to integers or to fewer digits."""
    entered, given = [value.dtype for value in call.values()], call.result.dtype
    exactly = given in (torch.float64, torch.bool) or not any(t.is_floating_point for t in entered)
    casts = call.packet in ("_to_copy", "to") and given is torch.bool
    rounds = torch.float64 in entered and (casts or not exactly)
    if rounds and not call.packet.startswith("arg"):
        raise TraceError(
            f"{call.name.rpartition('.')[0]} rounds {torch.float64} to {given}, and a law is about "
            f"exact numbers; it came from {call.line}"
        )


def _refuse_mixing(call: Call) -> None:
    """Refuse to pair the entries of a vector with others than its own: w - w.T, w.expand(3, 5)."""
    lengths = [value.shape.numel() for value in call.values()]
    if lengths and call.result.shape.numel() > max(lengths) > 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in call.values())
        raise TraceError(
            f"{call.name.rpartition('.')[0]} of {shapes} gives {tuple(call.result.shape)}: the "
            f"entries of a unit are paired with other ones of it; it came from {call.line}"
        )


# Entry by entry: a linear operation gives a vector, any other one an atom


def _ones(x: sp.Expr) -> Vector:
    """The vector with the scalar x in every entry."""
    return Vector({"1": x}) if x != 0 else Vector()


def _vector(x: Any) -> Vector:
    return x if isinstance(x, Vector) else _ones(x)


def _add(formal: Formal, a: Any, b: Any, alpha: Any = sp.S.One) -> Any:
    a, b = formal.linear(a), formal.linear(b if alpha == 1 else _mul(formal, b, alpha))
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return a + b
    a, b = _vector(a), _vector(b)
    return a + b


def _neg(formal: Formal, a: Any) -> Any:
    return _mul(formal, a, sp.S.NegativeOne)


def _mul(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) and isinstance(b, Vector):
        return _product(formal, a, b)
    if isinstance(a, Vector):
        return a.scaled(b)
    return b.scaled(a) if isinstance(b, Vector) else a * b


def _product(formal: Formal, a: Vector, b: Vector) -> Any:
    for constant, other in ((a, b), (b, a)):
        if {*constant} == {"1"}:  # the same number in every entry is a scale
            return other.scaled(constant["1"])
    if prod(formal.shape) > prod(formal.entered) > 1:
        raise NotImplementedError("an outer product is no vector")
    return Product(a, b)


def _div(formal: Formal, a: Any, b: Any) -> Any:
    b = formal.linear(b)
    if isinstance(b, Vector) and {*b} == {"1"}:
        b = b["1"]
    if isinstance(b, Vector):
        a = formal.linear(a)
        return formal.atom("[] / []", "u", operator.truediv, a, b)
    return _mul(formal, a, 1 / b)


def _addcdiv(formal: Formal, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
    # The factor stays outside, so that the ratio is the same atom with any factor.
    return _add(formal, a, _div(formal, b, c), value)


def _reciprocal(formal: Formal, a: Any) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom("1 / []", "e", np.reciprocal, a)
    return 1 / a


def _pow(formal: Formal, a: Any, b: Any) -> Any:
    a = formal.linear(a)
    if b == sp.Rational(1, 2):
        return _sqrt(formal, a)
    if b == 2:
        return _mul(formal, a, a)
    if isinstance(a, Vector):
        return formal.atom("[]^{}", "e", np.power, a, b)
    return a**b


def _sqrt(formal: Formal, a: Any) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom("sqrt({})", "e", np.sqrt, a)
    root = sp.sqrt(a)
    # The root of a square of which the sign is known: (1 - beta)^2 |g|^2.
    return sp.sqrt(sp.factor(a)) if root.is_Pow and a.is_Mul and a.has(Norm) else root


def _apply(function: Any, entrywise: Callable[..., Any], prefix: str = "e") -> Callable[..., Any]:
    """`function` of a scalar; of a vector, the atom for its function in every entry."""

    def operation(formal: Formal, a: Any) -> Any:
        a = formal.linear(a)
        if isinstance(a, Vector):
            return formal.atom(f"{str(function).lower()}({{}})", prefix, entrywise, a)
        return function(a)

    return operation


def _sign(formal: Formal, a: Any) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom("sign({})", "u", np.sign, a, square=DIMENSION)
    return sp.sign(a)


def _sinc(formal: Formal, a: sp.Expr) -> sp.Expr:
    """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
    formal.facts.assume_norms(a)
    return sp.sin(sp.pi * a) / (sp.pi * a)


def _clamp(formal: Formal, a: Any, low: Any = None, high: Any = None) -> Any:
    a = formal.linear(a)
    if isinstance(a, Vector):
        return formal.atom("clamp({}, {}, {})", "u", np.clip, a, low, high)
    return _derived("clamp", formal)(a, low, high)


# Sums and matrices


def _sum(formal: Formal, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if prod(formal.shape) == prod(formal.entered):
        return a  # a sum over dimensions of length 1
    if prod(formal.shape) > 1:
        raise NotImplementedError("a sum over some of the entries")
    a = formal.linear(a) if isinstance(a, Entries) else a
    if isinstance(a, Product):
        return _dot(formal, a.a, a.b)
    return formal.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a


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
    inner = formal.dot(a, b)
    return inner if inner.is_Mul or inner.is_Pow else tidy(inner)


def _add_product(formal: Formal, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _add(formal, _mul(formal, a, sp.sympify(beta)), _dot(formal, b, c), sp.sympify(alpha))


def _mark(formal: Formal, a: Any, weight: Any, place: Any) -> Vector:
    """The letter of a rule that is not looked into."""
    a, place, rule = formal.linear(a), int(place), formal.letters[int(place)]
    if isinstance(rule, r.StiefelProjection):
        return formal.atom("tangent({})", "T", rule, a, weight, place=place)
    if isinstance(rule, r.SameLength):
        return formal.atom(
            f"{type(rule.rule).__name__}({{}})", "N", rule, a, square=formal.dot(a, a), place=place
        )
    return formal.atom("factor({})", "O", rule, a, square=SCALE**2 * SHARE * RANK, place=place)


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
    return sp.S.One


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
    sign = {sp.Eq: "=", sp.Ne: "!="}.get(relation) or relation.rel_op
    return Entries(f"{{}} {sign} {{}}", COMPARE[relation], (a, b), zero)


def _all(formal: Formal, a: Any, *_: Any) -> Any:
    if not isinstance(a, Entries):
        return a
    if a.zero is None:
        raise NotImplementedError("whether a condition holds for all entries")
    if a.zero:
        formal.facts.assume_norms(*formal.letter(a.zero).values(), *map(Norm, a.zero))
    return sp.false if a.zero else sp.true


def _any(formal: Formal, a: Any, *_: Any) -> Any:
    if isinstance(a, Entries):
        raise NotImplementedError("whether a condition holds for any entry")
    return a


def _logical(sign: str, of_scalars: Any, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """Logic of scalars by sympy; of conditions on entries, the condition on each entry."""

    def operation(formal: Formal, *conditions: Any) -> Any:
        if not any(isinstance(each, Entries) for each in conditions):
            return of_scalars(*conditions)
        text = f"[] {sign} []" if len(conditions) > 1 else f"{sign}({{}})"
        return Entries(text, entrywise, conditions)

    return operation


def _extreme(name: str, entrywise: Callable[..., Any]) -> Callable[..., Any]:
    """The greater or smaller of two numbers; of vectors, the atom of that of each entry."""
    relation = sp.Ge if name == "maximum" else sp.Le

    def operation(formal: Formal, a: Any, b: Any) -> Any:
        a, b = formal.linear(a), formal.linear(b)
        if isinstance(a, Vector) or isinstance(b, Vector):
            return formal.atom(f"{name}({{}}, {{}})", "e", entrywise, a, b)
        return scalars.where(formal.facts, scalars.compare(formal.facts, relation, a, b), a, b)

    return operation


def _remainder(formal: Formal, a: Any, b: Any) -> Any:
    a, b = formal.linear(a), formal.linear(b)
    if isinstance(a, Vector) or isinstance(b, Vector):
        return formal.atom("[] % []", "u", np.remainder, a, b)
    return sp.Mod(a, b)


def _where(formal: Formal, condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Entries):
        a, b = formal.entry(a), formal.entry(b)
        return formal.atom("where({}, {}, {})", "u", np.where, condition, a, b)
    a, b = formal.linear(a), formal.linear(b)
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return scalars.where(formal.facts, condition, a, b)
    if condition in (sp.true, sp.false):
        return _vector(a if condition == sp.true else b)
    switch = scalars.where(formal.facts, condition, sp.S.One, sp.S.Zero)
    return _add(formal, _mul(formal, a, switch), _mul(formal, b, 1 - switch))


def _same(formal: Formal, a: Any, *_: Any) -> Any:
    return a


TABLE: dict[str, Callable[..., Any]] = {
    **{"add": _add, "neg": _neg, "mul": _mul, "div": _div, "addcdiv": _addcdiv},
    **{"reciprocal": _reciprocal, "pow": _pow, "sqrt": _sqrt, "sign": _sign},
    "abs": _apply(sp.Abs, np.abs),
    **{"exp": _apply(sp.exp, np.exp), "log": _apply(sp.log, np.log, "u")},
    **{"tanh": _apply(sp.tanh, np.tanh, "u"), "cos": _apply(sp.cos, np.cos)},
    **{"sin": _apply(sp.sin, np.sin, "u"), "sinc": _sinc},
    **{"clamp": _clamp, "clamp_min": _clamp, "sum": _sum, "mean": _mean},
    "clamp_max": lambda formal, a, high: _clamp(formal, a, None, high),
    **dict.fromkeys(("dot", "vdot", "mm", "mv", "bmm"), _dot),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _add_product),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _same),
    **dict.fromkeys(("permute", "t", "transpose", "clone", "scalar_tensor"), _same),
    "_to_copy": lambda formal, a, *_: formal.linear(a),
    **{"select": _select, "expand": _expand},
    **{"eye": _eye, "full": _full, "full_like": _full_like},
    **{"all": _all, "any": _any, "where": _where, "remainder": _remainder},
    "maximum": _extreme("maximum", np.maximum),
    "minimum": _extreme("minimum", np.minimum),
    "logical_and": _logical("and", sp.And, np.logical_and),
    "logical_or": _logical("or", sp.Or, np.logical_or),
    "logical_not": _logical("not", sp.Not, np.logical_not),
    MARK: _mark,
}
