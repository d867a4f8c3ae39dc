r"""Formulas in text and in LaTeX, by one walk: `show` prints (1 - lr wd)^2, `latex` \eta \lambda.

Terms of a sum come in the order of a law: the weight, other vectors, the norm of the weight, other
norms, inner products, sums over time. The letters of hyper-parameters are those of the paper.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import sympy as sp
from sympy.core.alphabets import greeks
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

from spherenorm_theory.symbols import Inner, Norm, Vector, extract_sign, is_entry

DIGITS = 15
"""Digits of a printed number; a fraction that has more is printed as a decimal."""

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


def show(expression: Any) -> str:
    """Return a formula, a relation or a vector in one line of text.

    Example:
        >>> lr, decay = sp.symbols("lr weight_decay", positive=True)
        >>> show((1 - lr * decay) ** 2 * Norm("w") ** 2 + Norm("s") ** 2)
        '(1 - lr wd)^2 |w|^2 + |s|^2'
    """
    return writer([expression])(expression)


def latex(expression: Any, letters: Letters | None = None) -> str:
    r"""Return a formula, a relation or a vector in LaTeX.

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
    return writer([expression], "latex", letters)(expression)


def writer(
    expressions: Iterable[Any], language: str = "text", letters: Letters | None = None
) -> Callable[[Any], str]:
    """Return a function that writes formulas, in which each name has one letter.

    Args:
        expressions: all formulas that are to be written.
        language: "text" or "latex".
        letters: LaTeX by name, as for `latex`.

    Raises:
        ValueError: two names would have one letter.
    """
    names = {name.rstrip("'") for x in expressions for name in names_in(x)}
    printer: Any = _Text({n: x for n, x in SHORT.items() if n in names and x not in names})
    if language == "latex":
        printer = _Latex(_choose_letters(names, letters or {}))

    def write(x: Any) -> str:
        formula = sp.sympify(x.formula if isinstance(x, Vector) else x)
        long_fractions = [x for x in formula.atoms(sp.Rational) if max(abs(x.p), x.q) >= 10**DIGITS]
        decimals = {x: sp.Float(x, DIGITS) for x in long_fractions}
        return str(printer.doprint(formula.xreplace(decimals) if decimals else formula))

    return write


def names_in(x: Any) -> Iterator[str]:
    """Yield the names of vectors and symbols in a vector or a formula."""
    if isinstance(x, Vector):
        yield from x
        x = sp.Tuple(*x.values())
    if isinstance(x, sp.Basic):
        labels = {i.base.label for i in x.atoms(sp.Indexed)}
        for symbol in sorted(x.free_symbols | labels, key=str):
            if isinstance(symbol, Inner):
                yield from (symbol.a, symbol.b)
            elif not isinstance(symbol, sp.Indexed):
                yield symbol.a if isinstance(symbol, Norm) else str(symbol)


def _choose_letters(names: Iterable[str], users_letters: Letters) -> Letters:
    """Return one letter in LaTeX for each name; a name whose letter is in use is spelled out.

    Raises:
        ValueError: the user's letters give two names one letter.
    """
    table: dict[str, str] = {}
    # The user's letters come first, then those of names that are letters themselves.
    for name in sorted(names, key=lambda n: (n not in users_letters, n in LETTERS, n)):
        letter = users_letters.get(name) or LETTERS.get(name) or _letter(name)
        same_letter = [n for n, x in table.items() if x == letter]
        if same_letter and name in users_letters:
            raise ValueError(f"letters: {same_letter[0]!r} and {name!r} cannot both be {letter!r}")
        table[name] = _upright(name) if same_letter else letter
    return table


def _letter(name: str) -> str:
    """Return a name as LaTeX: Greek, with its number as an index, or upright if it is a word."""
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


