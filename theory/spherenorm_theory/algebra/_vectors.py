"""A free inner-product space: formal vectors, and the table of their inner products.

A `Vector` is a linear combination of atoms (w, g, m, ...) with sympy coefficients. Nothing is known
of an atom but its inner products with the others, the *Gram entries*, which a `Space` holds. A
result that is derived from them therefore holds in every dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sympy as sp

from spherenorm_theory.algebra._symbols import normalize_signs
from spherenorm_theory.algebra._text import show


@dataclass(frozen=True)
class Vector:
    """A linear combination of atoms, `{atom: coefficient}`; coefficients of 0 are left out."""

    terms: Mapping[str, sp.Expr] = field(default_factory=dict)

    @staticmethod
    def atom(name: str) -> Vector:
        """The atom of this name, with coefficient 1."""
        return Vector({name: sp.Integer(1)})

    def __add__(self, other: Vector) -> Vector:
        atoms = (*self.terms, *(atom for atom in other.terms if atom not in self.terms))
        sums = {atom: self[atom] + other[atom] for atom in atoms}
        return Vector({atom: total for atom, total in sums.items() if total != 0})

    def __mul__(self, scalar: sp.Expr) -> Vector:
        return Vector({a: c * scalar for a, c in self.terms.items()} if scalar != 0 else {})

    def __rmul__(self, scalar: sp.Expr) -> Vector:
        return self.__mul__(scalar)

    def __sub__(self, other: Vector) -> Vector:
        return self + other.__mul__(sp.Integer(-1))

    def __getitem__(self, atom: str) -> sp.Expr:
        return self.terms.get(atom, sp.Integer(0))

    def map(self, function: Callable[[sp.Expr], sp.Expr]) -> Vector:
        """The vector with `function` applied to every coefficient."""
        mapped = {a: function(c) for a, c in self.terms.items()}
        return Vector({a: c for a, c in mapped.items() if c != 0})

    def without(self, atom: str) -> Vector:
        """The vector without its share of one atom."""
        return Vector({a: c for a, c in self.terms.items() if a != atom})

    @property
    def formula(self) -> sp.Expr:
        """The vector in symbols, so that an equation of vectors is one of numbers."""
        return sp.Add(*(c * (1 if a == "1" else sp.Symbol(a)) for a, c in self.terms.items()))

    def __str__(self) -> str:
        return show(self.map(normalize_signs).formula)


@dataclass
class Space:
    """The Gram table: the `known` entries are given (<w, g> = 0), all others are symbols.

    Args:
        known: inner products of pairs of atoms, keyed by the pair in either order.
    """

    known: dict[tuple[str, str], sp.Expr] = field(default_factory=dict)

    def gram(self, a: str, b: str) -> sp.Expr:
        """<a, b>: a real symbol, positive for a = b."""
        for pair in ((a, b), (b, a)):
            if pair in self.known:
                return self.known[pair]
        if a == b:
            return sp.Symbol(f"|{a}|^2", positive=True)
        # The weight comes first, then the order of the alphabet: <w, m> and <m, w> are one symbol.
        first, second = sorted((a, b), key=lambda name: (name != "w", name))
        return sp.Symbol(f"<{first},{second}>", real=True)

    def inner(self, a: Vector, b: Vector) -> sp.Expr:
        """<a, b> by bilinearity."""
        return sp.Add(
            *(ca * cb * self.gram(i, j) for i, ca in a.terms.items() for j, cb in b.terms.items())
        )
