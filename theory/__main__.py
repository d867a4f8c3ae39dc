"""`python -m theory [RECIPE ...]`: derive, prove and check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from theory.report import Job, Row, paper, recipe_jobs, to_latex, to_markdown

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()


@app.command()
def main(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Names or module:function; none: the paper's statements.", show_default=False)
    ] = None,
    hold: Annotated[list[str] | None, typer.Option("--set", help="Hold a hyper-parameter: NAME=VALUE.", show_default=False)] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the report as LaTeX.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown.")] = None,
) -> None:
    """How does the norm of a scale-invariant weight grow under a recipe? Derived from its code, proved and checked."""
    torch.set_num_threads(1)  # small tensors: more threads only wait
    sys.path.insert(0, str(Path.cwd()))
    try:
        given = dict(_setting(text) for text in hold or [])
        jobs = [job for recipe in recipes or [] for job in recipe_jobs(recipe, **given)] or paper()
    except (ValueError, TypeError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(2) from None
    rows = _run(jobs)
    for section in dict.fromkeys(row.section for row in rows):
        console.print(_table(section, [row for row in rows if row.section == section]))
    for path, render in ((latex, to_latex), (markdown, to_markdown)):
        if path is not None:
            unfinished = path.with_name(f".{path.name}.unfinished")
            unfinished.write_text(render(rows))
            unfinished.replace(path)
            console.print(f"wrote {path}")
    if not all(row.good for row in rows):
        raise typer.Exit(1)


def _setting(text: str) -> tuple[str, float | bool | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
    if value in ("True", "False", "true", "false"):
        return name, value.lower() == "true"
    try:
        return name, float(value)
    except ValueError:
        return name, value


def _run(jobs: list[Job]) -> list[Row]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(jobs))
        for job in jobs:
            progress.update(task, description=job.name)
            rows += job.rows()
            progress.advance(task)
    return rows


def _table(section: str, rows: list[Row]) -> Table:
    table = Table(title=section, title_justify="left", show_lines=True)
    table.add_column("statement", overflow="fold", ratio=2)
    table.add_column("formula", overflow="fold", ratio=4)
    table.add_column("status", overflow="fold", ratio=5)
    for row in rows:
        table.add_row(row.name, escape(row.formula), f"[{'green' if row.good else 'red'}]{escape(row.status)}[/]")
    return table


if __name__ == "__main__":
    app()
