"""Formal results in numbers: each vector an array, each inner product the one of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import Rule
from spherenorm_theory.algebra.formal import Entries, Formal, Product
from spherenorm_theory.algebra.operations import COMPARE
from spherenorm_theory.algebra.symbols import DIMENSION, Inner, Norm, Vector

Array = np.ndarray[Any, Any]


@dataclass
class Values:
    """Numbers for what a step on formal vectors takes, and from them for all that it makes.

    Many units are evaluated at once: a vector is then a matrix with one unit per row, a scalar an
    array with one number per unit.

    Args:
        algebra: of the step.
        vectors: an array for each atom that is an input, as w, g, m, of shape (..., entries).
        numbers: of each scalar input by its name, of shape () or (...).
        apply: the direction that a letter's rule gives, of its place and its arguments.

    Example:
        >>> one = Values(Formal(), {"w": np.array([3.0, 4.0])}, {"lr": 0.1})
        >>> one.scalar(Norm("w") ** 2 * sp.Symbol("lr")).item()
        2.5
    """

    algebra: Formal
    vectors: dict[str, Array]
    numbers: Mapping[str, Any]
    apply: Callable[..., Array] | None = None
    _known: dict[sp.Symbol, Array] = field(default_factory=dict)

    def knowing(self, known: Mapping[sp.Symbol, Any]) -> Values:
        """The same numbers, but for some norms and products."""
        return replace(self, _known={s: np.asarray(x, dtype=float) for s, x in known.items()})

    def entries(self, x: Any) -> Any:
        """Any value of the formal algebra, so that it broadcasts against the entries of vectors."""
        if isinstance(x, Vector):
            return self.vector(x)
        if isinstance(x, Product):
            return self.vector(x.a) * self.vector(x.b)
        if isinstance(x, Entries):
            return x.function(*map(self.entries, x.arguments))
        return self.scalar(x)[..., None] if isinstance(x, sp.Basic) else x

    def scalar(self, expression: sp.Basic) -> Array:
        """A formula in numbers; nan where it has no value, as 1 / 0."""
        symbols, function = _compiled(sp.sympify(expression))
        arguments = np.broadcast_arrays(*map(self._symbol, symbols)) if symbols else ()
        with np.errstate(all="ignore"):
            value = np.asarray(function(*arguments))
        return np.where(np.isfinite(value), value, np.nan) if value.dtype.kind in "fi" else value

    def vector(self, x: Vector) -> Array:
        """A combination of atoms as an array."""
        zero = np.zeros_like(self.vectors["w"])
        return sum((self.scalar(c)[..., None] * self._atom(a) for a, c in x.items()), zero)

    def holds(self, relation: sp.Rel) -> Array:
        """Tell if a relation holds, for each unit."""
        sides = self.scalar(relation.lhs), self.scalar(relation.rhs)
        return np.asarray(COMPARE[relation.func](*sides))

    def _atom(self, name: str) -> Array:
        if name not in self.vectors:
            self.vectors[name] = self._make(name)
        return self.vectors[name]

    def _make(self, name: str) -> Array:
        if name == "1":
            return np.ones_like(self.vectors["w"])
        if name in self.algebra.named:
            return self.vector(self.algebra.named[name])
        if name not in self.algebra.opaque:
            raise ValueError(f"the law needs the vector {name}, which the units do not have")
        made = self.algebra.opaque[name]
        if self.apply is not None and isinstance(made.function, Rule):
            return self.apply(made, *map(self.entries, made.arguments))
        with np.errstate(all="ignore"):
            value = made.function(*map(self.entries, made.arguments))
        return np.broadcast_to(np.asarray(value, dtype=float), self.vectors["w"].shape)

    def _symbol(self, symbol: sp.Symbol) -> Array:
        if symbol not in self._known:
            self._known[symbol] = np.asarray(self._find(symbol), dtype=float)
        return self._known[symbol]

    def _find(self, symbol: sp.Symbol) -> Any:
        if isinstance(symbol, Norm):
            return np.linalg.norm(self._atom(symbol.a), axis=-1)
        if isinstance(symbol, Inner):
            return (self._atom(symbol.a) * self._atom(symbol.b)).sum(-1)
        if symbol in self.algebra.facts.cases:
            return self.scalar(self.algebra.facts.cases[symbol])
        if symbol == DIMENSION:
            return self.vectors["w"].shape[-1]
        if symbol.name not in self.numbers:
            raise ValueError(f"the law needs the number {symbol.name}, which the units do not have")
        return self.numbers[symbol.name]


@lru_cache(maxsize=4096)
def _compiled(expression: sp.Basic) -> tuple[tuple[sp.Symbol, ...], Callable[..., Any]]:
    """The symbols of a formula, and the function of their values."""
    symbols = tuple(sorted(expression.free_symbols, key=str))
    plain = {s: sp.Dummy() for s in symbols}
    formula = expression.xreplace({**plain, sp.zoo: sp.nan})
    return symbols, sp.lambdify([*plain.values()], formula, "numpy", cse=True)
