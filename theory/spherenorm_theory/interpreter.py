"""The interpreter: runs a recorded step on formal vectors, one registered handler per operation.

A handler is a function of the `Interpreter` and of the arguments of the operation:

    @register(aten.softplus)
    def softplus(ops, x, beta=1, threshold=20):
        ...

Its arguments are vectors, entrywise products, conditions or sympy scalars, and so is its result.
What `spherenorm.operations` derives from other operations, such as `lerp` or `rsqrt`, needs no
handler: the interpreter runs the same derivation that the kernels use. Each other row of that table
says that it has a handler here, or why it has none; the end of this file checks it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import sympy as sp
import torch

from spherenorm import rules as r
from spherenorm.operations import OPERATIONS, NotHere, check_registered, of_overload
from spherenorm.record import Call, Record, TensorRef
from spherenorm_theory.opaque_rules import MARKERS, RANK, SCALE, SHARE
from spherenorm_theory.printing import show
from spherenorm_theory.symbols import DIMENSION, Norm, Vector, canonical_form, exact, is_entry
from spherenorm_theory.tracing import TraceError
from spherenorm_theory.vectors import (
    AtomKind,
    EntrywiseProduct,
    OpaqueVector,
    VectorAlgebra,
    is_entrywise_condition,
)

aten = torch.ops.aten

Handler = TypeVar("Handler", bound=Callable[..., Any])

STORAGE_OPTIONS = {
    *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"),
}
"""Options that say how a tensor is stored, not what it holds."""

HANDLERS: dict[str, Callable[..., Any]] = {}
"""The handler of each operation, by the name of its packet in aten."""


def register(*packets: Any) -> Callable[[Handler], Handler]:
    """Register the handler of some operations.

    Args:
        packets: operations of aten, such as `aten.mul`, or names.

    Example:
        >>> @register("cube_for_this_example")
        ... def cube(ops, x):
        ...     return ops.mul(x, ops.mul(x, x))
        >>> HANDLERS.pop("cube_for_this_example") is cube
        True
    """

    def add_handler(handler: Handler) -> Handler:
        for packet in packets:
            HANDLERS[packet if isinstance(packet, str) else packet.__name__] = handler
        return handler

    return add_handler


class Interpreter:
    """The context in which a handler runs: the algebra, and the shapes of its call.

    An operation is an attribute: `ops.mul(a, b)` runs the handler of `aten.mul`.

    Attributes:
        algebra: the algebra of the vectors.
        input_shape: shape of the first tensor argument.
        output_shape: shape of the result.
    """

    def __init__(
        self, algebra: VectorAlgebra, input_shape: tuple[int, ...], output_shape: tuple[int, ...]
    ) -> None:
        self.algebra, self.input_shape, self.output_shape = algebra, input_shape, output_shape

    def __getattr__(self, name: str) -> Callable[..., Any]:
        handler = find_handler(name)
        if handler is None:
            raise AttributeError(f"aten_{name}")
        return partial(handler, self)

    @property
    def keeps_size(self) -> bool:
        """True if the result has as many entries as the argument."""
        return math.prod(self.output_shape) == math.prod(self.input_shape)

    def to_linear(self, *arguments: Any) -> list[Any]:
        """Return arguments as vectors and exact scalars."""
        return [self.algebra.to_linear(to_exact(argument)) for argument in arguments]

    def apply(self, kind: AtomKind, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a function of scalars, or the opaque vector of a function of each entry."""
        linear = self.to_linear(*arguments)
        if any(isinstance(argument, Vector) for argument in linear):
            return self.algebra.apply_to_entries(kind, function, *linear)
        return function(*linear)


def find_handler(name: str) -> Callable[..., Any] | None:
    """Return the handler of an operation, registered or derived from others; None without one."""
    row = OPERATIONS.get(name)
    return HANDLERS.get(name) or (row.derived if row is not None else None)


