"""Operations of an algebra that follow from others, by the library's own rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy as sp

from spherenorm.operations import OPERATIONS
from spherenorm_theory.algebra._scalars import Scalars
from spherenorm_theory.algebra._symbols import exact

__all__ = ["Operations"]

RELATIONS = {"gt": sp.Gt, "lt": sp.Lt, "ge": sp.Ge, "le": sp.Le, "eq": sp.Eq, "ne": sp.Ne}


@dataclass
class Operations(Scalars):
    """An algebra has a method `aten_<name>` for each operation that it does in its own way.

    The others are derived from those, as `spherenorm.operations` says. The algebra has `aten_add`,
    `aten_mul`, `aten_div`, `aten_sqrt`, `aten_sum`, `aten_where` and `_compare` at least.

    Attributes:
        shape, entered: the shapes of the present operation's result and first argument.
    """

    shape: tuple[int, ...] = ()
    entered: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        operation = name.removeprefix("aten_")
        if operation != name and operation in RELATIONS:
            return functools.partial(self._compare, RELATIONS[operation])
        row = OPERATIONS.get(operation) if operation != name else None
        if row is None or row.derived is None:
            raise AttributeError(name)
        return functools.partial(row.derived, _Methods(self))

    def _compare(self, relation: type[sp.Rel], a: Any, b: Any) -> Any:
        """The relation between two values."""
        raise NotImplementedError

    def aten_addcdiv(self, a: Any, b: Any, c: Any, value: Any = sp.S.One) -> Any:
        # The factor stays outside, so that the ratio is the same atom with any factor.
        return self.aten_add(a, self.aten_div(b, c), value)

    def aten_clamp(self, a: Any, low: Any = None, high: Any = None) -> Any:
        clamp = OPERATIONS["clamp"].derived
        assert clamp is not None
        return clamp(_Methods(self), a, low, high)

    def aten_clamp_min(self, a: Any, low: Any) -> Any:
        return self.aten_clamp(a, low)

    def aten_clamp_max(self, a: Any, high: Any) -> Any:
        return self.aten_clamp(a, None, high)


@dataclass(frozen=True)
class _Methods:
    """The operations of an algebra under their own names, of exact numbers."""

    algebra: Operations

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.algebra, f"aten_{name}")
        return lambda *arguments: method(*map(_exact, arguments))


def _exact(argument: Any) -> Any:
    plain = isinstance(argument, (int, float)) and not isinstance(argument, bool)
    return exact(argument) if plain else argument
