"""`results`: the page of results in Markdown, from the runs of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spherenorm_experiments.cli._console import FAILED, say, usage_errors
from spherenorm_experiments.cli._options import Out
from spherenorm_experiments.cli._requests import read_sections
from spherenorm_experiments.report.page import write_results

__all__ = ["results"]


def results(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all that were run by default.")
    ] = None,
    out: Out = Path("runs"),
    file: Annotated[Path, typer.Option(help="The page.")] = Path("docs/results.md"),
) -> None:
    """Write the results of stored runs in Markdown, with versions and hashes."""
    found, left = read_sections(studies or (), out)
    with usage_errors():
        write_results(found, file)
    say(f"results: {file}")
    if left:
        raise typer.Exit(FAILED)
