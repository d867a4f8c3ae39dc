"""The rows of a report, and their three forms: text of 80 columns, Markdown, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spherenorm_theory.algebra.claims import Claim, Refutation
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

    @staticmethod
    def of(section: str, name: str, claim: Claim | Refutation) -> Row:
        """The row of a claim, or of another reading that is refuted."""
        return Row(section, name, claim.relation, claim.how, claim.holds)

    @property
    def text(self) -> str:
        """The content in text."""
        plain = isinstance(self.content, (str, Statement))
        return str(self.content) if plain else show(self.content)


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


def by_section(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each section, in order."""
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(row.section, []).append(row)
    return sections


def to_text(row: Row) -> str:
    """A row in lines of 80 columns.

    Example:
        >>> print(to_text(Row("ours", "a sum", "1 + 1 = 2", "proved")))
        a sum. proved
            1 + 1 = 2
    """
    if "\n" in row.text:
        return row.text if not row.status else f"{row.text}\n{paragraph('Check', row.status)}"
    return "\n".join([paragraph(row.name, row.status), *(wrapped(row.text) if row.text else ())])


def to_markdown(rows: list[Row]) -> str:
    """The rows as Markdown, one list per section.

    Example:
        >>> print(to_markdown([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[-1])
        - **a sum**: proved: `1 + 1 = 2`
    """
    lines = ["# Laws and their status"]
    for section, own in by_section(rows).items():
        lines += ["", f"## {_escape_markdown(section)}", ""]
        for row in own:
            line = f"- **{_escape_markdown(row.name)}**: {_escape_markdown(row.status)}"
            if "\n" in row.text:
                lines += ["```text", row.text, "```", ""]
            else:
                lines.append(f"{line}: `{row.text}`" if row.text else line)
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Text without marks of Markdown."""
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


HEAD = r"""\documentclass{article}
\usepackage{amsmath,amssymb,amsthm}
\newtheorem{proposition}{Proposition}
\newtheorem{equilibrium}{Equilibrium}
\allowdisplaybreaks\raggedright
\begin{document}
\section*{Laws and their status}"""


def to_latex(rows: list[Row]) -> str:
    r"""The rows as a standalone LaTeX document.

    Example:
        >>> print(to_latex([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[7])
        \subsection*{ours}
    """
    lines = [HEAD]
    for section, own in by_section(rows).items():
        lines.append(f"\\subsection*{{{escape_latex(section)}}}")
        for row in own:
            lines += [*_latex_lines(row), ""]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_lines(row: Row) -> list[str]:
    if isinstance(row.content, Statement):
        return [row.content.latex()]
    head = f"\\paragraph{{{escape_latex(row.name)}}} {escape_latex(row.status)}"
    if not isinstance(row.content, str):
        return [head, f"\\[{latex(row.content)}\\]"]
    shown = " ".join(row.content.split())
    return [head, f"\\texttt{{{escape_latex(shown)}}}"] if shown else [head]
