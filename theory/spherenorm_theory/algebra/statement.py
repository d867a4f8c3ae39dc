r"""A statement in words and formulas, as text of 80 columns and as LaTeX, by one renderer.

A `Phrase` is words, a formula, or several of them in a row: ("w is one unit, of ", d, " entries").
A `Statement` has headings, each with phrases: a paragraph, or displayed lines.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy as sp

from spherenorm_theory.algebra.printing import Letters, Writer

COLUMNS, INDENT = 80, "    "

Phrase: TypeAlias = Any
"""Words, a formula (a relation or a vector too), or a tuple of them."""


def pieces(phrase: Phrase) -> tuple[Any, ...]:
    """The words and formulas of a phrase."""
    return (
        tuple(phrase)
        if isinstance(phrase, tuple) and not isinstance(phrase, sp.Basic)
        else (phrase,)
    )


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
        known: further formulas whose names take letters.
    """

    kind: str
    name: str
    parts: tuple[Part, ...]
    known: tuple[Any, ...] = ()

    def _writer(self, language: str, letters: Letters | None = None) -> Writer:
        phrases = [x for part in self.parts for x in (part.heading, *part.phrases)]
        found = [x for phrase in phrases for x in pieces(phrase) if not isinstance(x, str)]
        return Writer([*found, *self.known], language, letters)

    def __str__(self) -> str:
        write = self._writer("text")
        parts = (text for part in self.parts for text in _text(part, write))
        return "\n".join([f"{self.kind} ({self.name})", *parts])

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The statement as an environment, for a document with amsmath and amsthm.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}.

        Raises:
            ValueError: two names would have one letter.
        """
        write, kind = self._writer("latex", letters), self.kind.lower()
        parts = (_tex(part, write) for part in self.parts)
        name = escape_latex(self.name)
        return "\n".join([rf"\begin{{{kind}}}[{name}]", *parts, rf"\end{{{kind}}}"])


def words(phrase: Phrase, write: Writer | None = None) -> str:
    """A phrase in text."""
    found = pieces(phrase)
    write = write or Writer([x for x in found if not isinstance(x, str)])
    return "".join(x if isinstance(x, str) else write(x, "t") for x in found)


def _text(part: Part, write: Writer) -> Iterator[str]:
    heading = words(part.heading, write)
    lines = [words(each, write) for each in part.phrases]
    if not part.displayed:
        yield paragraph(heading, f"{'; '.join(lines)}.")
        return
    yield f"{heading}."
    for line in lines:
        yield from wrapped(line)


def _tex(part: Part, write: Writer) -> str:
    def row(phrase: Phrase, text: str, formula: str) -> str:
        return "".join(
            text % escape_latex(x) if isinstance(x, str) else formula % write(x, "t")
            for x in pieces(phrase)
        )

    heading = rf"\textbf{{{row(part.heading, '%s', '$%s$')}.}}"
    if not part.displayed:
        return f"{heading} {'; '.join(row(each, '%s', '$%s$') for each in part.phrases)}."
    rows = " \\\\\n".join(_aligned(row(each, r"\text{%s}", "%s")) for each in part.phrases)
    return f"{heading}\n\\begin{{align*}}\n{rows}\n\\end{{align*}}"


def _aligned(line: str) -> str:
    for text, sign in ((r"\text{ = }", "="), (r"\text{ \textasciitilde{} }", r"\sim")):
        line = line.replace(text, f" {sign} ")
    found = re.match(r"(.*?) (=|\\sim) ", line)
    return f"{found[1]} &{found[2]} {line[found.end() :]}" if found else line


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
        depth += character in "([{<"
        depth -= character in ")]}>"
        if character == " " and n > 3:
            strong = text[n + 1 : n + 3] in ("+ ", "- ", "= ") or text[n - 1] == ","
            cost = max(depth, 0) + (0 if strong else 1.5) + 4 * (1 - n / width)
            best = min(best, (cost, -n))
    return -int(best[1]) or -1


def enumerated(phrases: Iterable[Any], end: str = "") -> tuple[Any, ...]:
    """Phrases with commas between them, as one."""
    found = [x for phrase in phrases for x in (", ", *pieces(phrase))][1:]
    return (*found, end) if end else tuple(found)


MARKS = {
    "\\": "textbackslash",
    "~": "textasciitilde",
    "^": "textasciicircum",
    "<": "textless",
    ">": "textgreater",
    "|": "textbar",
}
ESCAPES = {
    **{character: f"\\{word}{{}}" for character, word in MARKS.items()},
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "∞": r"$\infty$",
}


def escape_latex(text: str) -> str:
    """Plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)
