r"""Formulas in text and in LaTeX: `show` prints 1 - lr*weight_decay, `latex` 1 - \eta \lambda."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import sympy as sp
from sympy.core.alphabets import greeks
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

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


Letters = Mapping[str, str]
"""LaTeX by name: of hyper-parameters (lr), vectors (w, g, m) and other symbols."""

LETTERS: Letters = {
    "lr": r"\eta",
    "momentum": r"\beta",
    "beta": r"\beta",
    "beta1": r"\beta_1",
    "beta2": r"\beta_2",
    "weight_decay": r"\lambda",
    "delta": r"\delta",
    "eps": r"\varepsilon",
    "dampening": r"\tau",
    "wd_ratio": r"\rho",
    "alpha": r"\alpha",
    "nu": r"\nu",
}
"""The paper's letters for the names of the hyper-parameters."""

NORM = re.compile(r"\|(.+)\|(\^[24])?")
PRODUCT = re.compile(r"<(.+),(.+)>")


def latex(expression: sp.Basic, letters: Letters | None = None) -> str:
    r"""A formula in LaTeX.

    |w|^2 becomes a norm, <w,m> an inner product, |w|^2[k] the norm of w_k, and a hyper-parameter
    its letter.

    Args:
        expression: the formula.
        letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}; the others have the
            paper's letters.

    Raises:
        ValueError: two names of the formula would have one letter.

    Example:
        >>> lr, squared = sp.symbols("lr |g|^2")
        >>> print(latex(lr**2 * squared), latex(lr, {"lr": r"\alpha"}))
        \eta^{2} \|g\|^2 \alpha
    """
    table = choose_latex([expression], letters)
    symbols = [s for s in expression.atoms(sp.Symbol) if isinstance(s.name, str)]
    names = {s: _quantity(s.name, table) for s in symbols}
    return str(_Latex(table, {"symbol_names": names}).doprint(expression))


def choose_latex(expressions: Iterable[sp.Basic], letters: Letters | None = None) -> Letters:
    """The letters of several formulas: one for each name, and no letter for two.

    A name whose usual letter another one has is spelled out.

    Args:
        expressions: the formulas.
        letters: the letters to use, by name.

    Raises:
        ValueError: two of `letters` are the same, and the formulas hold both names.
    """
    letters = letters or {}
    symbols = {s.name for e in expressions for s in e.atoms(sp.Symbol)}
    names = sorted({part for name in symbols for part in _parts(name)})
    table: dict[str, str] = {}
    # The user's letters are taken first, then the letters of names that are letters.
    for name in sorted(names, key=lambda n: (n not in letters, n in LETTERS, n)):
        chosen = letters.get(name) or LETTERS.get(name) or _letter(name)
        other = next((n for n, letter in table.items() if letter == chosen), None)
        if other is not None and name in letters:
            raise ValueError(f"letters: {other!r} and {name!r} cannot both be {chosen!r}")
        table[name] = chosen if other is None else _upright(name)
    return table


class _Latex(PlusFirst, LatexPrinter):  # type: ignore[misc]
    def __init__(self, letters: Letters, settings: dict[str, object]) -> None:
        super().__init__(settings)
        self._letters = letters

    def _print_Indexed(self, indexed: sp.Indexed) -> str:  # noqa: N802
        index = ",".join(self._print(i) for i in indexed.indices)
        return _quantity(str(indexed.base), self._letters, index)


def _parts(name: str) -> tuple[str, ...]:
    """The names within a name: w and m of <w',m'>."""
    if norm := NORM.fullmatch(name):
        return (_bare(norm[1]),)
    if product := PRODUCT.fullmatch(name):
        return _bare(product[1]), _bare(product[2])
    return (_bare(name),)


def _bare(vector: str) -> str:
    """The letter of a vector, without primes and superscripts."""
    return vector.rstrip("'").split("^")[0]


def _quantity(name: str, letters: Letters, index: str = "") -> str:
    """A norm, an inner product or a plain name, at a time if there is one."""
    if norm := NORM.fullmatch(name):
        return rf"\|{_mark(norm[1], letters, index)}\|{norm[2] or ''}"
    if product := PRODUCT.fullmatch(name):
        pair = (_mark(vector, letters, index) for vector in product.groups())
        return rf"\langle {', '.join(pair)}\rangle"
    return _mark(name, letters, index)


def _mark(name: str, letters: Letters, index: str = "") -> str:
    """A letter with its superscript, its index and its primes."""
    bare, primes = _bare(name), "'" * (len(name) - len(name.rstrip("'")))
    letter = letters.get(bare) or _letter(bare)
    above = name.rstrip("'")[len(bare) + 1 :]
    if index and "_" in letter:
        letter = f"{{{letter}}}"
    return letter + primes + (f"^{{{above}}}" if above else "") + (f"_{{{index}}}" if index else "")


def _letter(name: str) -> str:
    """The name as LaTeX: Greek, with its number as an index, or upright if it is a word."""
    match = re.fullmatch(r"([A-Za-z]+)_?(\d*)", name)
    if match is None:
        return _upright(name)
    word, number = match.groups()
    if word.lower() in greeks:
        word = "\\" + word
    elif len(word) > 1:
        word = _upright(word)
    return word + (f"_{{{number}}}" if number else "")


def _upright(word: str) -> str:
    command = "mathrm" if re.fullmatch(r"\w+", word) else "text"
    return rf"\{command}{{{word}}}".replace("_", r"\_")
