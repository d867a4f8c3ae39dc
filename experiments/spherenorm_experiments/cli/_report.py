"""`report`, `results` and `export`: what the runs of a store say, as a page and files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from spherenorm.support import one_line, unknown_name
from spherenorm_experiments.cli._options import (
    FAILED,
    NOTE,
    AsJson,
    Out,
    Studies,
    answer,
    as_text,
    console,
    existing_store,
    say,
    say_error,
    tell_unusable,
    usage_errors,
)
from spherenorm_experiments.store import write_file

if TYPE_CHECKING:
    from spherenorm_experiments.sections import Section

LISTED = 12
"""More claims than these are counted on a terminal; the page has them."""

COMMENTS = {"csv": "# {}", "latex": "% {}", "markdown": "### {}"}
"""The line above a table, by format."""

RESULTS = Path("experiments/results")
"""In a checkout, from which the site takes them."""


def report(
    studies: Studies = None,
    out: Out = Path("runs"),
    file: Annotated[
        Path | None, typer.Option(help="The page; report.html in the store by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page: the scorecard of claims, and the tables and pictures."""
    found, left = _read_sections(studies or (), out)
    problems = show_page(found, file or out / "report.html", as_json)
    if left or problems:
        raise typer.Exit(FAILED)


def show_page(found: Sequence[Section], path: Path, as_json: bool = False) -> list[str]:
    """Write a page, say what its claims are and where it lies.

    Returns:
        The problems of its sections, which are said too.
    """
    from spherenorm_experiments.compared import is_comparison, write_comparison
    from spherenorm_experiments.page import write_report

    if is_comparison(found) and not as_json:
        shown = write_comparison(found[0], path)
        say(escape(f"{shown.title}. {shown.about}"))
        if shown.table.rows:
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
        _show_claims(found, claims)
        say(f"page: {path}")
        for note in notes:
            say_error(note, NOTE)
    for problem in problems:
        say_error(problem)
    return problems


def _show_claims(found: Sequence[Section], claims: Sequence[Mapping[str, Any]]) -> None:
    """Print the headlines of sections that have one, and the claims, or how many there are."""
    from spherenorm_experiments.claims import AGAINST, FOR
    from spherenorm_experiments.sections import groups

    for section in found:
        with suppress(Exception):  # of a study that raises the page says so
            table = section.study.headline(section.results)
            if table is not None:
                console.print(as_text(table, f"{section.label}: {table.title}"))
    if len(claims) > LISTED:
        for group in groups(claims):
            say(f"[bold]{escape(group.title)}[/bold]: {group.listed}")
        return
    for claim in claims:
        verdict = claim["verdict"]
        color = "green" if verdict in FOR else "red" if verdict in AGAINST else "yellow"
        numbers = "; ".join(filter(None, [claim["ours"], claim["detail"]]))
        say(f"[{color}]{verdict:>15}[/{color}]  {claim['study']}: {escape(claim['text'])}")
        say(f"{'':17}{escape(numbers)}", style="dim")


def results(
    studies: Studies = None,
    out: Out = Path("runs"),
    into: Annotated[Path, typer.Option(help="The folder of the pages.")] = RESULTS,
) -> None:
    """Write the results of stored runs in Markdown: an index, and a page for each study."""
    from spherenorm_experiments.paper.pages import write_results

    found, left = _read_sections(studies or (), out)
    index, *pages = write_results(found, into)
    say(f"results: {index}, and {len(pages)} pages of studies beside it")
    if left:
        raise typer.Exit(FAILED)


def export(
    studies: Studies = None,
    form: Annotated[str, typer.Option("--format", help="csv, latex, markdown or parquet.")] = "csv",
    out: Out = Path("runs"),
    into: Annotated[
        Path | None,
        typer.Option(help="The folder of parquet files.", show_default="exports in the store"),
    ] = None,
) -> None:
    """Export the tables and claims of studies, made of their numbers.

    CSV, LaTeX and Markdown are printed; Parquet files are written to a folder.
    """
    from spherenorm_experiments.errors import require_extra
    from spherenorm_experiments.exports import FORMATS, claims_table, to_parquet

    with usage_errors():
        if form not in (every := (*FORMATS, "parquet")):
            raise unknown_name("format", form, every)
        if form == "parquet":
            require_extra("pyarrow", "--format parquet")
    found, left = _read_sections(studies or (), out)
    for section in found:
        for note in section.notes:
            say_error(f"{section.label}: {note}", NOTE)
        text = ""
        try:
            tables = section.study.every_table(section.results)
            for number, table in enumerate([*tables, claims_table(section.decisions)], 1):
                title = f"{section.label}: {table.title}"
                if form in FORMATS:
                    text += f"{COMMENTS[form].format(title)}\n{FORMATS[form](table)}\n"
                else:
                    name = re.sub(r"[^\w.=-]+", "-", f"{section.label}-{number}-{table.title}")
                    path = (into or out / "exports") / f"{name[:120].strip('-')}.parquet"
                    write_file(path, to_parquet(table))
                    say(str(path))
        except Exception as error:  # a user's study may raise anything
            left, text = True, ""
            say_error(f"{section.label}: {one_line(error)}")
        print(text, end="")  # not in the `try`: a reader such as `head` may close the pipe
    if left:
        raise typer.Exit(FAILED)


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
        wanted = {name if name in here else find_study(name).name for name in studies}
    found = sections(store, requests, wanted)
    left = tell_unusable(unusable)
    with usage_errors():
        if not found:
            lack = f"the store {out} holds no such study"
            raise ValueError(f"{lack}; `spherenorm run` comes first")
    return found, left
