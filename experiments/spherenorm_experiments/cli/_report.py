"""`report`, `results` and `export`: what the runs of a store say, as a page, files and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from spherenorm_experiments.cli._console import (
    FAILED,
    NOTE,
    answer,
    console,
    say,
    say_error,
    store_errors,
    tell_unusable,
    usage_errors,
)
from spherenorm_experiments.cli._options import AsJson, Out, existing_store
from spherenorm_experiments.store import write_file

if TYPE_CHECKING:
    from spherenorm_experiments.sections import Section
    from spherenorm_experiments.tables import Table

LISTED = 12
"""More claims than these are counted on a terminal; the page has them."""

COMMENTS = {"csv": "# {}", "latex": "% {}", "markdown": "### {}"}
"""The line above a table, by format."""

RESULTS = Path("experiments/results")
"""In a checkout, from which the site takes them."""

COLUMN = 5.5
"""Inches: the text width of the usual conference styles."""


def report(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    out: Out = Path("runs"),
    file: Annotated[
        Path | None, typer.Option(help="The page; report.html in the store by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page: the scorecard of claims, and the tables and pictures."""
    found, left = _read_sections(studies or (), out)
    path = file or out / "report.html"
    with store_errors() if file is None else usage_errors():
        problems = show_page(found, path, as_json)
    if left or problems:
        raise typer.Exit(FAILED)


def show_page(found: Sequence[Section], path: Path, as_json: bool = False) -> list[str]:
    """Write a page, show the headlines, say what its claims are and where it lies.

    Returns:
        The problems of its sections, which are said too.
    """
    from spherenorm_experiments.cli._progress import as_text, show_headlines
    from spherenorm_experiments.compared import is_comparison, write_comparison
    from spherenorm_experiments.page import write_report
    from spherenorm_experiments.sections import groups

    if is_comparison(found) and not as_json:
        shown = write_comparison(found[0], path)
        say(escape(f"{shown.title}. {shown.about}"))
        console.print(as_text(shown.table, ""))
        for sentence in shown.sentences:
            say(escape(str(sentence)))
        for note in found[0].notes:
            say_error(note, NOTE)
        say(f"page: {path}")
        return []
    claims, problems = write_report(found, path)
    notes = [f"{section.label}: {note}" for section in found for note in section.notes]
    if as_json:
        answer({"page": str(path), "claims": claims, "notes": notes})
    else:
        show_headlines(found)
        if len(claims) > LISTED:
            for group in groups(claims):
                say(f"[bold]{escape(group.title)}[/bold]: {group.listed}")
        else:
            for claim in claims:
                _show_claim(claim)
        say(f"page: {path}")
        for note in notes:
            say_error(note, NOTE)
    for problem in problems:
        say_error(problem)
    return problems


def _show_claim(claim: Mapping[str, Any]) -> None:
    """Print a claim, our numbers, and what a reader needs beside them."""
    from spherenorm_experiments.claims import AGAINST, FOR

    verdict = claim["verdict"]
    color = "green" if verdict in FOR else "red" if verdict in AGAINST else "yellow"
    numbers = "; ".join(filter(None, [claim["ours"], claim["detail"]]))
    say(f"[{color}]{verdict:>15}[/{color}]  {claim['study']}: {escape(claim['text'])}")
    say(f"{'':17}{escape(numbers)}", style="dim")


def results(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    out: Out = Path("runs"),
    into: Annotated[Path, typer.Option(help="The folder of the pages.")] = RESULTS,
) -> None:
    """Write the results of stored runs in Markdown: an index, and a page for each study."""
    from spherenorm_experiments.paper.pages import write_results

    found, left = _read_sections(studies or (), out)
    with usage_errors():
        index, *pages = write_results(found, into)
    say(f"results: {index}, and {len(pages)} pages of studies beside it")
    if left:
        raise typer.Exit(FAILED)


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
    width: Annotated[float, typer.Option(help="Of a picture, in inches.", min=1, max=50)] = COLUMN,
) -> None:
    """Export the tables and claims of studies, made of their numbers, or their pictures.

    CSV, LaTeX and Markdown are printed; Parquet files and pictures are written to a folder.
    """
    from spherenorm.support import one_line, unknown_name
    from spherenorm_experiments.drawings import DRAWINGS, require_chrome
    from spherenorm_experiments.errors import require_extra
    from spherenorm_experiments.exports import FORMATS

    with usage_errors():
        if form not in (every := (*FORMATS, "parquet", *DRAWINGS)):
            raise unknown_name("format", form, every)
        if form == "parquet":
            require_extra("pyarrow", "--format parquet")
        if form in DRAWINGS:
            require_chrome(f"--format {form}")
    found, left = _read_sections(studies or (), out)
    for section, name in zip(found, _file_names(found), strict=True):
        for note in section.notes:
            say_error(f"{section.label}: {note}", NOTE)
        text = ""
        try:
            if form in FORMATS:
                text = _text(section, form)
            else:
                _write(section, form, into or out / "exports", name, width)
        except Exception as error:  # a user's study may raise anything
            left = True
            say_error(f"{section.label}: {one_line(error)}")
        print(text, end="")  # not in the `try`: a reader such as `head` may close the pipe
    if left:
        raise typer.Exit(FAILED)


def _text(section: Section, form: str) -> str:
    from spherenorm_experiments.exports import FORMATS

    parts = (
        f"{COMMENTS[form].format(f'{section.label}: {table.title}')}\n{FORMATS[form](table)}\n"
        for table in _tables(section)
    )
    return "".join(parts)


def _write(section: Section, form: str, folder: Path, name: str, width: float) -> None:
    from spherenorm_experiments.drawings import DRAWINGS, write_drawings
    from spherenorm_experiments.exports import to_parquet

    if form in DRAWINGS:
        pictures = section.study.pictures(section.results)
        paths = write_drawings(pictures, form, width, folder, name)
    else:
        paths = []
        for number, table in enumerate(list(_tables(section)), 1):
            paths.append(folder / f"{name}-{number}-{_file_name(table.title)}.parquet")
            write_file(paths[-1], to_parquet(table))
    for path in paths:
        say(str(path))


def _tables(section: Section) -> Iterator[Table]:
    from spherenorm_experiments.exports import claims_table

    yield from section.study.every_table(section.results)
    yield claims_table(section.decisions)


def _file_names(found: Sequence[Section]) -> list[str]:
    """A name for each section; two comparisons on one task have one label and are numbered."""
    names = [_file_name(section.label) for section in found]
    return [
        name if names.count(name) == 1 else f"{name}-no{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")[:80]


def _read_sections(studies: Sequence[str], out: Path) -> tuple[list[Section], bool]:
    """The sections of these studies, or of all that were run if none is named.

    A wrong name, and a store without such a study, end the command.

    Returns:
        The sections, and True if a request cannot be read.
    """
    from spherenorm_experiments.comparing import find_study
    from spherenorm_experiments.plan import read_requests
    from spherenorm_experiments.sections import names_of, sections

    with usage_errors():
        store = existing_store(out)
    requests, unusable = read_requests(store)
    here = names_of(requests)
    with usage_errors():
        wanted = {name if name in here else find_study(name).name for name in studies}
    found = sections(store, requests, wanted)
    left = tell_unusable(unusable)
    with usage_errors():
        if not found:
            lack = f"the store {out} holds no such study"
            raise ValueError(f"{lack}; `spherenorm run` comes first")
    return found, left
