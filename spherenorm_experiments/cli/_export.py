"""`export`: tables and claims as CSV, LaTeX, Markdown or Parquet, and pictures as SVG or PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from spherenorm.support import one_line, unknown_name
from spherenorm_experiments.analysis import Table
from spherenorm_experiments.cli._console import FAILED, NOTE, say, say_error, usage_errors
from spherenorm_experiments.cli._options import Out
from spherenorm_experiments.cli._requests import read_sections
from spherenorm_experiments.core import require_extra
from spherenorm_experiments.engine import write_file
from spherenorm_experiments.report.page import DRAWINGS, Section, require_chrome, write_drawings
from spherenorm_experiments.report.pictures import FORMATS, claims_table, to_parquet

__all__ = ["export"]

COMMENTS = {"csv": "# {}", "latex": "% {}", "markdown": "### {}"}
"""The line above a table, by format."""

EVERY_FORMAT = (*FORMATS, "parquet", *DRAWINGS)

COLUMN = 5.5
"""Inches: the text width of the usual conference styles."""


def export(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="csv, latex or markdown; parquet; svg or pdf, of pictures."),
    ] = "csv",
    out: Out = Path("runs"),
    into: Annotated[
        Path | None,
        typer.Option(
            help="The folder of parquet, svg and pdf files.", show_default="exports in the store"
        ),
    ] = None,
    width: Annotated[float, typer.Option(help="Of a picture, in inches.")] = COLUMN,
) -> None:
    """Export the tables and claims of studies, made of their numbers, or their pictures.

    CSV, LaTeX and Markdown are printed; Parquet files and pictures are written to a folder.
    """
    with usage_errors():
        if form not in EVERY_FORMAT:
            raise unknown_name("format", form, EVERY_FORMAT)
        if not 1 <= width <= 50:
            raise ValueError(f"--width {width:g}: give inches, from 1 to 50")
        if form == "parquet":
            require_extra("pyarrow", "--format parquet")
        if form in DRAWINGS:
            require_chrome(f"--format {form}")
    found, left = read_sections(studies or (), out)
    for section, name in zip(found, _file_names(found), strict=True):
        for note in section.notes:
            say_error(f"{section.label}: {note}", NOTE)
        try:
            if form in FORMATS:
                _print(section, form)
            else:
                _write(section, form, into or out / "exports", name, width)
        except Exception as error:  # a user's study may raise anything
            left = True
            say_error(f"{section.label}: {one_line(error)}")
    if left:
        raise typer.Exit(FAILED)


def _print(section: Section, form: str) -> None:
    for table in list(_tables(section)):  # all or none of them
        print(COMMENTS[form].format(f"{section.label}: {table.title}"))
        print(FORMATS[form](table))


def _write(section: Section, form: str, folder: Path, name: str, width: float) -> None:
    if form in DRAWINGS:
        pictures = section.study.every_picture(section.results)
        paths = write_drawings(pictures, form, width, folder, name)
    else:
        paths = []
        for number, table in enumerate(list(_tables(section)), 1):
            paths.append(folder / f"{name}-{number}-{_file_name(table.title)}.parquet")
            write_file(paths[-1], to_parquet(table))
    for path in paths:
        say(str(path))


def _tables(section: Section) -> Iterator[Table]:
    yield from section.study.every_table(section.results)
    yield claims_table(section.claims())


def _file_names(found: Sequence[Section]) -> list[str]:
    """A name for each section; two comparisons on one task have one label and are numbered."""
    names = [_file_name(section.label) for section in found]
    return [
        name if names.count(name) == 1 else f"{name}-no{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")[:80]
