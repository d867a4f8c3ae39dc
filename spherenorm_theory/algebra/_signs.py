"""Signs of scalars: squared norms, magnitudes, and what follows from the domains of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

import sympy as sp

from spherenorm import Interval
from spherenorm_theory.algebra._naming import Naming

__all__ = ["Signs"]


HALF = sp.Rational(1, 2)

LONG = 300
"""Nodes of an inner product beyond which it has a name. Those of the library have 240 at most."""


@dataclass
class Signs(Naming):
    """The known signs of scalars.

    A squared norm is taken as positive where a comparison asks: the step is generic.

    Attributes:
        domains: the numbers that a hyper-parameter may be, by its symbol.
        scalars: the symbols of the states that are one number.
    """

    domains: Mapping[sp.Symbol, Interval] = field(default_factory=dict)
    scalars: frozenset[sp.Symbol] = frozenset()
    _squares: set[sp.Expr] = field(default_factory=set)
    _nonnegative: set[sp.Expr] = field(default_factory=set)

    def square(self, expression: sp.Expr) -> sp.Expr:
        """Remember that the expression is a squared norm, 0 only by chance, and return it."""
        self._squares.add(expression)
        return expression

    def magnitude(self, expression: sp.Expr) -> sp.Expr:
        """Remember that the expression is at least 0, and return it."""
        self._nonnegative.add(expression)
        return expression

    def signed(self, expression: sp.Expr, *parts: sp.Expr) -> sp.Expr:
        """A product, power or sum of nonnegative parts, remembered as such."""
        return (self.square if all(map(self.is_positive, parts)) else self.magnitude)(expression)

    def is_positive(self, expression: sp.Expr) -> bool:
        """Tell if the expression is above 0, or a squared norm."""
        if expression.is_positive or expression in self._squares:
            return True
        return expression.is_positive is None and self._has_positive_terms(expression)

    def is_nonnegative(self, *expressions: sp.Expr) -> bool:
        """Tell if all of the expressions are known to be at least 0."""
        return all(
            bool(e.is_nonnegative) or e in self._nonnegative or self.is_positive(e)
            for e in expressions
        )

    def _has_positive_terms(self, expression: sp.Expr) -> bool:
        """Tell if a rational function has positive terms alone, where momenta are 1 / (1 + x)."""
        momenta = {s for s in expression.free_symbols if _ends_at_one(self.domains.get(s))}
        if not momenta or not expression.is_rational_function():
            return False
        inside = {s: 1 / (1 + sp.Dummy(positive=True)) for s in momenta}
        parts = sp.fraction(sp.cancel(sp.together(expression.subs(inside))))
        terms = [term for part in parts for term in sp.Add.make_args(sp.expand(part))]
        return all(bool(term.is_positive) for term in terms)

    def root(self, x: sp.Expr) -> sp.Expr:
        """The square root of x, by name unless x is a product of powers of symbols."""
        bases = (factor.as_base_exp()[0] for factor in sp.Mul.make_args(x))
        if all(base.is_Symbol or base.is_number for base in bases):
            return sp.sqrt(x)
        facts = {"positive": True} if self.is_positive(x) else {"nonnegative": True}
        return self.name("r", sp.sqrt(x), **facts)

    def shorten(self, x: sp.Expr) -> sp.Expr:
        """`x` without the squares of named roots, where that is a number; a name for a long `x`.

        A formula that is fed into the next one, as by the steps of an iteration, stays short so.
        """
        roots = {n**2: m**2 for n, m in self.definitions.items() if m.is_Pow and m.exp == HALF}
        if x.has(*(power.base for power in roots)) and _seems_constant(plain := x.subs(roots)):
            x = sp.cancel(plain)
        if sum(1 for _ in islice(sp.preorder_traversal(x), LONG + 1)) <= LONG:
            return x
        return self.name("q", x, **({"positive": True} if x in self._squares else {"real": True}))

    def angle(self, x: sp.Expr) -> sp.Expr:
        """A name for the angle x, or a multiple of one."""
        factor, rest = x.as_coeff_Mul()
        facts = {"positive": True} if self.is_positive(rest) else {"real": True}
        return factor * (rest if rest.is_Symbol else self.name("theta", rest, **facts))


def _seems_constant(x: sp.Expr) -> bool:
    """Tell if a formula has one value at two points; most have not, and this is seen quickly."""
    at = ({s: sp.Float(n + 0.1 * i) for i, s in enumerate(x.free_symbols)} for n in (0.3, 0.7))
    first, second = (complex(x.subs(values).evalf()) for values in at)
    return abs(first - second) <= 1e-9 * abs(first)


def _ends_at_one(interval: Interval | None) -> bool:
    return interval is not None and (interval.low, interval.high) == (0, 1)