class _Formulas:
    """Names, norms and products, and the order of terms and factors, in both languages."""

    printmethod = "_formula"  # not sympy's own, which prints an index as [k]
    forms: ClassVar[dict[str, str]]

    def __init__(self, table: Letters) -> None:
        super().__init__({"order": "none"})  # type: ignore[call-arg]
        self.table = table

    def print(self, x: sp.Basic) -> str:
        return str(self._print(x))  # type: ignore[attr-defined]

    def name(self, name: str, index: str = "") -> str:
        """Return a symbol with its index; a primed vector such as w' has the next index."""
        bare = name.rstrip("'")
        letter = self.table.get(bare, bare)
        if not index:
            return letter + name[len(bare) :]
        index += "+1" * (name != bare)
        if "_" in letter:
            letter = self.forms["indexed"].format(letter)
        return f"{letter}_{index}" if len(index) == 1 else f"{letter}_{{{index}}}"

    def symbol(self, symbol: sp.Basic, index: str = "") -> str:
        if isinstance(symbol, Norm):
            return self.forms["norm"].format(self.name(symbol.a, index))
        if isinstance(symbol, Inner):
            return self.forms["inner"].format(*(self.name(x, index) for x in (symbol.a, symbol.b)))
        return self.name(str(symbol), index)

    def _print_Symbol(self, symbol: sp.Symbol, style: str = "") -> str:  # noqa: N802  (of sympy)
        return self.symbol(symbol)

    def _print_StepValue(self, symbol: sp.Symbol) -> str:  # noqa: N802
        return self.symbol(symbol, "t")

    _print_Norm = _print_Inner = _print_Dummy = _print_Symbol  # noqa: N815

    def _print_Pi(self, number: sp.Expr) -> str:  # noqa: N802
        return self.forms["pi"]

    def _print_Indexed(self, indexed: sp.Indexed) -> str:  # noqa: N802
        (time,) = indexed.indices
        number, rest = time.as_coeff_Add()  # t+1, with its number last
        text = self.print(rest) if rest != 0 else ""
        if number or not text:
            sign = "+" if number >= 0 and text else ""
            text += f"{sign}{number}"
        return self.symbol(indexed.base.label, text)

    def _print_IndexedBase(self, base: sp.IndexedBase) -> str:  # noqa: N802
        return self.print(base.label)

    def _print_Add(self, total: sp.Add, order: Any = None) -> str:  # noqa: N802
        text = ""
        for sign, term in map(extract_sign, sorted(total.args, key=_term_order)):
            operator = "-" if sign < 0 else "+"
            if text:
                text += f" {operator} "
            elif sign < 0:
                text += "-"
            printed = self.print(term)
            text += self.forms["brackets"].format(printed) if term.is_Add else printed
        return text

    def _print_Mul(self, product: sp.Mul) -> str:  # noqa: N802
        """Print numbers first, then hyper-parameters, norms, inner products, sums, vectors."""
        sign, unsigned = extract_sign(product)
        if any(factor.is_Pow and not factor.exp.is_number for factor in unsigned.args):
            unsigned = sp.powsimp(unsigned, combine="exp")  # beta beta^t is beta^(t + 1)
        factors = sorted((f for f in sp.Mul.make_args(unsigned) if f != 1), key=_factor_order)
        ordered = sp.Mul(*factors, evaluate=False) if len(factors) > 1 else factors[0]
        # sympy prints 1 / x as a product, so that a single factor may be the product itself.
        if ordered.is_Mul or ordered == product:
            text = super()._print_Mul(ordered)  # type: ignore[misc]
        else:
            text = self.print(ordered)
        return f"-{text}" if sign < 0 else text

    def _print_Sum(self, total: sp.Sum) -> str:  # noqa: N802
        (variable, low, top), *_ = total.limits
        summand = self.print(total.function)
        if total.function.is_Add:
            summand = self.forms["brackets"].format(summand)
        form, limits = ("sum", (top + 1,)) if low == 0 else ("sum from", (low, top))
        return f"{self.forms[form].format(*map(self.print, (variable, *limits)))} {summand}"


class _Text(_Formulas, StrPrinter):  # type: ignore[misc]
    forms: ClassVar[dict[str, str]] = {
        "brackets": "({})",
        "indexed": "{}",
        "norm": "|{}|",
        "inner": "<{}, {}>",
        "pi": "pi",
        "sum": "Sum_{{{}<{}}}",
        "sum from": "Sum_{{{}={}..{}}}",
    }

    def doprint(self, x: sp.Basic) -> str:
        return str(super().doprint(x)).replace("**", "^").replace("*", " ")

    def _print_Relational(self, relation: sp.Rel) -> str:  # noqa: N802
        sign = "=" if isinstance(relation, sp.Eq) else relation.rel_op
        return f"{self.print(relation.lhs)} {sign} {self.print(relation.rhs)}"

    def _print_Limit(self, x: sp.Limit) -> str:  # noqa: N802
        function, variable, point, _ = x.args
        return f"Limit_{{{self.print(variable)}->{self.print(point)}}} ({self.print(function)})"

    def _print_Mod(self, x: sp.Mod) -> str:  # noqa: N802
        count, divisor = map(self.print, x.args)
        return f"{f'({count})' if x.args[0].is_Add else count} mod {divisor}"

    def _print_Abs(self, x: sp.Abs) -> str:  # noqa: N802
        return f"abs({self.print(x.args[0])})"

    def _print_Piecewise(self, x: sp.Piecewise) -> str:  # noqa: N802
        *cases, (default, _) = x.args
        printed = [
            f"{self.print(value)} where {self.print(condition)}" for value, condition in cases
        ]
        return f"({', '.join(printed)}, else {self.print(default)})"


