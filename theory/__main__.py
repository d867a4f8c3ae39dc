"""`python -m theory [RECIPE ...]`: derive, prove and check."""

from __future__ import annotations

import ast
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import TextWrapper
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from theory.report import Job, Row, paper, recipe_jobs, to_latex, to_markdown

SET = "Hold a hyper-parameter: NAME=VALUE, as in momentum=0.9, nesterov=true or betas=(0.9, beta2), where beta2 stays a symbol."

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)


@app.command()
def main(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names or module:function; none: the paper's statements.", show_default=False
        ),
    ] = None,
    hold: Annotated[list[str] | None, typer.Option("--set", help=SET, show_default=False)] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the report as LaTeX.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown.")] = None,
) -> None:
    """How does the norm of a scale-invariant weight grow under a recipe? Derived from its code, proved and checked."""
    torch.set_num_threads(1)  # small tensors: more threads only wait
    sys.path.insert(0, str(Path.cwd()))
    reports = [
        (path, render)
        for path, render in ((latex, to_latex), (markdown, to_markdown))
        if path is not None
    ]
    try:
        given = dict(_setting(text) for text in hold or [])
        if given and not recipes:
            raise ValueError(
                "--set holds a hyper-parameter of a recipe: name one, as in `python -m theory sgdp --set momentum=0.9`"
            )
        for path, _ in reports:
            _check_output(path)
        jobs = [job for recipe in recipes or [] for job in recipe_jobs(recipe, **given)] or paper()
    except (ValueError, TypeError) as error:
        _refuse(" ".join(str(error).split()))
    rows = _run(jobs)
    for section in dict.fromkeys(row.section for row in rows):
        console.print(_table(section, [row for row in rows if row.section == section]))
    for path, render in reports:
        try:
            _write(path, render(rows))
        except OSError as error:
            _refuse(f"cannot write {path}: {error.strerror}")
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    if not all(row.good for row in rows):
        raise typer.Exit(1)


def _refuse(message: str) -> NoReturn:
    errors.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def _check_output(path: Path) -> None:
    """Before minutes of computing, not after."""
    folder = path.parent
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: the folder {folder} is not writable")


def _write(path: Path, text: str) -> None:
    """All or nothing: an interrupted run leaves the last report as it was."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
    try:
        return name.strip(), _literal(ast.parse(value.strip(), mode="eval").body)
    except (ValueError, SyntaxError):
        return name.strip(), value


def _literal(node: ast.expr) -> Any:
    """A Python literal in which a name is a string, or what JSON means by it: (0.9, beta2), [channel, layer], true."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_literal(entry) for entry in node.elts)
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "null": None}.get(node.id, node.id)
    return ast.literal_eval(node)


def _run(jobs: list[Job]) -> list[Row]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    rows: list[Row] = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(jobs))
        for job in jobs:
            progress.update(task, description=escape(job.name))
            rows += job.run()
            progress.advance(task)
    return rows


class _Wrapper(TextWrapper):
    """Breaks lines at spaces, and formulas after an operator or an opening bracket too, not inside of a name."""

    wordsep_re = re.compile(r"(\s+)|(?<=[*/(:])(?=[^\s*/])")


@dataclass(frozen=True)
class _Cell:
    """Text that is no markup, broken where a formula may be."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(_Wrapper(options.max_width).wrap(self.text)), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(
            max(map(len, _Wrapper(1, break_long_words=False).wrap(self.text)), default=0),
            len(self.text),
        )


def _table(section: str, rows: list[Row]) -> Table:
    table = Table(title=escape(section), title_justify="left", show_lines=True)
    table.add_column("statement", ratio=2)
    table.add_column("formula", ratio=4)
    table.add_column("status", ratio=5)
    for row in rows:
        table.add_row(
            _Cell(row.name), _Cell(row.formula), _Cell(row.status, "green" if row.good else "red")
        )
    return table


if __name__ == "__main__":
    app()
