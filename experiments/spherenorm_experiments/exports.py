"""Exports: tables as CSV, Parquet, LaTeX and Markdown, from their numbers; runs as event files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from spherenorm_experiments.claims import Decision
from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.tables import Cell, Table


def to_csv(table: Table) -> str:
    """The table as CSV: numbers in full precision, below a line with their columns.

    A spread, the ends of an interval, the number of seeds and that of diverged runs have columns of
    their own, next to the number's, where a table has them.
    """
    columns = _columns(table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([heading for heading, _ in columns])
    writer.writerows(zip(*(values for _, values in columns), strict=True))
    return text.getvalue()


def to_parquet(table: Table) -> bytes:
    """The table in Parquet, with the columns that it has in CSV; extra `data`.

    A column with a text in it holds texts, another one numbers. A heading that is there twice has
    its number behind it.

    Raises:
        MissingExtraError: pyarrow is missing; it is a ValueError too.
    """
    arrow = require_extra("pyarrow", "the format parquet")
    named: dict[str, Any] = {}
    for number, (heading, values) in enumerate(_columns(table), 1):
        if any(isinstance(value, str) for value in values):
            column = arrow.array([None if v is None else str(v) for v in values], arrow.string())
        else:
            numbers = [None if v is None else float(v) for v in values]
            column = arrow.array(numbers, arrow.float64())
        named[f"{heading} ({number})" if heading in named else heading] = column
    buffer = io.BytesIO()
    parquet = require_extra("pyarrow.parquet", "the format parquet")
    parquet.write_table(arrow.table(named), buffer)
    return buffer.getvalue()


def to_latex(table: Table) -> str:
    """The table as a LaTeX `tabular` with the rules of `booktabs`, numbers as they are shown."""
    head, *body = (
        rf"{' & '.join(_latex(str(cell)) for cell in row)} \\"
        for row in (table.columns, *table.rows)
    )
    lines = [
        f"% {table.title}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_markdown(table: Table) -> str:
    """The table in Markdown, numbers as they are shown."""

    escaped = r"\|"  # no backslash within an f-string's braces
    head, *body = (
        f"| {' | '.join(str(cell).replace('|', escaped) for cell in row)} |\n"
        for row in (table.columns, *table.rows)
    )
    return "".join([head, f"| --- |{' ---: |' * (len(table.columns) - 1)}\n", *body])


FORMATS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "latex": to_latex,
    "markdown": to_markdown,
}


def claims_table(decisions: Sequence[Decision]) -> Table:
    """Claims as a table. Of several numbers in a claim, its first one has a column of its own."""
    columns = (
        *("name", "claim", "kind", "source", "verdict", "p"),
        *("number", "ours in words", "paper", "seeds", "detail"),
    )
    rows = [
        (
            decision.claim.name,
            decision.claim.text,
            decision.kind,
            str(decision.claim.cites),
            decision.verdict,
            Cell(decision.p, ".2g", missing=""),
            decision.numbers[0] if decision.numbers else "",
            decision.ours,
            decision.claim.paper,
            Cell(decision.seeds, "d"),
            decision.detail,
        )
        for decision in decisions
    ]
    return Table("Claims", columns, rows)


_ASPECTS: dict[str, Callable[[Cell], object]] = {
    "": lambda cell: cell.value if isinstance(cell.value, str) else cell.number,
    "spread": lambda cell: cell.spread,
    "low": lambda cell: cell.interval and cell.interval[0],
    "high": lambda cell: cell.interval and cell.interval[1],
    "seeds": lambda cell: cell.n or None,
    "diverged": lambda cell: cell.diverged or None,
}
"""The numbers of a cell, by the name that their column has beside the heading."""


def _columns(table: Table) -> list[tuple[str, list[Any]]]:
    """The headings and values of a table: for each column its value, and the other numbers that
    any of its cells has.
    """
    named = []
    for i, column in enumerate(table.columns):
        for aspect, read in _ASPECTS.items():
            values = [read(row[i]) for row in table.rows]
            if not aspect or any(value is not None for value in values):
                named.append((f"{column}{f': {aspect}' if aspect else ''}", values))
    return named


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "‖": r"$\|$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "δ": r"$\delta$",
    "ν": r"$\nu$",
    "τ": r"$\tau$",
    "Φ": r"$\Phi$",
    "¹": r"$^{1}$",
    "ˡᵃˢᵗ": r"$^{\mathrm{last}}$",
}


def _latex(text: str) -> str:
    pattern = "|".join(map(re.escape, _LATEX))
    return re.sub(pattern, lambda match: _LATEX[match.group()], text)
