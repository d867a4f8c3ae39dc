"""Exports: tables as CSV, LaTeX and Markdown, from their numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from experiments.results import Cell, Claim, Table

__all__ = ["FORMATS", "claims_table", "to_csv", "to_latex", "to_markdown"]


def to_csv(table: Table) -> str:
    """The table as CSV: numbers in full precision, below a line with their columns.

    A spread, the ends of an interval, the number of seeds and that of diverged runs have columns of
    their own, next to the number's, where a table has them.
    """
    aspects = [_aspects([row[i] for row in table.rows]) for i in range(len(table.columns))]
    header = [
        f"{column}{f': {aspect}' if aspect else ''}"
        for column, names in zip(table.columns, aspects, strict=True)
        for aspect in names
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        writer.writerow(
            _ASPECTS[aspect](cell)
            for cell, names in zip(row, aspects, strict=True)
            for aspect in names
        )
    return text.getvalue()


def to_latex(table: Table) -> str:
    """The table as a LaTeX `tabular` with the rules of `booktabs`, numbers as they are shown."""
    head = " & ".join(_latex(str(column)) for column in table.columns)
    body = [" & ".join(_latex(str(cell)) for cell in row) for row in table.rows]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *(rf"{row} \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([f"% {table.title}", *lines]) + "\n"


def to_markdown(table: Table) -> str:
    """The table in Markdown, numbers as they are shown."""

    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', escaped) for cell in cells)} |"

    escaped = r"\|"

    rules = ["---", *["---:"] * (len(table.columns) - 1)]
    return "\n".join([line(table.columns), line(rules), *map(line, table.rows)]) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {
    "csv": to_csv,
    "latex": to_latex,
    "markdown": to_markdown,
}


def claims_table(claims: Sequence[Claim]) -> Table:
    """Claims as a table. Of several numbers in a claim, its first one has a column of its own."""
    columns = (
        *("claim", "kind", "source", "verdict", "p"),
        *("number", "ours in words", "paper", "seeds", "detail"),
    )
    rows = [
        (
            claim.text,
            claim.kind,
            str(claim.basis),
            claim.verdict,
            Cell(claim.p, ".2g", missing=""),
            claim.numbers[0] if claim.numbers else "",
            claim.ours,
            claim.paper,
            Cell(claim.seeds, "d"),
            claim.detail,
        )
        for claim in claims
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


def _aspects(cells: Sequence[Cell]) -> list[str]:
    """The aspects that any cell of a column has; always the value."""
    return [
        aspect
        for aspect, read in _ASPECTS.items()
        if not aspect or any(read(cell) is not None for cell in cells)
    ]


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
    return re.sub(pattern, lambda found: _LATEX[found.group()], text)
