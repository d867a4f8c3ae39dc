"""Rows of the report, and the jobs that make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Job", "Row", "by_section"]


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
