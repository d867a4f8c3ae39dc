r"""Formulas in text and in LaTeX, by one walk: `show` prints (1 - lr wd)^2, `latex` \eta \lambda.

Terms of a sum come in the order of a law: the norm of the weight, other norms, inner products,
sums over time. The letters of hyper-parameters are those of the paper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy as sp
from sympy.core.alphabets import greeks
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

from spherenorm_theory.algebra.symbols import Call, Inner, Norm, Vector, oriented

DIGITS = 15
"""Of a number in print; a fraction that has more is printed as a decimal."""

SHORT = {"weight_decay": "wd", "momentum": "beta", "wd_ratio": "ratio", "dampening": "tau"}
"""The names of hyper-parameters in text, where no other name is the same."""

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
    "radius": "R",
    "rank": r"\operatorname{rank}",
}
"""The paper's letters for the names of the hyper-parameters."""


TEX = {
    "[] / []": r"\frac{{{}}}{{{}}}",
    "[] * []": r"\left({}\right) \odot \left({}\right)",
    "[]^2": r"\left({}\right)^{{2}}",
    "sqrt({})": r"\sqrt{{{}}}",
    "1 / []": r"\frac{{1}}{{{}}}",
}
"""Operations on each entry in LaTeX, by their text; others are operators, or signs as in text."""


def show(expression: Any) -> str:
    """A formula, a relation, a vector or an operation in one line of text.

    Example:
        >>> lr, decay = sp.symbols("lr weight_decay", positive=True)
        >>> show((1 - lr * decay) ** 2 * Norm("w") ** 2 + Norm("s") ** 2)
        '(1 - lr wd)^2 |w|^2 + |s|^2'
    """
    return Writer([expression])(expression)


def latex(expression: Any, letters: Letters | None = None) -> str:
    r"""A formula, a relation or a vector in LaTeX.

    Args:
        expression: the formula.
        letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}; the others have the
            paper's letters.

    Raises:
        ValueError: two names of the formula would have one letter.

    Example:
        >>> lr = sp.Symbol("lr", positive=True)
        >>> print(latex(lr**2 * Norm("g") ** 2), latex(lr, {"lr": r"\alpha"}))
        \eta^{2} \|g\|^{2} \alpha
    """
    return Writer([expression], "latex", letters)(expression)


class Writer:
    """Text or LaTeX of several formulas, in which each name has one letter.

    Args:
        expressions: all formulas that are to be written.
        language: "text" or "latex".
        letters: LaTeX by name, as for `latex`.

    Raises:
        ValueError: two names would have one letter.
    """

    def __init__(
        self, expressions: Iterable[Any], language: str = "text", letters: Letters | None = None
    ) -> None:
        names = names_of(expressions)
        if language == "latex":
            self._printer: Any = _Latex(choose_letters(names, letters))
        else:
            short = {n: x for n, x in SHORT.items() if n in names and x not in names}
            self._printer = _Text(short)

    def __call__(self, x: Any, time: str = "") -> str:
        """A formula; a vector or an operation at a time."""
        return str(self._printer.whole(_shortened(x), time))


def choose_letters(names: Iterable[str], letters: Letters | None = None) -> Letters:
    """The LaTeX of names: one letter for each, and no letter for two.

    A name whose usual letter another one has is spelled out.

    Raises:
        ValueError: two of `letters` are the same, and the formulas hold both names.
    """
    letters = letters or {}
    table: dict[str, str] = {}
    # The user's letters are taken first, then the letters of names that are letters.
    for name in sorted(names, key=lambda n: (n not in letters, n in LETTERS, n)):
        chosen = letters.get(name) or LETTERS.get(name) or _letter(name)
        other = next((n for n, letter in table.items() if letter == chosen), None)
        if other is not None and name in letters:
            raise ValueError(f"letters: {other!r} and {name!r} cannot both be {chosen!r}")
        table[name] = chosen if other is None else _upright(name)
    return table


