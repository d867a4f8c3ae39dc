"""Formulas as text and as LaTeX, in the paper's letters."""

from __future__ import annotations

import re

import sympy as sp
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

__all__ = ["latex", "show"]

LETTERS = {
    "lr": r"\eta", "momentum": r"\beta", "beta": r"\beta", "beta1": r"\beta_1", "beta2": r"\beta_2", "weight_decay": r"\lambda",
    "delta": r"\delta", "eps": r"\varepsilon", "dampening": r"\tau", "wd_ratio": r"\rho", "alpha": r"\alpha", "nu": r"\nu",
}  # fmt: skip
"""The paper's letters for the hyper-parameters' names."""


class _PlusFirst:
    """Prints sums with their positive terms first: 1 - x, not -x + 1."""

    def _as_ordered_terms(self, expression: sp.Expr, order: str | None = None) -> list[sp.Expr]:
        terms = super()._as_ordered_terms(expression, order)  # type: ignore[misc]
        return sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))


class _Text(_PlusFirst, StrPrinter):  # type: ignore[misc]
    def _print_Pow(self, power: sp.Pow, rational: bool = False) -> str:  # noqa: N802
        return str(super()._print_Pow(power, rational)).replace("**", "^")


class _Latex(_PlusFirst, LatexPrinter):  # type: ignore[misc]
    pass


def show(expression: sp.Basic) -> str:
    """A formula in one line of text."""
    return str(_Text().doprint(expression))


def latex(expression: sp.Basic) -> str:
    """LaTeX of a formula: |w|^2 as a norm, <w,m> as an inner product, hyper-parameters by the paper's letters."""
    names = {s: _symbol(s.name) for s in expression.free_symbols if isinstance(s, sp.Symbol)}
    return str(_Latex({"symbol_names": names}).doprint(expression))


def _symbol(name: str) -> str:
    if norm := re.fullmatch(r"\|(.+)\|\^2", name):
        return rf"\|{_vector(norm[1])}\|^2"
    if product := re.fullmatch(r"<(.+),(.+)>", name):
        return rf"\langle {_vector(product[1])}, {_vector(product[2])}\rangle"
    return LETTERS.get(name, name.replace("_", r"\_"))


def _vector(name: str) -> str:
    plain = name.rstrip("'")
    return (plain if len(plain) == 1 else rf"\mathrm{{{plain}}}".replace("_", r"\_")) + name[
        len(plain) :
    ]
