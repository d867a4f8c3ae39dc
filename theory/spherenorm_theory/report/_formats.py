"""The rows of the report, and their three forms: tables in a terminal, Markdown, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import TextWrapper

import sympy as sp
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spherenorm_theory.algebra import Letters, choose_latex, latex
from spherenorm_theory.laws import NormGrowth


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        section: the heading it belongs under.
        name: of the statement.
        formula: in text.
        status: "proved", "checked to x", "not applicable", ... and why.
        latex: the formula as LaTeX, if there is one.
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


def to_tables(rows: list[Row]) -> Iterator[Table]:
    """One table per section.

    Example:
        >>> tables = to_tables([Row("ours", "a sum", "1 + 1 = 2", "proved")])
        >>> [table.title for table in tables]
        ['ours']
    """
    for section, own in by_section(rows).items():
        table = Table(title=escape(section), title_justify="left", show_lines=True)
        table.add_column("statement", ratio=2)
        table.add_column("formula", ratio=4)
        table.add_column("status", ratio=5)
        for row in own:
            status = _Cell(row.status, "green" if row.good else "red")
            table.add_row(_Cell(row.name), _Cell(row.formula), status)
        yield table


class _Wrapper(TextWrapper):
    """Breaks lines at spaces, and formulas after an operator or a bracket, but not within names."""

    wordsep_re = re.compile(r"(\s+)|(?<=[*/(:])(?=[^\s*/])")


@dataclass(frozen=True)
class _Cell:
    """Text that is no markup, broken where a formula may be."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(_Wrapper(options.max_width).wrap(self.text)), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        words = _Wrapper(1, break_long_words=False).wrap(self.text)
        return Measurement(max(map(len, words), default=0), len(self.text))


def to_markdown(rows: list[Row]) -> str:
    """The rows as Markdown tables, one per section.

    Example:
        >>> print(to_markdown([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[-2])
        |---|---|---|
    """
    lines = ["# Laws and their status", ""]
    for section, own in by_section(rows).items():
        lines += [
            f"## {_escape_markdown(section)}",
            "",
            "| statement | formula | status |",
            "|---|---|---|",
        ]
        lines += [
            f"| {_escape_markdown(r.name)} | {_code(r.formula)} | {_escape_markdown(r.status)} |"
            for r in own
        ]
        lines += ["", *(f"$$\n{r.latex}\n$$\n" for r in own if r.latex)]
    return "\n".join(lines)


def _escape_markdown(text: str) -> str:
    """Text without marks of Markdown, for a cell of a table too."""
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _code(formula: str) -> str:
    """A formula as code, in which only the border of a cell needs an escape."""
    return f"`{formula}`".replace("|", "\\|") if formula else ""


WORDS = {
    "\\": "textbackslash",
    "~": "textasciitilde",
    "^": "textasciicircum",
    "<": "textless",
    ">": "textgreater",
    "|": "textbar",
}
ESCAPES = {
    **{character: f"\\{word}{{}}" for character, word in WORDS.items()},
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "∞": r"$\infty$",
}


def to_latex(rows: list[Row]) -> str:
    r"""The rows as a standalone LaTeX document.

    Example:
        >>> print(to_latex([Row("ours", "a sum", "1 + 1 = 2", "proved")]).splitlines()[4])
        \subsection*{ours}
    """
    lines = [
        "\\documentclass{article}",
        "\\usepackage{amsmath,longtable}",
        "\\begin{document}",
        "\\section*{Laws and their status}",
    ]
    for section, own in by_section(rows).items():
        lines += [f"\\subsection*{{{escape_latex(section)}}}"]
        lines += [f"\\begin{{equation*}}\n{r.latex}\n\\end{{equation*}}" for r in own if r.latex]
        lines += ["\\begin{longtable}{p{0.2\\textwidth}p{0.38\\textwidth}p{0.34\\textwidth}}"]
        lines += [_latex_line(row) for row in own]
        lines += ["\\end{longtable}"]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_line(row: Row) -> str:
    name, formula, status = map(escape_latex, (row.name, row.formula, row.status))
    return f"{name} & \\texttt{{{formula}}} & {status} \\\\"


def escape_latex(text: str) -> str:
    """Plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)


def law_to_latex(law: NormGrowth, letters: Letters | None = None) -> str:
    r"""A law with its cross term, its hypotheses, and the kind of each part.

    The text is for the body of a LaTeX document that uses amsmath.

    Args:
        law: of `norm_growth`.
        letters: LaTeX by name of hyper-parameters and vectors, such as {"lr": r"\alpha", "w":
            r"\theta", "m": "v"}; the other names have the paper's letters.

    Raises:
        ValueError: two names would have one letter.

    Example:
        >>> print(law_to_latex(norm_growth("sgdp"), {"w": r"\theta"}).splitlines()[1])
        \begin{equation*}
    """
    formulas = [law.law, sp.Eq(*map(sp.Symbol, ("s", "w'"))), *law.recursion.values()]
    hypers = law.step.traced.symbols.values()
    table = choose_latex([*formulas, *hypers, law.drive.formula], letters)
    lines = [f"The norm under {escape_latex(law.name)}, where ${_step(law, table)}$:"]
    lines += ["\\begin{equation*}", law.latex(letters), "\\end{equation*}"]
    lines += [f"{_status(law)} It assumes:", "\\begin{itemize}"]
    lines += [f"  \\item {_hypothesis(each, table)}" for each in law.assumptions]
    return "\n".join([*lines, "\\end{itemize}", ""])


def _step(law: NormGrowth, table: Letters) -> str:
    """w' = (1 - kappa) w + s with the drive s."""
    if law.constant:
        return latex(law.law, table)
    w, s = sp.Symbol("w"), sp.Symbol("s")
    step = sp.Eq(sp.Symbol("w'"), (1 - law.kappa) * w + s, evaluate=False)
    drive = sp.Eq(s, law.drive.formula, evaluate=False)
    return f"{latex(step, table)},\\; {latex(drive, table)}"


def _status(law: NormGrowth) -> str:
    if law.constant:
        return "Derived from the code of the step."
    shown = "The first line is an identity in $s$"
    if law.open_because:
        return f"{shown}; the cross term is open: {escape_latex(law.open_because)}."
    shown += "; the cross term and its recursion are derived from the code of the step"
    if law.closed_form() is not None and not any(law.induction().values()):
        shown += "; the closed form is proved by induction"
    return f"{shown}."


def _hypothesis(text: str, table: Letters) -> str:
    """A hypothesis as text, in which intervals and inner products are formulas."""
    if interval := re.fullmatch(r"(\w+) in (.+)", text):
        high = interval[2].replace("inf", r"\infty").replace("∞", r"\infty")
        return f"${latex(sp.Symbol(interval[1]), table)} \\in {high}$"
    if product := re.fullmatch(r"(<\w+,\w+>|\|\w+\|\^2) = (\w+)", text):
        return f"${latex(sp.Symbol(product[1]), table)} = {product[2]}$"
    return escape_latex(text)