def names_in(x: Any) -> Iterator[str]:
    """The vectors and symbols that a vector, a formula or an operation holds."""
    if isinstance(x, Call):
        for part in x.arguments:
            yield from names_in(part)
    elif isinstance(x, Vector):
        yield from x
        for coefficient in x.values():
            yield from names_in(coefficient)
    elif isinstance(x, sp.Basic):
        labels = {i.base.label for i in x.atoms(sp.Indexed)}
        for symbol in sorted(x.free_symbols | labels, key=str):
            if isinstance(symbol, Inner):
                yield from (symbol.a, symbol.b)
            elif not isinstance(symbol, sp.Indexed):
                yield symbol.a if isinstance(symbol, Norm) else str(symbol)


def names_of(expressions: Iterable[Any]) -> set[str]:
    """The names in formulas, without primes."""
    return {name.rstrip("'") for each in expressions for name in names_in(each)}


def _is_product(symbol: Any) -> bool:
    return isinstance(symbol, (Norm, Inner))


def _shortened(expression: Any) -> Any:
    """Fractions of many digits as decimals."""
    if isinstance(expression, (Vector, Call)):
        return expression
    expression = sp.sympify(expression)
    numbers = expression.atoms(sp.Rational)
    long = {x: sp.Float(x, DIGITS) for x in numbers if max(abs(x.p), x.q) >= 10**DIGITS}
    return expression.xreplace(long) if long else expression


class _Vectors:
    """The vectors, their names and products; `self.table` has the names."""

    latex = False
    printmethod = "_formula"  # not sympy's own, which prints an index as [k]

    def __init__(self, table: Letters) -> None:
        super().__init__()
        self.table = table

    def whole(self, x: Any, time: str = "") -> str:
        """A formula; a vector or an operation at a time."""
        if isinstance(x, Vector):
            return self.vector(x, time)
        if isinstance(x, Call):
            return self.call(x, time)
        return str(self.doprint(x))  # type: ignore[attr-defined]

    def call(self, x: Call, time: str) -> str:
        """An operation on each entry."""
        inside = [self.whole(a, time) for a in x.arguments]
        if self.latex:
            usual = x.text.replace("[]", "{}")
            if usual[0].isalpha():
                name, _, slots = usual.partition("(")
                usual = rf"\operatorname{{{{{name}}}}}({slots}"
            return TEX.get(x.text, usual).format(*inside)
        words = re.split(r"(\[\]|\{\})", x.text)
        places = range(1, len(words), 2)
        for n, argument, text in zip(places, x.arguments, inside, strict=False):
            loose = isinstance(argument, Vector) and [*argument.values()] != [1]
            words[n] = f"({text})" if loose and words[n] == "[]" else text
        return "".join(words)

    def print(self, x: sp.Basic) -> str:
        return str(self._print(x))  # type: ignore[attr-defined]

    def bracketed(self, x: sp.Expr) -> str:
        """A factor, in brackets where it is a sum or a product."""
        loose = x.is_Add or x.is_Mul or x.is_Relational or (x.is_Number and x < 0)
        return self.brackets(self.print(x)) if loose else self.print(x)

    def brackets(self, text: str) -> str:
        return rf"\left({text}\right)" if self.latex else f"({text})"

    def signed(self, parts: Iterable[tuple[int, str]]) -> str:
        """Terms with their signs."""
        (first, text), *rest = parts
        lead = "-" if first < 0 else ""
        return lead + text + "".join(f" {'-' if n < 0 else '+'} {each}" for n, each in rest)

    def vector(self, v: Vector, time: str = "") -> str:
        """A combination of vectors, with the factor that all coefficients share before it."""
        if not v:
            return "0"
        cs = [sp.cancel(c) for c in v.values()]
        common = sp.gcd_list([sp.factor(c) for c in cs]) if len(cs) > 1 else cs[0]
        common *= oriented(sp.factor(sp.cancel(cs[0] / common)))[0]
        parts = []
        for atom, c in v.items():
            sign, size = oriented(sp.factor(sp.cancel(c / common)))
            one = r"\mathbf{1}" if self.latex else "1"
            name = one if atom == "1" else self.name(atom, time)
            parts.append((sign, name if size == 1 else f"{self.factor(size)} {name}"))
        sign, size = oriented(common)
        text = self.signed(parts)
        if common == 1:
            return text
        text = self.brackets(text) if len(v) > 1 else text
        if size == 1:
            return f"-{text}" if sign < 0 else text
        return f"{'-' if sign < 0 else ''}{self.factor(size)} {text}"

    def factor(self, x: sp.Expr) -> str:
        """A coefficient before a vector."""
        if self.latex or x.is_Pow or sp.fraction(x)[1] == 1:
            return self.bracketed(x) if x.is_Add else self.print(x)
        return self.brackets(self.print(x))

    def name(self, name: str, index: str = "") -> str:
        """A vector or a symbol, with its primes and its index."""
        bare = name.rstrip("'")
        letter = self.table.get(bare, bare)
        if index and "_" in letter and self.latex:
            letter = f"{{{letter}}}"
        subscript = "" if not index else f"_{index}" if len(index) == 1 else f"_{{{index}}}"
        return letter + name[len(bare) :] + subscript

    def _vector_at(self, name: str, index: str) -> str:
        """A vector at a time; a primed one, such as w', at the next."""
        if not index or not name.endswith("'"):
            return self.name(name, index)
        return self.name(name[:-1], f"{index}+1")

    def _product(self, symbol: Any, index: str = "") -> str:
        if isinstance(symbol, Norm):
            text = self._vector_at(symbol.a, index)
            return rf"\|{text}\|" if self.latex else f"|{text}|"
        pair = f"{self._vector_at(symbol.a, index)}, {self._vector_at(symbol.b, index)}"
        return rf"\langle {pair} \rangle" if self.latex else f"<{pair}>"


