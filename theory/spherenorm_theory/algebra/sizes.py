"""Numbers in a record that come from the size of the weight, found by records of two sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from spherenorm.record import Call, Record
from spherenorm_theory.algebra.symbols import DIMENSION, exact

OPERANDS = {
    *("add", "sub", "rsub", "mul", "div", "pow", "clamp", "clamp_min", "clamp_max", "maximum"),
    *("minimum", "full", "full_like", "new_full", "scalar_tensor", "addcmul", "addcdiv", "lerp"),
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
    first, replaced = records[0], dict[int, Call]()
    names = [[call.name for call in record.needed] for record in records]
    if any(each != names[0] for each in names):
        pairs = zip(first.needed, *names, strict=False)
        other = next((call for call, *each in pairs if len({*each}) > 1), first.needed[-1])
        raise SizeError(
            f"the code does other operations for weights of {' and '.join(map(str, sizes))} "
            f"entries, from {other.line} on"
        )
    for calls in zip(*(record.needed for record in records), strict=True):
        call = calls[0]
        if call.packet.removesuffix("_") in OPERANDS:
            entries = zip(*(each.arguments for each in calls), strict=True)
            replaced[id(call)] = replace(
                call,
                arguments=tuple(_general(call, each, sizes) for each in entries),
                options={
                    n: _general(call, [each.options[n] for each in calls], sizes)
                    for n in call.options
                },
            )
    return replace(first, calls=tuple(replaced.get(id(call), call) for call in first.calls))


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