class _Latex(_Formulas, LatexPrinter):  # type: ignore[misc]
    forms: ClassVar[dict[str, str]] = {
        "brackets": r"\left({}\right)",
        "indexed": "{{{}}}",
        "norm": r"\|{}\|",
        "inner": r"\langle {}, {} \rangle",
        "pi": r"\pi",
        "sum": r"\sum_{{{} < {}}}",
        "sum from": r"\sum_{{{}={}}}^{{{}}}",
    }


def _contents(x: sp.Expr) -> tuple[set[str], bool, bool]:
    """Return the vectors whose norms a formula has, and if it has inner products and entries."""
    symbols = x.free_symbols | {i.base.label for i in x.atoms(sp.Indexed)}
    norms = {s.a for s in symbols if isinstance(s, Norm)}
    return norms, any(isinstance(s, Inner) for s in symbols), any(map(is_entry, symbols))


def _factor_order(x: sp.Expr) -> tuple[int, bool, str]:
    """Return the sort key of a factor: numbers, hyper-parameters, sums, norms, products, sums."""
    x = 1 / x if x.is_Pow and x.exp.could_extract_minus_sign() else x
    norms, has_inner, has_entries = _contents(x)
    kind = 0 if x.is_Number else 1 if x.is_Symbol or x.is_Pow else 2
    if x.has(sp.Sum) or has_entries:
        kind = 6
    elif has_inner:
        kind = 5 if x.is_Add else 4
    elif norms:
        kind = 3
    return kind, str(x) != "lr", str(x)


def _term_order(x: sp.Expr) -> tuple[Any, ...]:
    """Return the sort key of a term: |w|^2 before |s|^2, inner products, sums over time.

    In a vector, terms with a plus come first, then w, and the gradient last.
    """
    norms, has_inner, has_entries = _contents(x)
    is_minus = extract_sign(x)[0] < 0
    if has_entries:
        names = {str(s).partition("[")[0] for s in x.free_symbols if is_entry(s)}
        order = (int(is_minus), 0 if "w" in names else 2 if "g" in names else 1)
    else:
        is_first = not (norms or has_inner) or "w" in norms
        order = (0 if is_first else 1 if norms else 2, int(is_minus))
    is_product = has_inner and not has_entries
    return x.has(sp.Sum), is_product, has_entries, *order, not x.is_Number, str(x)


# Statements in words and formulas


COLUMNS, INDENT = 80, "    "

Phrase: TypeAlias = Any
"""Words, a formula (a relation or a vector too), or a tuple of them."""


def pieces(phrase: Phrase) -> tuple[Any, ...]:
    """Return the words and formulas of a phrase."""
    return phrase if type(phrase) is tuple else (phrase,)


def formulas(*phrases: Phrase) -> list[Any]:
    """Return the formulas of phrases."""
    return [x for phrase in phrases for x in pieces(phrase) if not isinstance(x, str)]


def words(phrase: Phrase, write: Callable[[Any], str] | None = None) -> str:
    """Return a phrase as text."""
    write = write or writer(formulas(phrase))
    return "".join(x if isinstance(x, str) else write(x) for x in pieces(phrase))


def joined(phrases: Iterable[Phrase], separator: str) -> tuple[Any, ...]:
    """Return one phrase from several, with a separator between them."""
    return tuple([x for phrase in phrases for x in (separator, *pieces(phrase))][1:])


def enumerated(phrases: Iterable[Phrase], end: str = "") -> tuple[Any, ...]:
    """Return one phrase from several, with commas between them and an end."""
    return (*joined(phrases, ", "), *((end,) if end else ()))


@dataclass(frozen=True)
class Part:
    """A heading with phrases: a paragraph, in which they are joined, or lines of their own."""

    heading: Phrase
    phrases: tuple[Phrase, ...]
    displayed: bool = False


