"""Operations on each entry of formal vectors: linear ones give vectors, any others atoms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, partialmethod
from typing import Any

import sympy as sp
import torch

from spherenorm import rules as r
from spherenorm.operations import OPERATIONS, of_overload
from spherenorm.record import Call, Record, Value
from spherenorm_theory.opaque_rules import MARK, RANK, SCALE, SHARE
from spherenorm_theory.printing import show
from spherenorm_theory.symbols import DIMENSION, Norm, Vector, canonical_form, exact, is_entry
from spherenorm_theory.tracing import TraceError
from spherenorm_theory.vectors import OpaqueVector, Product, VectorAlgebra, is_entrywise


def exact_or_same(argument: Any) -> Any:
    if not isinstance(argument, (int, float)) or isinstance(argument, bool):
        return argument
    if not math.isfinite(argument):
        raise NotImplementedError("a number that is not finite")
    return exact(argument)


def ones(x: sp.Expr) -> Vector:
    """The vector with the scalar x in every entry."""
    return Vector({"1": x}) if x != 0 else Vector()


def as_vector(x: Any) -> Vector:
    return x if isinstance(x, Vector) else ones(x)


def _function(function: Callable[..., Any], prefix: str = "e") -> Any:
    """A function of a scalar; of a vector, the atom for its function of every entry."""

    def operation(self: Entrywise, *arguments: Any) -> Any:
        return self.apply(prefix, function, *arguments)

    return operation


class Entrywise:
    """Operations entry by entry: a linear one gives a vector, any other one an atom.

    Attributes:
        formal: the algebra.
        entered, shape: of the first argument, and of the result.
    """

    def __init__(
        self, formal: VectorAlgebra, entered: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        self.formal, self.with_given_numbers, self.shape = formal, entered, shape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation that the library derives from others."""
        row = OPERATIONS.get(name)
        if row is None or row.derived is None:
            raise AttributeError(f"aten_{name}")
        return partial(row.derived, self)

    @property
    def same_size(self) -> bool:
        """True if the result has as many entries as the argument."""
        return math.prod(self.shape) == math.prod(self.with_given_numbers)

    def read(self, *arguments: Any) -> list[Any]:
        """Arguments as vectors and exact scalars."""
        return [self.formal.linear(exact_or_same(x)) for x in arguments]

    def apply(self, prefix: str, function: Callable[..., Any], *arguments: Any) -> Any:
        read = self.read(*arguments)
        if any(isinstance(x, Vector) for x in read):
            return self.formal.apply(prefix, function, *read)
        return function(*read)

    def add(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        a, b = self.read(a, b if alpha == 1 else self.mul(b, alpha))
        if not (isinstance(a, Vector) or isinstance(b, Vector)):
            return a + b
        return as_vector(a) + as_vector(b)

    def mul(self, a: Any, b: Any) -> Any:
        a, b = self.read(a, b)
        for constant, other in ((a, b), (b, a)):
            if not isinstance(other, Vector):
                continue
            if not isinstance(constant, Vector):
                return other.scaled(constant)
            if {*constant} == {"1"}:  # the same number in every entry is a scale
                return other.scaled(constant["1"])
        if not isinstance(a, Vector):
            return a * b
        if math.prod(self.shape) > math.prod(self.with_given_numbers) > 1:
            raise NotImplementedError("an outer product is no vector")
        return Product(a, b)

    def div(self, a: Any, b: Any) -> Any:
        a, b = self.read(a, b)
        if isinstance(b, Vector) and {*b} == {"1"}:
            b = b["1"]
        return (
            self.apply("u", operator.truediv, a, b) if isinstance(b, Vector) else self.mul(a, 1 / b)
        )

    def addcdiv(self, a: Any, b: Any, c: Any, value: Any = 1) -> Any:
        # The factor stays outside, so that the ratio is the same atom with any factor.
        return self.add(a, self.div(b, c), value)

    def pow(self, a: Any, b: Any) -> Any:
        (b,) = self.read(b)
        if b == sp.S.Half:
            return self.sqrt(a)
        return self.mul(a, a) if b == 2 else self.apply("e", operator.pow, a, b)

    def sqrt(self, a: Any) -> Any:
        root = self.apply("e", sp.sqrt, a)
        # The root of a square of which the sign is known: (1 - beta)^2 |g|^2.
        square = isinstance(root, sp.Pow) and root.base.is_Mul and root.base.has(Norm)
        return sp.sqrt(sp.factor(root.base)) if square else root

    def sign(self, a: Any) -> Any:
        (a,) = self.read(a)
        if not isinstance(a, Vector):
            return sp.sign(a)
        made = OpaqueVector(sp.sign(self.formal.entry(a), evaluate=False), a, square=DIMENSION)
        return self.formal.atom("u", made)

    neg = partialmethod(mul, -1)
    abs, exp, cos = _function(sp.Abs), _function(sp.exp), _function(sp.cos)
    log, tanh, sin = (_function(each, "u") for each in (sp.log, sp.tanh, sp.sin))
    remainder, reciprocal = _function(sp.Mod, "u"), _function(lambda x: 1 / x)

    def sinc(self, a: sp.Expr) -> sp.Expr:
        """sin(pi a) / (pi a), as torch defines it, at a != 0: the step is not zero."""
        self.formal.facts.assume_nonzero_norms(a)
        return sp.sin(sp.pi * a) / (sp.pi * a)

    def clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        (a,) = self.read(a)
        if not isinstance(a, Vector):
            derived = OPERATIONS["clamp"].derived
            assert derived is not None
            return derived(self, a, low, high)

        def clipped(x: sp.Expr) -> sp.Expr:
            ends = [(low, sp.Lt), (high, sp.Gt)]
            found = [(end, beyond(x, end)) for end, beyond in ends if end is not None]
            return sp.Piecewise(*found, (x, True))

        return self.apply("u", clipped, a)

    clamp_min = clamp

    def clamp_max(self, a: Any, high: Any) -> Any:
        return self.clamp(a, None, high)


# The operations of formal vectors, and the reading of a record by them.


STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
"""Options that say how a tensor is stored, not what it holds."""


def interpret(record: Record, formal: VectorAlgebra, inputs: Sequence[Any]) -> list[Any]:
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
        values[call.result] = formal.replace_by_name(_apply_call(call, formal, values))
        if call.in_place:
            # The record has ordinary operations in place of these, but for some inside of torch's
            # own.
            values[call.arguments[0]] = values[call.result]
    outputs = record.outputs if isinstance(record.outputs, (list, tuple)) else [record.outputs]
    return [formal.linear(values[out]) for out in outputs]


def _apply_call(call: Call, formal: VectorAlgebra, values: Mapping[Value, Any]) -> Any:
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
        return formal.replace_by_name(values[x]) if isinstance(x, Value) else entry(x)

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
        return inner if inner.is_Mul or inner.is_Pow else canonical_form(inner)

    vdot = mm = mv = bmm = dot

    def addmm(self, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return self.add(self.mul(a, beta), self.dot(b, c), alpha)

    addmv = baddbmm = addmm

    def mark(self, a: Any, weight: Any, place: Any) -> Vector:
        """The letter of a rule that is not looked into."""
        (a,), formal = self.read(a), self.formal
        rule, square = formal.opaque_rules[int(place)], None
        prefix, name = "T", "tangent"
        if isinstance(rule, r.Graft):
            prefix, name, square = "N", type(rule.rule).__name__, formal.dot(a, a)
        elif isinstance(rule, r.Orthogonalize):
            prefix, name, square = "O", "factor", SCALE**2 * SHARE * RANK
        formula = sp.Function(name)(formal.entry(a))
        return formal.atom(prefix, OpaqueVector(formula, a, square, rule, int(place)))

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
        self.formal.facts.assume_nonzero_norms(*self.formal.letter(zero).values(), *map(Norm, zero))
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
