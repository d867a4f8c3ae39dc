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


def show(expression: Any) -> str:
    """A formula, a relation or a vector in one line of text.

    Example:
        >>> lr, decay = sp.symbols("lr weight_decay", positive=True)
        >>> show((1 - lr * decay) ** 2 * Norm("w") ** 2 + Norm("s") ** 2)
        '(1 - lr wd)^2 |w|^2 + |s|^2'
    """
    return writer([expression])(expression)


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
    return writer([expression], "latex", letters)(expression)


def writer(
    expressions: Iterable[Any], language: str = "text", letters: Letters | None = None
) -> Callable[[Any], str]:
    """A function that writes formulas, in which each name has one letter.

    Args:
        expressions: all formulas that are to be written.
        language: "text" or "latex".
        letters: LaTeX by name, as for `latex`.

    Raises:
        ValueError: two names would have one letter.
    """
    names = {name.rstrip("'") for each in expressions for name in names_in(each)}
    printer: Any = _Text({n: x for n, x in SHORT.items() if n in names and x not in names})
    if language == "latex":
        printer = _Latex(_choose_letters(names, letters or {}))

    def write(x: Any) -> str:
        formula = sp.sympify(x.formula if isinstance(x, Vector) else x)
        rationals = formula.atoms(sp.Rational)
        long = {x: sp.Float(x, DIGITS) for x in rationals if max(abs(x.p), x.q) >= 10**DIGITS}
        return str(printer.doprint(formula.xreplace(long) if long else formula))

    return write


def names_in(x: Any) -> Iterator[str]:
    """The vectors and symbols that a vector or a formula holds."""
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


def _choose_letters(names: Iterable[str], given: Letters) -> Letters:
    """The LaTeX of names: one letter for each; one whose letter is taken is spelled out."""
    table: dict[str, str] = {}
    # The user's letters are taken first, then the letters of names that are letters.
    for name in sorted(names, key=lambda n: (n not in given, n in LETTERS, n)):
        chosen = given.get(name) or LETTERS.get(name) or _letter(name)
        other = next((n for n, letter in table.items() if letter == chosen), None)
        if other is not None and name in given:
            raise ValueError(f"letters: {other!r} and {name!r} cannot both be {chosen!r}")
        table[name] = chosen if other is None else _upright(name)
    return table


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
        """A symbol with its index; of a primed vector, such as w', the index is the next one."""
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

    _print_Norm = _print_Inner = _print_Dummy = _print_Symbol  # noqa: N815

    def _print_Pi(self, number: sp.Expr) -> str:  # noqa: N802
        return self.forms["pi"]

    def _print_Indexed(self, indexed: sp.Indexed) -> str:  # noqa: N802
        (time,) = indexed.indices
        number, rest = time.as_coeff_Add()  # t+1, with its number last
        text = self.print(rest) if rest != 0 else ""
        text += (
            (f"{number}" if number < 0 or not text else f"+{number}") if number or not text else ""
        )
        return self.symbol(indexed.base.label, text)

    def _print_IndexedBase(self, base: sp.IndexedBase) -> str:  # noqa: N802
        return self.print(base.label)

    def _print_Add(self, total: sp.Add, order: Any = None) -> str:  # noqa: N802
        text = ""
        for sign, term in map(extract_sign, sorted(total.args, key=_rank)):
            lead = (" - " if text else "-") if sign < 0 else (" + " if text else "")
            inside = self.print(term)
            text += lead + (self.forms["brackets"].format(inside) if term.is_Add else inside)
        return text

    def _print_Mul(self, product: sp.Mul) -> str:  # noqa: N802
        """Numbers first, then hyper-parameters, norms, inner products, sums over time, vectors."""
        sign, rest = extract_sign(product)
        factors = sorted((f for f in sp.Mul.make_args(rest) if f != 1), key=_place)
        ordered = sp.Mul(*factors, evaluate=False) if len(factors) > 1 else factors[0]
        # (sympy prints 1 / x by way of products)
        whole = ordered.is_Mul or ordered == product
        text = super()._print_Mul(ordered) if whole else self.print(ordered)  # type: ignore[misc]
        return f"-{text}" if sign < 0 else text

    def _print_Sum(self, total: sp.Sum) -> str:  # noqa: N802
        (variable, low, top), *_ = total.limits
        inside = self.print(total.function)
        inside = self.forms["brackets"].format(inside) if total.function.is_Add else inside
        form, limits = ("sum", (top + 1,)) if low == 0 else ("sum from", (low, top))
        return f"{self.forms[form].format(*map(self.print, (variable, *limits)))} {inside}"


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

    def _print_Abs(self, x: sp.Abs) -> str:  # noqa: N802
        return f"abs({self.print(x.args[0])})"

    def _print_Piecewise(self, x: sp.Piecewise) -> str:  # noqa: N802
        *cases, (last, _) = x.args
        first = (f"{self.print(value)} where {self.print(case)}" for value, case in cases)
        return f"({', '.join(first)}, else {self.print(last)})"


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


def _kinds(x: sp.Expr) -> tuple[set[str], bool, bool]:
    """The vectors whose norms a formula holds; whether it holds inner products, and entries."""
    symbols = x.free_symbols | {i.base.label for i in x.atoms(sp.Indexed)}
    norms = {s.a for s in symbols if isinstance(s, Norm)}
    return norms, any(isinstance(s, Inner) for s in symbols), any(map(is_entry, symbols))


