r"""A statement in words and formulas, as text of 80 columns and as LaTeX, by one renderer.

A `Phrase` is words, a formula, or several of them in a row: ("w is one unit, of ", d, " entries").
A `Statement` has headings, each with phrases: a paragraph, or displayed lines.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from spherenorm_theory.algebra.printing import Letters, writer

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
