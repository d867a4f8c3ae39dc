"""Formal results in numbers: each vector an array, each inner product the one of the arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
from sympy.codegen.cfunctions import log1p

from spherenorm_theory.algebra._formal import DIMENSION, Entries, Formal, Product
from spherenorm_theory.algebra._lookup import COMPARE
from spherenorm_theory.algebra._vectors import Vector

Array = np.ndarray[Any, Any]

ROUNDING = 1e-13
"""A sum that is smaller than this share of its terms is 0 up to rounding."""
TINY = 1e-150
"""Positive, with a square that is a normal number."""


@dataclass
class NumericEvaluator:
    """Values for what a step on formal vectors takes, and from them for all that it makes.

    A name stands for its definition, and an atom of an entrywise operation for the operation on the
    entries. Many units are evaluated at once: a vector is then a matrix with one unit per row, a
    scalar an array with one number per unit.

    Args:
        algebra: of the step.
        vectors: an array for each atom that is an input, as w, g, m, of shape (..., entries).
        values: numbers for each scalar input by its name, of shape () or (...).

    Example:
        >>> one = NumericEvaluator(Formal(), {"w": np.array([3.0, 4.0])}, {"lr": 0.1})
        >>> one.scalar(sp.Symbol("|w|^2") * sp.Symbol("lr")).item()
        2.5
    """

    algebra: Formal
    vectors: dict[str, Array]
    values: dict[str, Any]
    _known: dict[str, Array] = field(default_factory=dict)

    def of(self, x: Any) -> Any:
        """Any value of the formal algebra: entries, numbers or truth values."""
        return self.scalar(x) if isinstance(x, sp.Basic) else self.entries(x)

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
        names, function = _compiled(expression)
        arguments = np.broadcast_arrays(*map(self._symbol, names)) if names else ()
        with np.errstate(all="ignore"):
            value = np.asarray(function(*arguments))
        return np.where(np.isfinite(value), value, np.nan) if value.dtype.kind in "fi" else value

    def vector(self, x: Vector) -> Array:
        """A combination of atoms as an array."""
        zero = np.zeros_like(self.vectors["w"])
        shares = (self.scalar(c)[..., None] * self._atom(atom) for atom, c in x.terms.items())
        return sum(shares, zero)

    def holds(self, relation: type[sp.Basic], a: sp.Expr, b: sp.Expr) -> Array:
        """Tell if a relation between two formulas holds, for each unit."""
        return np.asarray(COMPARE[relation](self.scalar(a), self.scalar(b)))

    def _atom(self, name: str) -> Array:
        if name not in self.vectors:
            self.vectors[name] = self._make(name)
        return self.vectors[name]

    def _make(self, name: str) -> Array:
        if name == "1":
            return np.ones_like(self.vectors["w"])
        if name in self.algebra.composites:
            return self.vector(self.algebra.composites[name])
        _, function, arguments = self.algebra.opaque[name]
        with np.errstate(all="ignore"):
            made = function(*map(self.entries, arguments))
        return np.broadcast_to(np.asarray(made, dtype=float), self.vectors["w"].shape)

    def _symbol(self, name: str) -> Array:
        if name not in self._known:
            known = self.values[name] if name in self.values else self._find(name)
            self._known[name] = np.asarray(known, dtype=float)
        return self._known[name]

    def _find(self, name: str) -> Any:
        for symbol, meaning in self.algebra.facts.definitions.items():
            if symbol.name == name:
                return self._positive(meaning) if symbol.is_positive else self.scalar(meaning)
        if name == DIMENSION.name:
            return self.vectors["w"].shape[-1]
        pair = re.fullmatch(r"\|(.+)\|\^2", name)
        a, b = (pair[1], pair[1]) if pair else _pair(name)
        return (self._atom(a) * self._atom(b)).sum(-1)

    def _positive(self, meaning: sp.Expr) -> Array:
        """Numbers that are positive; below rounding, where their terms cancel to 0 or less."""
        value = self.scalar(meaning)
        if np.all(value > 0):
            return value
        terms = [self.scalar(term) for term in sp.Add.make_args(meaning)]
        cancels = np.abs(sum(terms)) <= ROUNDING * sum(map(np.abs, terms))
        return np.where((value <= 0) & cancels, TINY, value)


def _pair(name: str) -> tuple[str, str]:
    match = re.fullmatch(r"<([^,]+),([^,]+)>", name)
    if match is None:
        raise KeyError(f"{name} has no value")
    return match[1], match[2]


def _is_log1p(x: sp.Basic) -> bool:
    """True of log(1 + u), whose digits the sum loses where u is small."""
    return isinstance(x, sp.log) and x.args[0].is_Add and 1 in x.args[0].args


@lru_cache(maxsize=4096)
def _compiled(expression: sp.Basic) -> tuple[tuple[str, ...], Callable[..., Any]]:
    """The names in a formula, and the function of their values."""
    by_name = {s: s.name for s in sorted(expression.free_symbols, key=lambda s: str(s.name))}
    plain = {s: sp.Dummy() for s in by_name}
    formula = expression.xreplace({**plain, sp.zoo: sp.nan})
    formula = formula.replace(_is_log1p, lambda x: log1p(x.args[0] - 1))
    function = sp.lambdify([*plain.values()], formula, "numpy", cse=True)
    return tuple(by_name.values()), function