def interpret(record: Record, algebra: VectorAlgebra, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of a recorded step on formal vectors and scalars.

    Args:
        record: the recorded step.
        algebra: the algebra of the vectors.
        inputs: a vector or a scalar for each input of the record.

    Raises:
        TraceError: an operation has no handler, or its handler refuses the arguments. The message
            has the line of code from which the operation came.
    """
    values: dict[TensorRef, Any] = dict(zip(record.inputs, inputs, strict=True))
    for value, constant in record.constants.items():
        is_used = any(value in call.input_refs() for call in record.live_calls)
        if is_used and constant.numel() != 1:
            raise TraceError(
                f"the step holds a constant tensor of shape {tuple(constant.shape)}, which has no "
                "symbol"
            )
        if is_used:
            values[value] = exact(constant.item())
    for call in record.live_calls:
        values[call.result] = algebra.replace_by_name(_apply_call(call, algebra, values))
        if call.in_place:
            # The recorder writes operations out of place. Only torch's own code leaves some in
            # place, and a later call then reads the argument.
            values[call.arguments[0]] = values[call.result]
    outputs = record.outputs if isinstance(record.outputs, (list, tuple)) else [record.outputs]
    return [algebra.to_linear(values[output]) for output in outputs]


def _apply_call(call: Call, algebra: VectorAlgebra, values: Mapping[TensorRef, Any]) -> Any:
    """Run the handler of one recorded call."""
    name = call.name.rpartition(".")[0]
    handler = _handler_of_call(call)
    if handler is None and call.packet.removesuffix("_") == "copy":
        raise TraceError(
            "the code writes into the weight, the gradient or the state that it is given, where a "
            "rule returns new tensors; read `x.mul(a)` for `x.mul_(a)`"
        )
    if handler is None:
        row = of_overload(call.name)
        if row is not None and isinstance(row.law, NotHere):
            raise TraceError(
                f"{name} has no meaning on formal vectors ({row.law.reason}); it came from "
                f"{call.line}"
            )
        raise TraceError(f"{name} has no meaning on formal vectors yet; it came from {call.line}")
    _refuse_rounding(call)
    _refuse_outer_products(call)

    def look_up(argument: Any, convert: Callable[[Any], Any]) -> Any:
        if isinstance(argument, (list, tuple)):
            return [look_up(item, convert) for item in argument]
        if isinstance(argument, TensorRef):
            return algebra.replace_by_name(values[argument])
        return convert(argument)

    shapes = [tuple(x.shape) for x in call.arguments if isinstance(x, TensorRef)]
    ops = Interpreter(algebra, shapes[0] if shapes else (), tuple(call.result.shape))
    options = {key: x for key, x in call.options.items() if key not in STORAGE_OPTIONS}
    try:
        arguments = [look_up(x, to_exact) for x in call.arguments]
        return handler(ops, *arguments, **{key: look_up(x, to_exact) for key, x in options.items()})
    except (TypeError, NotImplementedError, KeyError, AttributeError, OverflowError) as error:
        printed = [look_up(x, str) for x in call.arguments]
        printed += [f"{key}={look_up(x, str)}" for key, x in options.items()]
        text = ", ".join(show(x) if isinstance(x, Vector) else str(x) for x in printed)
        raise TraceError(
            f"{name}({text}) has no meaning on formal vectors ({error}); it came from {call.line}"
        ) from error


def _handler_of_call(call: Call) -> Callable[..., Any] | None:
    if call.name.startswith(MARKERS):
        return HANDLERS[call.name.split(".")[1]]
    row = of_overload(call.name)
    handler_of_row = find_handler(row.name) if row is not None else None
    return find_handler(call.packet.removesuffix("_")) or handler_of_row


def _refuse_rounding(call: Call) -> None:
    """Refuse an operation that rounds float64 numbers.

    Raises:
        TraceError: naming the two types.
    """
    argument_types, result_type = [value.dtype for value in call.input_refs()], call.result.dtype
    is_exact = result_type in (torch.float64, torch.bool) or not any(
        dtype.is_floating_point for dtype in argument_types
    )
    casts_to_bool = call.packet in ("_to_copy", "to") and result_type is torch.bool
    rounds = torch.float64 in argument_types and (casts_to_bool or not is_exact)
    if rounds and not call.packet.startswith("arg"):
        raise TraceError(
            f"{call.name.rpartition('.')[0]} rounds {torch.float64} to {result_type}, and a law is "
            f"about exact numbers; it came from {call.line}"
        )


def _refuse_outer_products(call: Call) -> None:
    """Refuse an operation that pairs each entry of a unit with other ones, such as w - w.T.

    Raises:
        TraceError: naming the shapes.
    """
    sizes = [value.shape.numel() for value in call.input_refs()]
    if sizes and call.result.shape.numel() > max(sizes) > 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in call.input_refs())
        raise TraceError(
            f"{call.name.rpartition('.')[0]} of {shapes} gives {tuple(call.result.shape)}: the "
            "entries of a unit are paired with other ones of it; it came from "
            f"{call.line}"
        )


# Constants


def to_exact(argument: Any) -> Any:
    """Return a Python number as an exact one, and any other argument as it is."""
    if not isinstance(argument, (int, float)) or isinstance(argument, bool):
        return argument
    if not math.isfinite(argument):
        raise NotImplementedError("a number that is not finite")
    return exact(argument)


def constant_vector(scalar: sp.Expr) -> Vector:
    """Return the vector with the scalar in every entry."""
    return Vector({"1": scalar}) if scalar != 0 else Vector()


def to_vector(x: Any) -> Vector:
    """Return a vector as it is, and a scalar as the vector that is filled with it."""
    return x if isinstance(x, Vector) else constant_vector(x)


@register(aten.full)
def full(ops: Interpreter, size: Any, value: Any, *_: Any) -> Any:
    value = to_exact(value)
    return value if all(n == 1 for n in size) else constant_vector(value)


@register(aten.full_like)
def full_like(ops: Interpreter, a: Any, value: Any, *_: Any) -> Any:
    value = to_exact(value)
    return constant_vector(value) if isinstance(a, (Vector, EntrywiseProduct)) else value


@register(aten.eye)
def eye(ops: Interpreter, n: sp.Expr, *_: Any) -> sp.Expr:
    if n != 1:
        raise NotImplementedError("the identity matrix of more than one unit")
    return sp.S.One


# Arithmetic


@register(aten.add)
def add(ops: Interpreter, a: Any, b: Any, alpha: Any = 1) -> Any:
    a, b = ops.to_linear(a, b if alpha == 1 else ops.mul(b, alpha))
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return a + b
    return to_vector(a) + to_vector(b)


@register(aten.mul)
def mul(ops: Interpreter, a: Any, b: Any) -> Any:
    a, b = ops.to_linear(a, b)
    for factor, other in ((a, b), (b, a)):
        if not isinstance(other, Vector):
            continue
        if not isinstance(factor, Vector):
            return other.scaled(factor)
        if {*factor} == {"1"}:  # a vector with one number in every entry scales the other
            return other.scaled(factor["1"])
    if not isinstance(a, Vector):
        return a * b
    if math.prod(ops.output_shape) > math.prod(ops.input_shape) > 1:
        raise NotImplementedError("an outer product is no vector")
    return EntrywiseProduct(a, b)


@register(aten.neg)
def neg(ops: Interpreter, a: Any) -> Any:
    return ops.mul(a, -1)


@register(aten.div)
def div(ops: Interpreter, a: Any, b: Any) -> Any:
    a, b = ops.to_linear(a, b)
    if isinstance(b, Vector) and {*b} == {"1"}:
        b = b["1"]
    if isinstance(b, Vector):
        return ops.apply(AtomKind.DIRECTION, operator.truediv, a, b)
    return ops.mul(a, 1 / b)


@register(aten.addcdiv)
def addcdiv(ops: Interpreter, a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    # The factor stays outside, so that b / c is the same atom with any factor.
    return ops.add(a, ops.div(b, c), value)


@register(aten.pow)
def pow_(ops: Interpreter, a: Any, b: Any) -> Any:
    (b,) = ops.to_linear(b)
    if b == sp.S.Half:
        return ops.sqrt(a)
    return ops.mul(a, a) if b == 2 else ops.apply(AtomKind.MAGNITUDE, operator.pow, a, b)


# Functions of each entry


def _register_function(packet: Any, kind: AtomKind, function: Callable[..., Any]) -> None:
    @register(packet)
    def apply_function(ops: Interpreter, *arguments: Any) -> Any:
        return ops.apply(kind, function, *arguments)


_register_function(aten.abs, AtomKind.MAGNITUDE, sp.Abs)
_register_function(aten.exp, AtomKind.MAGNITUDE, sp.exp)
_register_function(aten.cos, AtomKind.MAGNITUDE, sp.cos)
_register_function(aten.reciprocal, AtomKind.MAGNITUDE, lambda x: 1 / x)
_register_function(aten.log, AtomKind.DIRECTION, sp.log)
_register_function(aten.tanh, AtomKind.DIRECTION, sp.tanh)
_register_function(aten.sin, AtomKind.DIRECTION, sp.sin)
_register_function(aten.remainder, AtomKind.DIRECTION, sp.Mod)


@register(aten.sqrt)
def sqrt(ops: Interpreter, a: Any) -> Any:
    root = ops.apply(AtomKind.MAGNITUDE, sp.sqrt, a)
    # Factors, so that sympy takes the root of a square of known sign: (1 - beta)^2 |g|^2.
    may_be_square = isinstance(root, sp.Pow) and root.base.is_Mul and root.base.has(Norm)
    return sp.sqrt(sp.factor(root.base)) if may_be_square else root


@register(aten.sign)
def sign(ops: Interpreter, a: Any) -> Any:
    (a,) = ops.to_linear(a)
    if not isinstance(a, Vector):
        return sp.sign(a)
    formula = sp.sign(ops.algebra.entry(a), evaluate=False)
    return ops.algebra.add_opaque(OpaqueVector(AtomKind.DIRECTION, formula, a, square=DIMENSION))


@register(aten.sinc)
def sinc(ops: Interpreter, a: sp.Expr) -> sp.Expr:
    """Return sin(pi a) / (pi a), as torch defines it, for a != 0: a step is not zero."""
    ops.algebra.facts.assume_nonzero_norms(a)
    return sp.sin(sp.pi * a) / (sp.pi * a)


@register(aten.clamp, aten.clamp_min)
def clamp(ops: Interpreter, a: Any, low: Any = None, high: Any = None) -> Any:
    (a,) = ops.to_linear(a)
    if not isinstance(a, Vector):
        derived = OPERATIONS["clamp"].derived
        assert derived is not None
        return derived(ops, a, low, high)

    def clip(x: sp.Expr) -> sp.Expr:
        ends = [(end, beyond) for end, beyond in ((low, sp.Lt), (high, sp.Gt)) if end is not None]
        return sp.Piecewise(*((end, beyond(x, end)) for end, beyond in ends), (x, True))

    return ops.apply(AtomKind.DIRECTION, clip, a)


@register(aten.clamp_max)
def clamp_max(ops: Interpreter, a: Any, high: Any) -> Any:
    return ops.clamp(a, None, high)


# Sums and shapes: a weight is one unit, so that another shape of it holds the same entries


@register(aten.sum)
def sum_(ops: Interpreter, a: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if ops.keeps_size:
        return a  # a sum over dimensions of length 1
    if math.prod(ops.output_shape) > 1:
        raise NotImplementedError("a sum over some of the entries")
    if isinstance(a, EntrywiseProduct):
        return ops.dot(a.a, a.b)
    (a,) = ops.to_linear(a)
    return ops.algebra.inner(a, Vector.atom("1")) if isinstance(a, Vector) else a


@register("count")
def count(ops: Interpreter, a: Any, dims: Any = None) -> sp.Expr:
    """Return the number of entries of each sum, which `spherenorm.operations` asks for a mean."""
    return sp.S.One if ops.keeps_size else DIMENSION


@register(aten.dot, aten.vdot, aten.mm, aten.mv, aten.bmm)
def dot(ops: Interpreter, a: Any, b: Any) -> Any:
    a, b = ops.to_linear(a, b)
    if not (isinstance(a, Vector) and isinstance(b, Vector)):
        return ops.mul(a, b)
    if math.prod(ops.output_shape) > 1:
        raise NotImplementedError("an outer product is no combination of vectors")
    inner = ops.algebra.inner(a, b, name_norms=True)
    return inner if inner.is_Mul or inner.is_Pow else canonical_form(inner)


@register(aten.addmm, aten.addmv, aten.baddbmm)
def addmm(ops: Interpreter, a: Any, b: Any, c: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return ops.add(ops.mul(a, beta), ops.dot(b, c), alpha)


@register(aten.view, aten._unsafe_view, aten.reshape, aten.unsqueeze, aten.squeeze)
@register(aten.permute, aten.t, aten.transpose, aten.clone, aten.detach, aten.alias)
@register(aten.lift_fresh, aten.lift_fresh_copy, aten.scalar_tensor)
def identity(ops: Interpreter, a: Any, *_: Any) -> Any:
    return a


@register(aten._to_copy)
def to_copy(ops: Interpreter, a: Any, *_: Any) -> Any:
    return ops.algebra.to_linear(a)


@register(aten.select)
def select(ops: Interpreter, a: Any, *_: Any) -> Any:
    if not ops.keeps_size:
        raise NotImplementedError("one entry of a vector")
    return a  # the only index of a dimension of length 1


@register(aten.expand)
def expand(ops: Interpreter, a: Any, *_: Any) -> Any:
    return constant_vector(a) if isinstance(a, sp.Expr) and math.prod(ops.output_shape) > 1 else a


# Opaque rules


@register("mark")
def opaque_rule_output(ops: Interpreter, a: Any, weight: Any, index: Any) -> Vector:
    """Return the opaque vector of a rule that is not looked into."""
    (a,), algebra = ops.to_linear(a), ops.algebra
    rule, square = algebra.opaque_rules[int(index)], None
    kind, name = AtomKind.STIEFEL_TANGENT, "tangent"
    if isinstance(rule, r.KeepNorm):
        kind, name = AtomKind.GRAFT, type(rule.rule).__name__
        square = algebra.inner(a, a, name_norms=True)
    elif isinstance(rule, r.Orthogonalize):
        kind, name, square = AtomKind.ORTHOGONAL_FACTOR, "factor", SCALE**2 * SHARE * RANK
    formula = sp.Function(name)(algebra.entry(a))
    return algebra.add_opaque(OpaqueVector(kind, formula, a, square, rule, int(index)))


@register("schedule")
def schedule(ops: Interpreter, value: Any, name: str) -> sp.Symbol:
    """Return the symbol of a scheduled hyper-parameter, a function of the step count."""
    return ops.algebra.facts.name_schedule(name, value)


# Comparisons and branches


def _compare(relation: type[sp.Rel], ops: Interpreter, a: Any, b: Any) -> Any:
    """Return a relation of scalars, decided where it can be, or a condition on entries."""
    a, b = to_exact(a), to_exact(b)
    if any(isinstance(x, (Vector, EntrywiseProduct)) or is_entrywise_condition(x) for x in (a, b)):
        return relation(ops.algebra.entry(a), ops.algebra.entry(b))
    return ops.algebra.facts.compare(relation, *ops.to_linear(a, b))


register(aten.gt)(partial(_compare, sp.Gt))
register(aten.lt)(partial(_compare, sp.Lt))
register(aten.ge)(partial(_compare, sp.Ge))
register(aten.le)(partial(_compare, sp.Le))
register(aten.eq)(partial(_compare, sp.Eq))
register(aten.ne)(partial(_compare, sp.Ne))


@register(aten.logical_and)
def logical_and(ops: Interpreter, a: Any, b: Any) -> Any:
    return sp.And(a, b)


@register(aten.logical_or)
def logical_or(ops: Interpreter, a: Any, b: Any) -> Any:
    return sp.Or(a, b)


@register(aten.logical_not)
def logical_not(ops: Interpreter, a: Any) -> Any:
    return sp.Not(a)


@register(aten.all)
def all_(ops: Interpreter, a: Any, *_: Any) -> Any:
    """Decide a condition on all entries: x = 0 holds for an x of length 0 alone."""
    if not is_entrywise_condition(a):
        return a
    entries = sorted(filter(is_entry, a.free_symbols), key=str)
    is_linear = isinstance(a, sp.Eq) and sp.Poly(a.lhs - a.rhs, *entries).is_linear
    if not is_linear:
        raise NotImplementedError("whether a condition holds for all entries")
    difference = sp.expand(a.lhs - a.rhs)
    vector = Vector({symbol.name: difference.coeff(symbol) for symbol in entries})
    named = ops.algebra.name_combination(vector)
    ops.algebra.facts.assume_nonzero_norms(*named.values(), *map(Norm, vector))
    return sp.false


@register(aten.any)
def any_(ops: Interpreter, a: Any, *_: Any) -> Any:
    if is_entrywise_condition(a):
        raise NotImplementedError("whether a condition holds for any entry")
    return a


def _extreme(relation: type[sp.Rel], ops: Interpreter, a: Any, b: Any) -> Any:
    """Return the greater or smaller of two numbers, or of each entry, which is a magnitude."""
    a, b = ops.to_linear(a, b)
    if isinstance(a, Vector) or isinstance(b, Vector):
        return ops.apply(
            AtomKind.MAGNITUDE, lambda x, y: sp.Piecewise((x, relation(x, y)), (y, True)), a, b
        )
    return ops.where(_compare(relation, ops, a, b), a, b)


register(aten.maximum)(partial(_extreme, sp.Ge))
register(aten.minimum)(partial(_extreme, sp.Le))


@register(aten.where)
def where(ops: Interpreter, condition: Any, a: Any, b: Any) -> Any:
    """Return one of two vectors, entry by entry or as a whole, or one of two scalars."""
    a, b, facts = to_exact(a), to_exact(b), ops.algebra.facts
    if is_entrywise_condition(condition):
        return ops.algebra.apply_to_entries(
            AtomKind.DIRECTION, lambda a, b: sp.Piecewise((a, condition), (b, True)), a, b
        )
    a, b = ops.to_linear(a, b)
    if not (isinstance(a, Vector) or isinstance(b, Vector)):
        return facts.where(condition, a, b)
    if condition in (sp.true, sp.false):
        return to_vector(a if condition == sp.true else b)
    indicator = facts.where(condition, sp.S.One, sp.S.Zero)
    return ops.add(ops.mul(a, indicator), ops.mul(b, 1 - indicator))


HELPERS = {"mark", "schedule", "count"}
"""Handlers of what is no operation of torch."""


def _handled_operations() -> set[str]:
    """Return the names of the rows of `HANDLERS`, whose keys are packets of aten."""
    row_of_packet = {
        overload.partition(".")[0]: row.name
        for row in OPERATIONS.values()
        if not isinstance(row.law, NotHere)
        for overload in row.overloads
    }
    return {row_of_packet.get(packet, packet) for packet in HANDLERS.keys() - HELPERS}


check_registered("law", _handled_operations())
