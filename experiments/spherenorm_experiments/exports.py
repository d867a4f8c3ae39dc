"""Exports: tables as CSV, Parquet, LaTeX and Markdown, from their numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from spherenorm_experiments.claims import Decision
from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.tables import Cell, Table

ASPECTS: dict[str, Callable[[Cell], Any]] = {
    "spread": lambda cell: cell.spread,
    "low": lambda cell: cell.interval and cell.interval[0],
    "high": lambda cell: cell.interval and cell.interval[1],
    "seeds": lambda cell: cell.n or None,
    "diverged": lambda cell: cell.diverged or None,
}
"""The numbers of a cell beside its own, by the name that their column has behind the heading."""


def frame_of(table: Table) -> pd.DataFrame:
    """The numbers of a table in full: the columns that any of its cells has, as "score: low".

    A column with a text in it holds texts. A heading that is there twice has its number behind it.
    """
    columns: dict[str, list[Any]] = {}
    for number, column in enumerate(table.columns):
        cells, name = [row[number] for row in table.rows], str(column)
        name = f"{name} ({number + 1})" if name in columns else name
        values = [each.value if isinstance(each.value, str) else each.number for each in cells]
        texts = any(isinstance(value, str) for value in values)
        columns[name] = [str(x) if texts and x is not None else x for x in values]
        for aspect, read in ASPECTS.items():
            if any(read(each) is not None for each in cells):
                columns[f"{name}: {aspect}"] = [read(each) for each in cells]
    return pd.DataFrame(columns, dtype=object)


def to_csv(table: Table) -> str:
    """The table as CSV, numbers in full precision."""
    return str(frame_of(table).to_csv(index=False, lineterminator="\n"))


def to_parquet(table: Table) -> bytes:
    """The table in Parquet; extra `data`.

    Raises:
        MissingExtraError: pyarrow is missing; it is a ValueError too.
    """
    require_extra("pyarrow", "the format parquet")
    frame, buffer = frame_of(table), io.BytesIO()
    for name in frame:
        if not any(isinstance(value, str) for value in frame[name]):
            frame[name] = frame[name].astype(float)
    frame.to_parquet(buffer, engine="pyarrow")
    return buffer.getvalue()


def to_latex(table: Table) -> str:
    """The table as a LaTeX `tabular` with the rules of `booktabs`, numbers as they are shown."""
    return f"% {table.title}\n{_shown(table).to_latex(index=False, escape=True)}"


def to_markdown(table: Table) -> str:
    """The table in Markdown, numbers as they are shown."""
    shown = _shown(table)
    head, *body = [
        [text.replace("|", r"\|") for text in line]
        for line in ([*shown], *shown.to_numpy().tolist())
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(table: Table) -> pd.DataFrame:
    rows = [[str(cell) for cell in row] for row in table.rows]
    return pd.DataFrame(rows, columns=[str(column) for column in table.columns])


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
            *(each.claim.name, each.claim.text, each.kind, str(each.claim.cites), each.verdict),
            Cell(each.p, ".2g", missing=""),
            each.numbers[0] if each.numbers else "",
            *(each.ours, each.claim.paper, Cell(each.seeds, "d"), each.detail),
        )
        for each in decisions
    ]
    return Table("Claims", columns, rows)