@dataclass(frozen=True)
class Proposition:
    """A statement in parts; `str` is its text, `latex` its LaTeX.

    Attributes:
        environment: environment of LaTeX, such as "Proposition".
        name: name of the statement.
        parts: the parts in order.
        summary: a sentence that precedes the parts.
    """

    environment: str
    name: str
    parts: tuple[Part, ...]
    summary: Phrase = ()

    @property
    def _formulas(self) -> list[Any]:
        phrases = [phrase for part in self.parts for phrase in (part.heading, *part.phrases)]
        return formulas(self.summary, *phrases)

    def __str__(self) -> str:
        write = writer(self._formulas)
        lines = [f"{self.environment} ({self.name})"]
        if self.summary:
            lines.append(fill(words(self.summary, write), indent=""))
        for part in self.parts:
            heading = words(part.heading, write)
            phrases = [words(phrase, write) for phrase in part.phrases]
            if part.displayed:
                lines += [f"{heading}.", *(line for text in phrases for line in wrapped(text))]
            else:
                lines.append(paragraph(heading, f"{'; '.join(phrases)}."))
        return "\n".join(lines)

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""Return the statement as an environment, for a document with amsmath and amsthm.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}.

        Raises:
            ValueError: two names would have one letter.
        """
        write = writer(self._formulas, "latex", letters)

        def row(phrase: Phrase, text: str = "%s", formula: str = "$%s$") -> str:
            return "".join(
                text % escape_latex(x) if isinstance(x, str) else formula % write(x)
                for x in pieces(phrase)
            )

        environment, lines = self.environment.lower(), [row(self.summary)] if self.summary else []
        for part in self.parts:
            heading = rf"\textbf{{{row(part.heading)}.}}"
            if part.displayed:
                rows = [_aligned(row(phrase, r"\text{%s}", "%s")) for phrase in part.phrases]
                display = " \\\\\n".join(rows)
                lines.append(f"{heading}\n\\begin{{align*}}\n{display}\n\\end{{align*}}")
            else:
                lines.append(f"{heading} {'; '.join(map(row, part.phrases))}.")
        begin = rf"\begin{{{environment}}}[{escape_latex(self.name)}]"
        return "\n".join([begin, *lines, rf"\end{{{environment}}}"])


def _aligned(line: str) -> str:
    """Return a displayed line with an alignment mark before its first sign."""
    for text, sign in ((r"\text{ = }", "="), (r"\text{ \textasciitilde{} }", r"\sim")):
        line = line.replace(text, f" {sign} ")
    return re.sub(r" (=|\\sim) ", r" &\1 ", line, count=1)


def fill(text: str, indent: str = INDENT) -> str:
    """Return text in lines of 80 columns, with an indent from the second line on."""
    return textwrap.fill(
        text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def paragraph(heading: str, content: str) -> str:
    """Return a heading and its text in lines of 80 columns."""
    return fill(f"{heading}. {content}")


def wrapped(formula: str, width: int = COLUMNS, indent: str = INDENT) -> Iterator[str]:
    """Yield a formula in lines, broken before an operator at the least depth of brackets.

    Args:
        formula: the text of a formula; words between formulas may be broken, too.
        width: the largest number of columns of a line.
        indent: of the first line; the others have as much again.
    """
    remaining, present_indent = formula, indent
    while len(present_indent) + len(remaining) > width:
        end = _line_end(remaining, width - len(present_indent))
        if end <= 0:
            break
        yield present_indent + remaining[:end].rstrip()
        remaining, present_indent = remaining[end:].lstrip(), 2 * indent
    yield present_indent + remaining


def _line_end(text: str, width: int) -> int:
    """Return where to break a line: before + - = or after a comma, late, at the least depth.

    Without such a position, it is -1. An inner product stays on its line.
    """
    depth, best = 0, (math.inf, 0)
    products = [match.span() for match in re.finditer(r"<[^<>=]*>", text)]
    for n, character in enumerate(text[:width]):
        depth += (character in "([{<") - (character in ")]}>")
        divides = text[n : n + 2] == "/("
        is_within = any(start < n < end for start, end in products)
        if (character == " " or divides) and n > 3 and not is_within:
            is_operator = divides or text[n + 1 : n + 3] in ("+ ", "- ", "= ") or text[n - 1] == ","
            best = min(best, (max(depth, 0) + 1.5 * (not is_operator) + 4 * (1 - n / width), -n))
    return -int(best[1]) or -1


ESCAPES = {
    **{x: f"\\{x}" for x in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "∞": r"$\infty$",
}


def escape_latex(text: str) -> str:
    """Return plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)
