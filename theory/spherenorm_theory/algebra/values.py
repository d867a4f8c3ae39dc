"""Formal results in numbers: each vector an array, each inner product the one of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.algebra.formal import Formal, Made
from spherenorm_theory.algebra.symbols import DIMENSION, Inner, Norm, Vector, is_entry

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
        apply: the direction that the rule of a letter gives of its argument.

    Example:
        >>> one = Values(Formal(), {"w": np.array([3.0, 4.0])}, {"lr": 0.1})
        >>> one.scalar(Norm("w") ** 2 * sp.Symbol("lr", positive=True)).item()
        2.5
    """

    algebra: Formal
    vectors: dict[str, Array]
    numbers: Mapping[str, Any]
    apply: Callable[[Made, Array], Array] | None = None
    _known: dict[sp.Symbol, Array] = field(default_factory=dict)

    def knowing(self, known: Mapping[sp.Symbol, Any]) -> Values:
        """The same numbers, but for some norms and products."""
        return replace(self, _known={s: np.asarray(x, dtype=float) for s, x in known.items()})

    def scalar(self, expression: sp.Basic) -> Array:
        """A formula or a relation in numbers; nan where it has no value, as 1 / 0."""
        symbols, function = _compiled(sp.sympify(expression))
        arrays = [self._symbol(symbol) for symbol in symbols]
        if len({array.shape for array in arrays}) > 1:
            arrays = [*np.broadcast_arrays(*arrays)]
        value = np.asarray(function(*arrays))
        return np.where(np.isfinite(value), value, np.nan) if value.dtype.kind in "fi" else value

    def vector(self, x: Vector) -> Array:
        """A combination of atoms as an array."""
        zero = np.zeros_like(self.vectors["w"])
        return sum((self.scalar(c)[..., None] * self._atom(a) for a, c in x.items()), zero)

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
        if self.apply is not None and made.rule is not None and made.argument is not None:
            return self.apply(made, self.vector(made.argument))
        symbols, function = _compiled(made.formula)
        shape = self.vectors["w"].shape
        arrays = (
            self._atom(s.name) if is_entry(s) else self._symbol(s)[..., None] for s in symbols
        )
        return np.array(np.broadcast_to(function(*arrays), shape), dtype=float)

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
    function = sp.lambdify([*plain.values()], formula, "numpy", cse=True)

    def quiet(*arguments: Array) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return symbols, quiet