def _place(x: sp.Expr) -> tuple[int, bool, str]:
    """The place of a factor: numbers, hyper-parameters, sums of these, norms, products, sums."""
    x = 1 / x if x.is_Pow and x.exp.could_extract_minus_sign() else x
    norms, inner, entry = _kinds(x)
    kind = 0 if x.is_Number else 1 if x.is_Symbol or x.is_Pow else 2
    if x.has(sp.Sum) or entry:
        kind = 6
    elif inner:
        kind = 5 if x.is_Add else 4
    elif norms:
        kind = 3
    return kind, str(x) != "lr", str(x)


def _rank(x: sp.Expr) -> tuple[Any, ...]:
    """The place of a term: |w|^2 before |s|^2, inner products, sums over time.

    Of a vector, plus comes first, then w, and the gradient last.
    """
    norms, inner, entry = _kinds(x)
    first = 0 if not (norms or inner) or "w" in norms else 1 if norms else 2
    minus = extract_sign(x)[0] < 0
    names = {str(s).partition("[")[0] for s in x.free_symbols if is_entry(s)} if entry else set()
    late = 0 if "w" in names else 2 if "g" in names else 1
    order = (minus, late) if entry else (first, minus)
    return x.has(sp.Sum), inner and not entry, entry, *order, not x.is_Number, str(x)


# A statement in words and formulas, as text of 80 columns and as LaTeX, by one renderer.


COLUMNS, INDENT = 80, "    "

Phrase: TypeAlias = Any
"""Words, a formula (a relation or a vector too), or a tuple of them."""


def pieces(phrase: Phrase) -> tuple[Any, ...]:
    """The words and formulas of a phrase."""
    return phrase if type(phrase) is tuple else (phrase,)


def formulas(*phrases: Phrase) -> list[Any]:
    """The formulas of phrases."""
    return [x for phrase in phrases for x in pieces(phrase) if not isinstance(x, str)]


def words(phrase: Phrase, write: Callable[[Any], str] | None = None) -> str:
    """A phrase in text."""
    write = write or writer(formulas(phrase))
    return "".join(x if isinstance(x, str) else write(x) for x in pieces(phrase))


def enumerated(phrases: Iterable[Any], end: str = "") -> tuple[Any, ...]:
    """Phrases with commas between them, as one."""
    found = [x for phrase in phrases for x in (", ", *pieces(phrase))][1:]
    return (*found, end) if end else tuple(found)


@dataclass(frozen=True)
class Part:
    """A heading with phrases: a paragraph, in which they are joined, or lines of their own."""

    heading: Phrase
    phrases: tuple[Phrase, ...]
    displayed: bool = False


@dataclass(frozen=True)
class Statement:
    """A statement in parts; `str` is its text, `latex` its LaTeX.

    Attributes:
        kind: such as "Proposition".
        name: of the statement.
        parts: in order.
    """

    kind: str
    name: str
    parts: tuple[Part, ...]

    @property
    def _formulas(self) -> list[Any]:
        return [x for part in self.parts for x in formulas(part.heading, *part.phrases)]

    def __str__(self) -> str:
        write = writer(self._formulas)
        lines = [f"{self.kind} ({self.name})"]
        for part in self.parts:
            heading = words(part.heading, write)
            shown = [words(each, write) for each in part.phrases]
            if part.displayed:
                lines += [f"{heading}.", *(line for each in shown for line in wrapped(each))]
            else:
                lines.append(paragraph(heading, f"{'; '.join(shown)}."))
        return "\n".join(lines)

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The statement as an environment, for a document with amsmath and amsthm.

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

        kind, lines = self.kind.lower(), []
        for part in self.parts:
            heading = rf"\textbf{{{row(part.heading)}.}}"
            if part.displayed:
                shown = [_aligned(row(each, r"\text{%s}", "%s")) for each in part.phrases]
                joined = " \\\\\n".join(shown)
                lines.append(f"{heading}\n\\begin{{align*}}\n{joined}\n\\end{{align*}}")
            else:
                lines.append(f"{heading} {'; '.join(map(row, part.phrases))}.")
        begin = rf"\begin{{{kind}}}[{escape_latex(self.name)}]"
        return "\n".join([begin, *lines, rf"\end{{{kind}}}"])


def _aligned(line: str) -> str:
    """A displayed line with a mark before its first sign."""
    for text, sign in ((r"\text{ = }", "="), (r"\text{ \textasciitilde{} }", r"\sim")):
        line = line.replace(text, f" {sign} ")
    return re.sub(r" (=|\\sim) ", r" &\1 ", line, count=1)


def paragraph(heading: str, content: str) -> str:
    """A part in words, in lines of 80 columns."""
    return textwrap.fill(
        f"{heading}. {content}",
        COLUMNS,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped(formula: str) -> Iterator[str]:
    """A formula in lines, broken before an operator at the least depth of brackets."""
    rest, indent = formula, INDENT
    while len(indent) + len(rest) > COLUMNS and (cut := _cut(rest, COLUMNS - len(indent))) > 0:
        yield indent + rest[:cut].rstrip()
        rest, indent = rest[cut:].lstrip(), 2 * INDENT
    yield indent + rest


def _cut(text: str, width: int) -> int:
    """The place to break a line: before + - = or after a comma, late, at the least depth."""
    depth, best = 0, (math.inf, 0)
    for n, character in enumerate(text[:width]):
        depth += (character in "([{<") - (character in ")]}>")
        divides = text[n : n + 2] == "/("
        if (character == " " or divides) and n > 3:
            strong = divides or text[n + 1 : n + 3] in ("+ ", "- ", "= ") or text[n - 1] == ","
            best = min(best, (max(depth, 0) + 1.5 * (not strong) + 4 * (1 - n / width), -n))
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
    """Plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)
