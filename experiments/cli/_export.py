"""`export`: the tables and claims of studies as CSV, LaTeX or Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli._console import FAILED, say_error, usage_errors
from experiments.cli._options import Out
from experiments.cli._requests import read_sections
from experiments.core import one_line
from experiments.page import Section
from experiments.pictures import FORMATS, claims_table
from experiments.results import Table
from spherenorm.support import unknown_name

__all__ = ["export"]

COMMENTS = {"csv": "# {}", "latex": "% {}", "markdown": "### {}"}
"""The line above a table, by format."""


def export(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="csv, latex or markdown.")] = "csv",
    out: Out = Path("runs"),
) -> None:
    """Print the tables and claims of studies, made of their numbers."""
    with usage_errors():
        if form not in FORMATS:
            raise unknown_name("format", form, FORMATS)
    found, left = read_sections(studies or (), out)
    for section in found:
        try:
            tables = list(_tables(section))
        except Exception as error:  # a user's study may raise anything
            left = True
            say_error(f"{section.label}: {one_line(error)}")
            continue
        for table in tables:
            print(COMMENTS[form].format(f"{section.label}: {table.title}"))
            print(FORMATS[form](table))
    if left:
        raise typer.Exit(FAILED)


def _tables(section: Section) -> Iterator[Table]:
    yield from section.study.every_table(section.results)
    yield claims_table(section.claims())
