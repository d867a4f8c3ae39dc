"""The rows of a report, and their two forms: text of 80 columns and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spherenorm_theory.algebra.printing import latex, show
from spherenorm_theory.algebra.statement import Statement, escape_latex, paragraph, wrapped


@dataclass(frozen=True)
class Row:
    """One statement of a report.

    Attributes:
        section: the heading it belongs under.
        name: of the statement.
        content: a statement in parts, a formula, or text, of which several lines stay as they are.
        status: "proved", "checked to x", "not applicable", ... and why.
        good: False fails the command.

    Example:
        >>> row = Row("ours", "a sum", "1 + 1 = 2", "proved")
        >>> row.good
        True
    """

    section: str
    name: str
    content: Any
    status: str
    good: bool = True


@dataclass(frozen=True)
class Job:
    """A part of the report.

    Attributes:
        section: of its rows.
        name: of the part.
        rows: makes them.

    Example:
        >>> job = Job("ours", "a sum", lambda: [Row("ours", "a sum", "1 + 1 = 2", "proved")])
        >>> job.run()[0].status
        'proved'
    """

    section: str
    name: str
    rows: Callable[[], list[Row]]

    def run(self) -> list[Row]:
        """The rows; of a job that raises, one row with the error, so that the other jobs go on."""
        try:
            return self.rows()
        except Exception as error:
            status = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())}"
            return [Row(self.section, self.name, "", status, good=False)]


def to_text(row: Row) -> str:
    """A row in lines of 80 columns.

    Example:
        >>> print(to_text(Row("ours", "a sum", "1 + 1 = 2", "proved")))
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


def to_latex(rows: Iterable[Row]) -> str:
    r"""The rows as a standalone LaTeX document.

    Example:
        >>> print(to_latex([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[7])
        \subsection*{ours}
    """
    lines = [HEAD]
    for section, own in groupby(rows, lambda row: row.section):
        lines.append(f"\\subsection*{{{escape_latex(section)}}}")
        lines += [line for row in own for line in (*_latex_lines(row), "")]
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