class _Formulas(_Vectors):
    """The formulas, which both languages print in one way."""

    def _print_Norm(self, symbol: Norm) -> str:  # noqa: N802  (the names of sympy's printers)
        return self._product(symbol)

    def _print_Inner(self, symbol: Inner) -> str:  # noqa: N802
        return self._product(symbol)

    def _print_Symbol(self, symbol: sp.Symbol, style: str = "") -> str:  # noqa: N802
        return self.name(symbol.name)

    def _print_Dummy(self, symbol: sp.Symbol, style: str = "") -> str:  # noqa: N802
        return self.name(symbol.name)

    def _print_Pi(self, number: sp.Expr) -> str:  # noqa: N802
        return r"\pi" if self.latex else "pi"

    def _print_Indexed(self, indexed: sp.Indexed) -> str:  # noqa: N802
        index = ",".join(map(self._index, indexed.indices))
        label = indexed.base.label
        return self._product(label, index) if _is_product(label) else self.name(str(label), index)

    def _index(self, x: sp.Expr) -> str:
        """A time: t+1, with its number last."""
        number, rest = x.as_coeff_Add()
        text = (self.print(rest) if rest != 0 else "").replace(" ", "")
        if number == 0 and text:
            return text
        return f"{text}+{number}" if text and number > 0 else f"{text}{number}"

    def _print_IndexedBase(self, base: sp.IndexedBase) -> str:  # noqa: N802
        return self.print(base.label)

    def _print_Add(self, total: sp.Add, order: Any = None) -> str:  # noqa: N802
        terms = sorted(total.args, key=_rank)
        return self.signed((n, self._term(x)) for n, x in map(oriented, terms))

    def _term(self, x: sp.Expr) -> str:
        return self.brackets(self.print(x)) if x.is_Add else self.print(x)

    def _print_Mul(self, product: sp.Mul) -> str:  # noqa: N802
        sign, rest = oriented(product)
        above, below = _fraction(rest)
        text = self.times(above)
        if below:
            if self.latex:
                text = rf"\frac{{{text}}}{{{self.times(below)}}}"
            else:
                loose = len(below) > 1
                bottom = self.times(below) if not loose else self.brackets(self.times(below))
                text = f"{text}/{bottom}"
        return f"-{text}" if sign < 0 else text

    def times(self, factors: list[sp.Expr]) -> str:
        """A product, the numbers first, then hyper-parameters, norms, inner products, sums."""
        factors = sorted((f for f in factors if f != 1), key=_place) or [sp.S.One]
        if len(factors) == 1 and not factors[0].is_Add:
            return self.print(factors[0])
        if len(factors) == 1:
            return self.print(factors[0]) if self.latex else self.bracketed(factors[0])
        return " ".join(map(self.bracketed, factors))

    def _print_Pow(self, power: sp.Pow, *_: Any, **__: Any) -> str:  # noqa: N802
        base, exponent = power.as_base_exp()
        if exponent.as_coeff_Mul()[0] < 0:
            below = self.print(base**-exponent)
            if self.latex:
                return rf"\frac{{1}}{{{below}}}"
            return f"1/{self.bracketed(base**-exponent)}"
        if exponent == sp.Rational(1, 2):
            root = self.print(base)
            return rf"\sqrt{{{root}}}" if self.latex else f"sqrt({root})"
        text = self.bracketed(base) if not base.is_Pow else self.brackets(self.print(base))
        raised = self.print(exponent)
        if self.latex:
            return f"{text}^{{{raised}}}"
        plain = exponent.is_Symbol or (exponent.is_Integer and exponent > 0)
        return f"{text}^{raised}" if plain else f"{text}^({raised})"

    def _print_Sum(self, total: sp.Sum) -> str:  # noqa: N802
        (variable, low, top), *_ = total.limits
        inside = self._term(total.function)
        below = self.print(variable)
        if low == 0:
            below += f" < {self.print(top + 1)}" if self.latex else f"<{self.print(top + 1)}"
        else:
            below = f"{below}={self.print(low)}"
            over = self.print(top)
            return (
                rf"\sum_{{{below}}}^{{{over}}} {inside}"
                if self.latex
                else f"Sum_{{{below}..{over}}} {inside}"
            )
        return (rf"\sum_{{{below}}}" if self.latex else f"Sum_{{{below}}}") + f" {inside}"


