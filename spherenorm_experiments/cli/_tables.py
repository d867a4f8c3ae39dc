"""Tables on a terminal."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm.support import one_line
from spherenorm_experiments.analysis import Table
from spherenorm_experiments.cli._console import console, say_error
from spherenorm_experiments.study import Campaign

__all__ = ["show_tables"]


def show_tables(campaign: Campaign) -> bool:
    """Print the tables of a campaign's studies.

    Returns:
        True if any study raised.
    """
    raised = False
    for study in campaign.studies:
        try:
            tables = study.every_table(campaign.trials(study)[1])
        except Exception as error:  # the other studies' tables are still to be shown
            raised, tables = True, []
            say_error(f"{study.name}: no tables: {one_line(error)}")
        for table in tables:
            console.print(_as_text(table, f"{study.name}: {table.title}"))
    return raised


def _as_text(table: Table, title: str) -> RichTable:
    """The table, without the paper's columns where the terminal is too narrow for them."""
    rows = [[str(cell) for cell in row] for row in table.rows]
    headings = [str(column) for column in table.columns]
    width = sum(max(map(len, column)) + 2 for column in zip(headings, *rows, strict=True))
    shown = [
        i for i, column in enumerate(table.columns) if width < console.width or not column.paper
    ]
    caption = escape(table.about) or None
    text = RichTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    for i in shown:
        text.add_column(escape(headings[i]), justify="right" if i else "left", overflow="fold")
    for row in rows:
        text.add_row(*(escape(row[i]) for i in shown))
    return text
