"""Formulas in one line of text: `show` prints 1 - lr*weight_decay."""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.printing.str import StrPrinter

__all__ = ["PlusFirst", "show"]


DIGITS = 15
"""Of a number in print; a fraction that has more is printed as a decimal."""


class PlusFirst:
    """Prints the positive terms of a sum first: 1 - x, not -x + 1; and long fractions in short."""

    def doprint(self, expression: Any) -> str:
        if isinstance(expression, sp.Basic):
            numbers = expression.atoms(sp.Rational)
            long = {x for x in numbers if max(abs(x.p), x.q) >= 10**DIGITS}
            expression = expression.xreplace({x: sp.Float(x, DIGITS) for x in long})
        return str(super().doprint(expression))  # type: ignore[misc]

    def _as_ordered_terms(self, expression: sp.Expr, order: str | None = None) -> list[sp.Expr]:
        terms = super()._as_ordered_terms(expression, order)  # type: ignore[misc]
        return sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))


class _Text(PlusFirst, StrPrinter):  # type: ignore[misc]
    def _print_Relational(self, relation: sp.Rel) -> str:  # noqa: N802
        sign = "=" if isinstance(relation, sp.Eq) else relation.rel_op
        return f"{self._print(relation.lhs)} {sign} {self._print(relation.rhs)}"

    def _print_Pow(self, power: sp.Pow, rational: bool = False) -> str:  # noqa: N802
        return str(super()._print_Pow(power, rational)).replace("**", "^")


def show(expression: sp.Basic) -> str:
    """A formula in one line of text."""
    return str(_Text().doprint(expression))
