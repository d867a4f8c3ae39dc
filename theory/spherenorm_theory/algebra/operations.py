"""The operations of formal vectors, and the reading of a record by them.

A method has the name of its operation in `spherenorm.operations`, or in aten; what the library
derives from other operations has no method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod
from typing import Any

import sympy as sp
import torch

from spherenorm import rules as r
from spherenorm.operations import of_overload
from spherenorm.record import Call, Record, Value
from spherenorm_theory.algebra.entrywise import Entrywise, as_vector, exact_or_same, ones
from spherenorm_theory.algebra.formal import Formal, Made, Product, is_entrywise
from spherenorm_theory.algebra.letters import MARK, RANK, SCALE, SHARE
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.symbols import DIMENSION, Norm, Vector, exact, is_entry, tidy
from spherenorm_theory.algebra.trace import TraceError

STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
"""Options that say how a tensor is stored, not what it holds."""


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
    name, row = call.name.rpartition(".")[0], of_overload(call.name)
    entered = [tuple(a.shape) for a in call.arguments if isinstance(a, Value)]
    on = Operations(formal, entered[0] if entered else (), tuple(call.result.shape))
    plain = "mark" if call.packet == MARK else call.packet.removesuffix("_")
    operation = getattr(on, plain, None) or getattr(on, row.name if row else "", None)
    if operation is None and plain == "copy":
        raise TraceError(
            "the code writes into the weight, the gradient or the state that it is given, where a "
            "rule returns new tensors; read `x.mul(a)` for `x.mul_(a)`"
        )
    if operation is None:
        raise TraceError(f"{name} has no meaning on formal vectors yet; it came from {call.line}")
    _refuse_rounding_and_mixing(call)

    def value(x: Any, entry: Callable[[Any], Any]) -> Any:
        if isinstance(x, (list, tuple)):
            return [value(each, entry) for each in x]
        return formal.fold(values[x]) if isinstance(x, Value) else entry(x)

    options = {k: x for k, x in call.options.items() if k not in STORAGE}
    try:
        arguments = [value(x, exact_or_same) for x in call.arguments]
        return operation(*arguments, **{k: value(x, exact_or_same) for k, x in options.items()})
    except (TypeError, NotImplementedError, KeyError, AttributeError, OverflowError) as error:
        given = [value(x, str) for x in call.arguments]
        given += [f"{k}={value(x, str)}" for k, x in options.items()]
        shown = ", ".join(show(x) if isinstance(x, Vector) else str(x) for x in given)
        raise TraceError(
            f"{name}({shown}) has no meaning on formal vectors ({error}); it came from {call.line}"
        ) from error


def _refuse_rounding_and_mixing(call: Call) -> None:
    """Refuse to round numbers, and to pair entries of a vector with others: w - w.T."""
    name = call.name.rpartition(".")[0]
    entered, given = [value.dtype for value in call.values()], call.result.dtype
    exactly = given in (torch.float64, torch.bool) or not any(t.is_floating_point for t in entered)
    casts = call.packet in ("_to_copy", "to") and given is torch.bool
    rounds = torch.float64 in entered and (casts or not exactly)
    if rounds and not call.packet.startswith("arg"):
        raise TraceError(
            f"{name} rounds {torch.float64} to {given}, and a law is about exact numbers; it came "
            f"from {call.line}"
        )
    lengths = [value.shape.numel() for value in call.values()]
    if lengths and call.result.shape.numel() > max(lengths) > 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in call.values())
        raise TraceError(
            f"{name} of {shapes} gives {tuple(call.result.shape)}: the entries of a unit are "
            f"paired with other ones of it; it came from {call.line}"
        )


class Sums(Entrywise):
    """Sums and shapes: a weight is one unit, so that another shape of it holds the same entries."""

    def sum(self, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
        if self.same_size:
            return a  # a sum over dimensions of length 1
        if math.prod(self.shape) > 1:
            raise NotImplementedError("a sum over some of the entries")
        if isinstance(a, Product):
            return self.dot(a.a, a.b)
        (a,) = self.read(a)
        return self.formal.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a

    def count(self, a: Any, dims: Any = None) -> sp.Expr:
        """The number of entries of each sum."""
        return sp.S.One if self.same_size else DIMENSION

    def dot(self, a: Any, b: Any) -> Any:
        a, b = self.read(a, b)
        if not (isinstance(a, Vector) and isinstance(b, Vector)):
            return self.mul(a, b)
        if math.prod(self.shape) > 1:
            raise NotImplementedError("an outer product is no combination of vectors")
        inner = self.formal.dot(a, b)
        return inner if inner.is_Mul or inner.is_Pow else tidy(inner)

    vdot = mm = mv = bmm = dot

    def addmm(self, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return self.add(self.mul(a, beta), self.dot(b, c), alpha)

    addmv = baddbmm = addmm

    def mark(self, a: Any, weight: Any, place: Any) -> Vector:
        """The letter of a rule that is not looked into."""
        (a,), formal = self.read(a), self.formal
        rule, square = formal.letters[int(place)], None
        prefix, name = "T", "tangent"
        if isinstance(rule, r.Graft):
            prefix, name, square = "N", type(rule.rule).__name__, formal.dot(a, a)
        elif isinstance(rule, r.Orthogonalize):
            prefix, name, square = "O", "factor", SCALE**2 * SHARE * RANK
        formula = sp.Function(name)(formal.entry(a))
        return formal.atom(prefix, Made(formula, a, square, rule, int(place)))

    def view(self, a: Any, *_: Any) -> Any:
        """The same entries."""
        return a

    _unsafe_view = reshape = unsqueeze = squeeze = permute = t = transpose = clone = view
    detach = alias = lift_fresh = lift_fresh_copy = scalar_tensor = view

    def _to_copy(self, a: Any, *_: Any) -> Any:
        return self.formal.linear(a)

    def select(self, a: Any, *_: Any) -> Any:
        if not self.same_size:
            raise NotImplementedError("one entry of a vector")
        return a  # the only index of a dimension of length 1

    def expand(self, a: Any, *_: Any) -> Any:
        return ones(a) if isinstance(a, sp.Expr) and math.prod(self.shape) > 1 else a

    def eye(self, n: sp.Expr, *_: Any) -> sp.Expr:
        if n != 1:
            raise NotImplementedError("the identity matrix of more than one unit")
        return sp.S.One

    def full(self, size: Any, value: Any, *_: Any) -> Any:
        return exact_or_same(value) if all(n == 1 for n in size) else ones(exact_or_same(value))

    def full_like(self, a: Any, value: Any, *_: Any) -> Any:
        return (
            ones(exact_or_same(value)) if isinstance(a, (Vector, Product)) else exact_or_same(value)
        )


class Operations(Sums):
    """The operations, with those that decide."""

    def compare(self, relation: type[sp.Rel], a: Any, b: Any) -> Any:
        """A relation of scalars, or a condition on entries."""
        a, b = exact_or_same(a), exact_or_same(b)
        if any(isinstance(x, (Vector, Product)) or is_entrywise(x) for x in (a, b)):
            return relation(self.formal.entry(a), self.formal.entry(b))
        return self.formal.facts.compare(relation, *self.read(a, b))

    gt, lt = partialmethod(compare, sp.Gt), partialmethod(compare, sp.Lt)
    ge, le = partialmethod(compare, sp.Ge), partialmethod(compare, sp.Le)
    eq, ne = partialmethod(compare, sp.Eq), partialmethod(compare, sp.Ne)

    logical_and, logical_or, logical_not = sp.And, sp.Or, sp.Not

    def all(self, a: Any, *_: Any) -> Any:
        """Decide a condition on all entries: x = 0 holds for an x of length 0 alone."""
        if not is_entrywise(a):
            return a
        entries = sorted(filter(is_entry, a.free_symbols), key=str)
        linear = isinstance(a, sp.Eq) and sp.Poly(a.lhs - a.rhs, *entries).is_linear
        if not linear:
            raise NotImplementedError("whether a condition holds for all entries")
        whole = sp.expand(a.lhs - a.rhs)
        zero = Vector({s.name: whole.coeff(s) for s in entries})
        self.formal.facts.assume_norms(*self.formal.letter(zero).values(), *map(Norm, zero))
        return sp.false

    def any(self, a: Any, *_: Any) -> Any:
        if is_entrywise(a):
            raise NotImplementedError("whether a condition holds for any entry")
        return a

    def extreme(self, relation: type[sp.Rel], a: Any, b: Any) -> Any:
        """The greater or smaller of two numbers, or of each entry, which is then a magnitude."""
        a, b = self.read(a, b)
        if isinstance(a, Vector) or isinstance(b, Vector):
            return self.formal.apply(
                "e", lambda x, y: sp.Piecewise((x, relation(x, y)), (y, True)), a, b
            )
        return self.where(self.compare(relation, a, b), a, b)

    maximum, minimum = partialmethod(extreme, sp.Ge), partialmethod(extreme, sp.Le)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """The entries of one of two vectors, or one of two scalars."""
        a, b, facts = exact_or_same(a), exact_or_same(b), self.formal.facts
        if is_entrywise(condition):
            return self.formal.apply(
                "u", lambda a, b: sp.Piecewise((a, condition), (b, True)), a, b
            )
        a, b = self.read(a, b)
        if not (isinstance(a, Vector) or isinstance(b, Vector)):
            return facts.where(condition, a, b)
        if condition in (sp.true, sp.false):
            return as_vector(a if condition == sp.true else b)
        switch = facts.where(condition, sp.S.One, sp.S.Zero)
        return self.add(self.mul(a, switch), self.mul(b, 1 - switch))