def _fraction(x: sp.Expr) -> tuple[list[sp.Expr], list[sp.Expr]]:
    """The factors above and below the line."""
    above, below = [], []
    for factor in sp.Mul.make_args(x):
        base, exponent = factor.as_base_exp()
        if factor.is_Rational and factor.q != 1:
            above += [sp.Integer(factor.p)]
            below += [sp.Integer(factor.q)]
        elif exponent.as_coeff_Mul()[0] < 0:
            below.append(base**-exponent)
        else:
            above.append(factor)
    return above, below


def _is_of_products(x: sp.Expr, *kinds: type) -> bool:
    labels = {i.base.label for i in x.atoms(sp.Indexed)}
    return any(isinstance(s, kinds) for s in x.free_symbols | labels)


def _place(x: sp.Expr) -> tuple[int, bool, str]:
    """The place of a factor: numbers, hyper-parameters, sums of these, norms, products, sums."""
    kind = 0 if x.is_Number else 1 if x.is_Symbol or x.is_Pow else 2
    if x.has(sp.Sum):
        kind = 6
    elif _is_of_products(x, Inner):
        kind = 5 if x.is_Add else 4
    elif _is_of_products(x, Norm):
        kind = 3
    return kind, str(x) != "lr", str(x)


def _rank(x: sp.Expr) -> tuple[Any, ...]:
    """The place of a term: |w|^2 before |s|^2, inner products, and sums over time; plus first."""
    norms = {s.a for s in x.atoms(Norm)} | {
        i.base.label.a for i in x.atoms(sp.Indexed) if isinstance(i.base.label, Norm)
    }
    inner = _is_of_products(x, Inner)
    first = 0 if "w" in norms else 1 if norms else 2
    minus = oriented(x)[0] < 0
    return x.has(sp.Sum), inner, first if norms or inner else 0, minus, not x.is_Number, str(x)


class _Text(_Formulas, StrPrinter):  # type: ignore[misc]
    def _print_Relational(self, relation: sp.Rel) -> str:  # noqa: N802
        sign = "=" if isinstance(relation, sp.Eq) else relation.rel_op
        return f"{self.print(relation.lhs)} {sign} {self.print(relation.rhs)}"


class _Latex(_Formulas, LatexPrinter):  # type: ignore[misc]
    latex = True


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
