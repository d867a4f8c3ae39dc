"""The operations of an algebra: its own, and those that the library's rows derive from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import sympy as sp

from spherenorm.operations import OPERATIONS
from spherenorm_theory.algebra._assumptions import Assumptions
from spherenorm_theory.algebra._symbols import exact

RELATIONS = {"gt": sp.Gt, "lt": sp.Lt, "ge": sp.Ge, "le": sp.Le, "eq": sp.Eq, "ne": sp.Ne}
COMPARE = {relation: getattr(operator, name) for name, relation in RELATIONS.items()}
"""Each relation of sympy as a function of numbers."""


class Algebra(Protocol):
    """The meaning of recorded operations on values of one kind.

    Attributes:
        facts: the assumptions on scalars.
        shape, entered: the shapes of the present operation's result and first argument.
        operations: functions of the algebra and of values, by the names of aten; "compare" takes a
            relation too. Add, mul, div, sqrt, sum, where and compare are there at least.
    """

    facts: Assumptions
    shape: tuple[int, ...]
    entered: tuple[int, ...]

    @property
    def operations(self) -> Mapping[str, Callable[..., Any]]:
        """The functions."""


def find_operation(algebra: Algebra, name: str) -> Callable[..., Any] | None:
    """The operation of an algebra, if it has one of this name or can derive it."""
    if name in algebra.operations:
        return partial(algebra.operations[name], algebra)
    if name in RELATIONS:
        return partial(algebra.operations["compare"], algebra, RELATIONS[name])
    row = OPERATIONS.get(name)
    return None if row is None or row.derived is None else derived(name, algebra)


def derived(name: str, algebra: Algebra) -> Callable[..., Any]:
    """The operation as the library's row derives it from others."""
    function = OPERATIONS[name].derived
    assert function is not None
    return partial(function, _Operations(algebra))


@dataclass(frozen=True)
class _Operations:
    """The operations of an algebra as methods, of exact numbers."""

    algebra: Algebra

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = find_operation(self.algebra, name)
        if operation is None:
            raise AttributeError(f"aten_{name}")
        return lambda *arguments: operation(*map(_exact, arguments))


def _exact(argument: Any) -> Any:
    plain = isinstance(argument, (int, float)) and not isinstance(argument, bool)
    return exact(argument) if plain else argument
