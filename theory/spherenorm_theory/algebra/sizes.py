"""Numbers in a record that come from the size of the weight, found by records of two sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from spherenorm.record import Call, Record, Value
from spherenorm_theory.algebra.symbols import DIMENSION, exact

OPERANDS = {
    *("add", "sub", "rsub", "mul", "div", "pow", "clamp", "clamp_min", "clamp_max"),
    *(
        "maximum",
        "minimum",
        "full",
        "full_like",
        "new_full",
        "scalar_tensor",
        "addcmul",
        "addcdiv",
        "lerp",
    ),
    *("gt", "lt", "ge", "le", "eq", "ne", "where", "remainder", "fmod", "floor_divide"),
}
"""Operations whose plain numbers are values; elsewhere a number is an index or a length."""

POWERS = [sp.Rational(p, 2) for p in (2, 1, -1, -2, 4, -4)]


class SizeError(ValueError):
    """The code does other operations, or has other numbers, at another size of the weight."""


def with_sizes(records: Sequence[Record], sizes: Sequence[int]) -> Record:
    """The first record, with c d^p for each number that follows the size d of the weight.

    Args:
        records: of one step, for weights of different sizes.
        sizes: the numbers of entries of the weights.

    Raises:
        SizeError: the records differ in an operation, or in a number that is no c d^p.
    """
    needed = [record.needed for record in records]
    for calls in zip(*needed, strict=False):
        if len({call.name for call in calls}) > 1:
            _refuse_paths(calls[0], sizes)
    if len({*map(len, needed)}) > 1:
        _refuse_paths(needed[0][-1], sizes)
    replaced = {
        id(calls[0]): replace(
            calls[0],
            arguments=tuple(
                _general(calls[0], entries, sizes)
                for entries in zip(*(call.arguments for call in calls), strict=True)
            ),
            options={
                name: _general(calls[0], [call.options[name] for call in calls], sizes)
                for name in calls[0].options
            },
        )
        for calls in zip(*needed, strict=True)
        if calls[0].packet.removesuffix("_") in OPERANDS
    }
    _refuse_constants(records, sizes)
    first = records[0]
    return replace(first, calls=tuple(replaced.get(id(call), call) for call in first.calls))


def refuse_chance(record: Record, again: Record) -> None:
    """Refuse code whose plain numbers differ between two calls on one weight.

    Raises:
        SizeError: a number of the first record is another one in the second.
    """
    for call, other in zip(record.needed, again.needed, strict=False):
        pairs = zip(call.arguments, other.arguments, strict=False)
        if any(isinstance(a, float) and isinstance(b, float) and a != b for a, b in pairs):
            raise SizeError(
                "the code draws a random number, and a law is about a step that inputs alone "
                f"decide; it is in {call.line}"
            )


def _general(call: Call, entries: Sequence[Any], sizes: Sequence[int]) -> Any:
    """An argument that holds for every size."""
    first = entries[0]
    plain = isinstance(first, (int, float)) and not isinstance(first, bool)
    if not plain or all(entry == first for entry in entries):
        return first
    for power in POWERS:
        factors = [entry / float(size**power) for entry, size in zip(entries, sizes, strict=True)]
        if all(math.isclose(factor, factors[0], rel_tol=1e-13) for factor in factors):
            return exact(factors[0]) * DIMENSION**power
    shown = ", ".join(f"{e:g} for {n} entries" for e, n in zip(entries, sizes, strict=True))
    raise SizeError(f"a number depends on the shape of the weight ({shown}); it is in {call.line}")


def _refuse_paths(call: Call, sizes: Sequence[int]) -> None:
    shown = " and ".join(map(str, sizes))
    raise SizeError(
        f"the code does other operations for weights of {shown} entries, from {call.line} on"
    )


def _refuse_constants(records: Sequence[Record], sizes: Sequence[int]) -> None:
    """Refuse constant tensors of one number that differ."""
    asked = [_constants(record) for record in records]
    for constants in zip(*asked, strict=False):
        values = {float(c.item()) for c, _ in constants if c.numel() == 1}
        if len(values) > 1:
            shown = ", ".join(f"{v:g}" for v in sorted(values))
            raise SizeError(
                f"a constant tensor depends on the shape of the weight ({shown} for "
                f"{', '.join(map(str, sizes))} entries); it is in {constants[0][1].line}"
            )


def _constants(record: Record) -> list[tuple[Any, Call]]:
    """The constant tensors in the order of their use, each with the call that uses it."""
    uses: dict[Value, Call] = {}
    for call in record.needed:
        for value in call.values():
            if value in record.constants:
                uses.setdefault(value, call)
    return [(record.constants[value], call) for value, call in uses.items()]
