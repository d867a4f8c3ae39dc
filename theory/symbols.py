"""A free inner-product space: formal vectors, and the table of their inner products.

A `Vector` is a linear combination of atoms (w, g, m, ...) with sympy coefficients; nothing is known about an atom but
its inner products with the others, the *Gram entries*. What is derived here therefore holds in every dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import sympy as sp

from theory.text import show

__all__ = ["Space", "Vector", "exact", "tidy", "upright"]


def exact(number: float) -> sp.Expr:
    """The exact number that a float stands for: 0.1 is 1/10, math.pi is pi, math.sqrt(5) is sqrt(5).

    What Python computed before, such as 1 - 0.9 = 0.09999999999999998, carries a rounding error that cannot be undone for
    certain. A fraction of denominator up to 10^6, which a decimal of up to six places is, stands in for it where it agrees to
    1e-15 and to nine digits: 1/10 here. Anything else is its shortest decimal.
    """
    if isinstance(number, int):
        return sp.Integer(number)
    for candidate in (sp.pi, sp.sqrt(round(number**2)) if 0 < number < 1e6 else sp.Integer(0)):
        if float(candidate) == number:
            return candidate
    simple = Fraction(number).limit_denominator(10**6)
    if abs(simple - Fraction(number)) <= min(1e-15 * max(1.0, abs(number)), 1e-9 * abs(number)):
        return sp.Rational(simple.numerator, simple.denominator)
    return sp.Rational(str(number))


def tidy(expression: sp.Expr) -> sp.Expr:
    """A canonical form of a rational function of symbols, roots, sines and cosines: 0 is recognized as 0.

    Sines and cosines of one angle are polynomials modulo sin^2 + cos^2 = 1, those of half an angle are rewritten.
    """
    halves = {
        f: (1 - sp.cos(2 * f.args[0])) / 2
        for f in expression.atoms(sp.sin)
        if (2 * f.args[0]).is_Symbol
    }
    for sine, square in halves.items():
        expression = sp.expand(expression).subs(sine**2, square)
    functions = sorted(expression.atoms(sp.sin, sp.cos), key=str)
    if not functions:
        return sp.factor_terms(sp.cancel(expression))
    plain = {f: sp.Dummy() for f in functions}
    numerator, denominator = sp.fraction(sp.cancel(expression.subs(plain)))
    for angle in {f.args[0] for f in functions}:
        sine, cosine = plain.get(sp.sin(angle)), plain.get(sp.cos(angle))
        if sine is not None and cosine is not None:
            numerator = sp.rem(numerator, sine**2 + cosine**2 - 1, sine)
            denominator = sp.rem(denominator, sine**2 + cosine**2 - 1, sine)
    return sp.factor_terms(sp.cancel(numerator / denominator)).subs(
        {dummy: f for f, dummy in plain.items()}
    )


def upright(expression: sp.Expr) -> sp.Expr:
    """`expression` in factors, each with a positive constant term: (1 - beta), not (beta - 1)."""
    sign, factors = sp.Integer(1), []
    for factor in sp.Mul.make_args(sp.factor(expression)):
        base, power = factor.as_base_exp()
        constant = base.as_coeff_Add()[0] if base.is_Add else sp.Integer(1)
        if (
            base.is_Add
            and power.is_integer
            and (constant < 0 or (constant == 0 and base.could_extract_minus_sign()))
        ):
            base, sign = sp.Add(*(-term for term in base.args)), sign * (-1) ** power
        factors.append(base**power)
    return sign * sp.Mul(*factors)


@dataclass(frozen=True)
class Vector:
    """A linear combination of atoms, `{atom: coefficient}`; atoms with coefficient 0 are left out."""

    terms: Mapping[str, sp.Expr] = field(default_factory=dict)

    @staticmethod
    def atom(name: str) -> Vector:
        return Vector({name: sp.Integer(1)})

    def __add__(self, other: Vector) -> Vector:
        sums = {
            a: self[a] + other[a]
            for a in (*self.terms, *(b for b in other.terms if b not in self.terms))
        }
        return Vector({a: c for a, c in sums.items() if c != 0})

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

    def __str__(self) -> str:
        return show(
            sp.Add(*(upright(c) * (1 if a == "1" else sp.Symbol(a)) for a, c in self.terms.items()))
        )


@dataclass
class Space:
    """The Gram table: `known` entries are given (<w, g> = 0), all others are symbols.

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
