"""The reading of a record: its operations on symbols instead of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spherenorm.operations import of_overload
from spherenorm.record import Call, Record, Value
from spherenorm_theory.algebra._lookup import Algebra, find_operation
from spherenorm_theory.algebra._symbols import exact
from spherenorm_theory.algebra._trace import TraceError

STORAGE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"}
"""Options that say how a tensor is stored, not what it holds."""
UNCHANGED = {"detach", "alias", "lift_fresh", "lift_fresh_copy"}
"""Operations of aten that give the entries they take, in every algebra."""


def interpret(record: Record, algebra: Algebra, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of `record` on `inputs`, by the operations of `algebra`; see `read_values`."""
    return outputs_of(record, read_values(record, algebra, inputs))


def outputs_of(record: Record, values: Mapping[Value, Any]) -> list[Any]:
    """The outputs of a record, of the values that `read_values` gives."""
    outputs = record.outputs if isinstance(record.outputs, (list, tuple)) else [record.outputs]
    return [values[out] for out in outputs]


def read_values(record: Record, algebra: Algebra, inputs: Sequence[Any]) -> dict[Value, Any]:
    """Each value of `record` that its outputs depend on, on `inputs`.

    Args:
        record: of a step.
        algebra: the meaning of its operations.
        inputs: a value for each input.

    Raises:
        TraceError: an operation that the algebra does not know, or cannot do on these values; with
            the line it came from.
    """
    values: dict[Value, Any] = dict(zip(record.inputs, inputs, strict=True))
    for value, constant in record.constants.items():
        if any(value in call.values() for call in record.needed):
            if constant.numel() != 1:
                raise TraceError(
                    f"the step holds a constant tensor of shape {tuple(constant.shape)}, which has "
                    "no symbol"
                )
            values[value] = exact(constant.item())
    for call in record.needed:
        values[call.result] = _done(call, algebra, values)
        if call.in_place:
            # The record has ordinary operations in place of these, but for some inside of torch's
            # own.
            values[call.arguments[0]] = values[call.result]
    return values


def _done(call: Call, algebra: Algebra, values: Mapping[Value, Any]) -> Any:
    """The result of one operation."""
    name = call.packet
    plain = name.removesuffix("_")
    row = of_overload(call.name)
    operation = find_operation(algebra, plain)
    if operation is None and row is not None:
        operation = find_operation(algebra, row.name)
    if plain in UNCHANGED:
        operation = _same
    if operation is None and plain == "copy":
        raise TraceError(
            "the code writes into the weight, the gradient or the state that it is given, where a "
            "rule returns new tensors; read `x.mul(a)` for `x.mul_(a)`"
        )
    if operation is None:
        raise TraceError(
            f"{call.name.rpartition('.')[0]} has no meaning on {type(algebra).__name__.lower()} "
            f"symbols yet; it came from {call.line}"
        )
    _refuse_rounding(call)
    _refuse_outer(call)
    try:
        arguments = [_value(values, a) for a in call.arguments]
        options = {k: _value(values, v) for k, v in call.options.items() if k not in STORAGE}
    except (OverflowError, ValueError) as error:
        raise TraceError(
            f"{call.name.rpartition('.')[0]} has a number that is not finite, which has no meaning "
            f"on symbols; it came from {call.line}"
        ) from error
    entered = [tuple(a.shape) for a in call.arguments if isinstance(a, Value)]
    try:
        algebra.entered = entered[0] if entered else ()
        algebra.shape = tuple(call.result.shape)
        return operation(*arguments, **options)
    except (TypeError, NotImplementedError, KeyError, AttributeError) as error:
        shown = ", ".join(map(str, [*arguments, *(f"{k}={v}" for k, v in options.items())]))
        raise TraceError(
            f"aten.{name}({shown}) has no meaning on symbols ({error}); it came from {call.line}"
        ) from error


def _refuse_rounding(call: Call) -> None:
    """Refuse an operation that rounds numbers, to integers or to fewer digits."""
    entered = [value.dtype for value in call.values()]
    given = call.result.dtype
    exactly = given in (torch.float64, torch.bool) or not any(t.is_floating_point for t in entered)
    casts = call.packet in ("_to_copy", "to") and given is torch.bool
    if torch.float64 in entered and (casts or not exactly) and not _asks_for_order(call):
        raise TraceError(
            f"{call.name.rpartition('.')[0]} rounds {torch.float64} to {given}, and a law is about "
            f"exact numbers; it came from {call.line}"
        )


def _asks_for_order(call: Call) -> bool:
    return call.packet.startswith("arg")


def _refuse_outer(call: Call) -> None:
    """Refuse to pair the entries of a vector with others than its own: w - w.T, w.expand(3, 5)."""
    lengths = [value.shape.numel() for value in call.values()]
    if lengths and call.result.shape.numel() > max(lengths) > 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in call.values())
        raise TraceError(
            f"{call.name.rpartition('.')[0]} of {shapes} gives {tuple(call.result.shape)}: the "
            f"entries of a unit are paired with other ones of it; it came from {call.line}"
        )


def _same(value: Any, *_: Any) -> Any:
    return value


def _value(values: Mapping[Value, Any], argument: Any) -> Any:
    if isinstance(argument, Value):
        return values[argument]
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return exact(argument)
    if isinstance(argument, (list, tuple)):
        return [_value(values, a) for a in argument]
    return argument
