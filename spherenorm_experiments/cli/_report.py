"""`report`: the page of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from spherenorm_experiments.cli._console import (
    FAILED,
    NOTE,
    answer,
    say,
    say_error,
    store_errors,
    usage_errors,
)
from spherenorm_experiments.cli._options import AsJson, Out
from spherenorm_experiments.cli._requests import read_sections
from spherenorm_experiments.report.page import Section, write_report

__all__ = ["report", "show_page"]

COLORS = {
    **dict.fromkeys(("reproduced", "holds"), "green"),
    **dict.fromkeys(("not reproduced", "does not hold"), "red"),
    "equivalent": "blue",
    "inconclusive": "yellow",
}


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
    found, left = read_sections(studies or (), out)
    path = file or out / "report.html"
    with store_errors() if file is None else usage_errors():
        problems = show_page(found, path, as_json)
    if left or problems:
        raise typer.Exit(FAILED)


def show_page(found: Sequence[Section], path: Path, as_json: bool = False) -> list[str]:
    """Write a page, say what its claims are and where it lies.

    Returns:
        The problems of its sections, which are said too.
    """
    claims, problems = write_report(found, path)
    notes = [f"{section.label}: {note}" for section in found for note in section.notes]
    if as_json:
        answer({"page": str(path), "claims": claims, "notes": notes})
    else:
        for claim in claims:
            color, verdict = COLORS[claim["verdict"]], claim["verdict"]
            say(f"[{color}]{verdict:>15}[/{color}]  {claim['study']}: {escape(claim['text'])}")
            say(f"{'':17}{escape(_numbers(claim))}", style="dim")
        say(f"page: {path}")
        for note in notes:
            say_error(note, NOTE)
    for problem in problems:
        say_error(problem)
    return problems


def _numbers(claim: Mapping[str, Any]) -> str:
    """Our numbers, and what a reader needs beside them."""
    return "; ".join(filter(None, [claim["ours"], claim["detail"]]))
