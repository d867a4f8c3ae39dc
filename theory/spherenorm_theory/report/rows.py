"""The rows of a report, and their three forms: text of 80 columns, Markdown, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from spherenorm_theory.algebra.claims import Claim
from spherenorm_theory.algebra.printing import latex, show
from spherenorm_theory.algebra.statement import escape_latex, paragraph, wrapped


@dataclass(frozen=True)
class Row:
    """One statement of a report.

    Attributes:
        section: the heading it belongs under.
        name: of the statement.
        formula: in text, of one line; or a text of several lines, which stays as it is.
        status: "proved", "checked to x", "not applicable", ... and why.
        latex: the formula as LaTeX, if there is one; an environment, or a formula.
        good: False fails the command.

    Example:
        >>> row = Row("ours", "a sum", "1 + 1 = 2", "proved")
        >>> row.good
        True
    """

    section: str
    name: str
    formula: str
    status: str
    latex: str = ""
    good: bool = True

    @staticmethod
    def of(section: str, name: str, claim: Claim) -> Row:
        """The row of a claim."""
        formula, tex = show(claim.relation), latex(claim.relation)
        return Row(section, name, formula, claim.how, tex, claim.holds)


@dataclass(frozen=True)
class Job:
    """A part of the report.

    Attributes:
        section: of its rows.
        name: that the progress bar shows.
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
    if "\\n" in row.formula or "\n" in row.formula:
        return row.formula if not row.status else f"{row.formula}\n{paragraph('Check', row.status)}"
    lines = [paragraph(row.name, row.status)]
    return "\n".join([*lines, *(wrapped(row.formula) if row.formula else [])])


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
            status = _escape_markdown(row.status)
            if "\n" in row.formula:
                lines += ["```text", row.formula, "```", ""]
            elif row.formula:
                lines.append(f"- **{_escape_markdown(row.name)}**: {status}: `{row.formula}`")
            else:
                lines.append(f"- **{_escape_markdown(row.name)}**: {status}")
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Text without marks of Markdown."""
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


HEAD = r"""\documentclass{article}
\usepackage{amsmath,amssymb,amsthm}
\newtheorem{proposition}{Proposition}
\allowdisplaybreaks\raggedright
\begin{document}
\section*{Laws and their status}"""


def to_latex(rows: list[Row]) -> str:
    r"""The rows as a standalone LaTeX document.

    Example:
        >>> print(to_latex([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[6])
        \subsection*{ours}
    """
    lines = [HEAD]
    for section, own in by_section(rows).items():
        lines.append(f"\\subsection*{{{escape_latex(section)}}}")
        for row in own:
            lines += [*_latex_lines(row), ""]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_lines(row: Row) -> list[str]:
    if row.latex.startswith("\\begin{proposition}"):
        return [row.latex]
    name, status = escape_latex(row.name), escape_latex(row.status)
    head = f"\\paragraph{{{name}}} {status}"
    if row.latex:
        return [head, f"\\[{row.latex}\\]"]
    shown = " ".join(row.formula.split())
    return [head, f"\\texttt{{{escape_latex(shown)}}}"] if shown else [head]
