"""The rows of a report, and their two forms: text of 80 columns and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from spherenorm_theory.algebra.printing import latex, show
from spherenorm_theory.algebra.statement import Statement, escape_latex, paragraph, wrapped


@dataclass(frozen=True)
class Row:
    """One statement of a report.

    Attributes:
        name: of the statement.
        content: a statement in parts, a formula, or text, of which several lines stay as they are.
        status: "proved", "checked to x", "not applicable", ... and why.
        good: False fails the command.

    Example:
        >>> row = Row("a sum", "1 + 1 = 2", "proved")
        >>> row.good
        True
    """

    name: str
    content: Any
    status: str
    good: bool = True


class Section(NamedTuple):
    """A title with rows, which may be made one after the other.

    Example:
        >>> print(Section("ours", [Row("a sum", "1 + 1 = 2", "proved")]).title)
        ours
    """

    title: str
    rows: Iterable[Row]


def to_text(row: Row) -> str:
    """A row in lines of 80 columns.

    Example:
        >>> print(to_text(Row("a sum", "1 + 1 = 2", "proved")))
        a sum. proved
            1 + 1 = 2
    """
    plain = isinstance(row.content, (str, Statement))
    text = str(row.content) if plain else show(row.content)
    if "\n" in text:
        return f"{text}\n{paragraph('Check', row.status)}" if row.status else text
    return "\n".join([paragraph(row.name, row.status), *(wrapped(text) if text else ())])


HEAD = r"""\documentclass{article}
\usepackage{amsmath,amssymb,amsthm}
\newtheorem{proposition}{Proposition}
\newtheorem{equilibrium}{Equilibrium}
\allowdisplaybreaks\raggedright
\begin{document}
\section*{Laws and their status}"""


def to_latex(sections: Iterable[Section]) -> str:
    r"""The sections as a standalone LaTeX document.

    Example:
        >>> ours = Section("ours", [Row("a sum", "1 + 1 = 2", "proved")])
        >>> print(to_latex([ours]).splitlines()[7])
        \subsection*{ours}
    """
    lines = [HEAD]
    for title, rows in sections:
        lines.append(f"\\subsection*{{{escape_latex(title)}}}")
        lines += [line for row in rows for line in (*_latex_lines(row), "")]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_lines(row: Row) -> Iterator[str]:
    if isinstance(row.content, Statement):
        yield row.content.latex()
        return
    yield f"\\paragraph{{{escape_latex(row.name)}}} {escape_latex(row.status)}"
    if not isinstance(row.content, str):
        yield f"\\[{latex(row.content)}\\]"
    elif row.content:
        yield f"\\begin{{verbatim}}\n{row.content}\n\\end{{verbatim}}"
