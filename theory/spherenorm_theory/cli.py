"""`spherenorm theory`: laws of recipes, derived, proved and checked."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console

from spherenorm.support import atomic_write, on_interrupt
from spherenorm_theory import report

EXIT_FAILED, EXIT_USAGE = 1, 2


class Output(Console):
    """Standard output, which a reader may close, as in `spherenorm theory adamp | head -3`."""

    def on_broken_pipe(self) -> None:
        """End without an error."""
        with suppress(SystemExit):
            super().on_broken_pipe()
        raise SystemExit(0)


# A user's "module:recipe:" is text, of which rich would make a picture.
console = Output(emoji=False)
errors = Console(stderr=True, emoji=False)
app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)

SET_HELP = (
    "Fix a hyper-parameter: NAME=VALUE, as in momentum=0.9, nesterov=true or betas=(0.9, 0.99)."
)


def theory(arguments: Sequence[str]) -> None:
    """Derive the norm growth of a scale-invariant weight from a recipe; prove it and check it."""
    app(list(arguments), prog_name="spherenorm theory")


@app.command()
def _theory(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names, or module:function; two: side by side; paper: its statements alone; "
            "none: the statements, and the laws of the paper's recipes.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help=SET_HELP, show_default=False)
    ] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the report as LaTeX.")] = None,
) -> None:
    """Derive the norm growth of a scale-invariant weight from a recipe; prove it and check it."""
    on_interrupt()
    torch.set_num_threads(1)  # tensors are small, so that further threads only wait
    try:
        if latex is not None and (latex.is_dir() or not os.access(latex.parent, os.W_OK)):
            raise ValueError(f"cannot write {latex}: give a file in a folder that is writable")
        sections = _sections(recipes or [], dict(map(_parse_setting, set_ or [])))
    except (ValueError, TypeError) as error:
        _exit(" ".join(str(error).split()))
    printed = [*map(_print, sections)]
    if latex is not None:
        try:
            atomic_write(latex, report.to_latex(printed))
        except OSError as error:
            _exit(f"cannot write {latex}: {error.strerror}")
        console.print(f"wrote {latex}", markup=False, highlight=False, soft_wrap=True)
    if not all(row.good for section in printed for row in section.rows):
        raise typer.Exit(EXIT_FAILED)


def _sections(recipes: list[str], hyper_parameters: dict[str, Any]) -> Iterable[report.Section]:
    """Return the reports: on recipes, on two side by side, or on the paper.

    Raises:
        ValueError: a hyper-parameter is set, and no recipe is named; or as the reports raise it.
    """
    if hyper_parameters and recipes in ([], ["paper"]):
        raise ValueError(
            "--set holds a hyper-parameter of a recipe: name one, "
            "as in `spherenorm theory sgdp --set momentum=0.9`"
        )
    if not recipes:
        return report.paper_report()
    if recipes == ["paper"]:
        return [report.paper_page()]
    if len(recipes) == 2:
        return [report.comparison_report(*recipes, **hyper_parameters)]
    return [report.recipe_report(name, **hyper_parameters) for name in recipes]


def _print(section: report.Section) -> report.Section:
    """Print the rows of a section as they are computed, and return it with these rows."""
    console.print(f"\n{section.title}\n", style="bold", markup=False, highlight=False)
    rows = []
    for row in section.rows:
        style = "" if row.good else "red"
        text = report.to_text(row)
        console.print(f"{text}\n", style=style, markup=False, highlight=False, soft_wrap=True)
        rows.append(row)
    return section._replace(rows=rows)


def _exit(message: str) -> NoReturn:
    errors.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_USAGE)


def _parse_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of a --set: a value of JSON or of Python, or a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError):
            return name.strip(), parse(value.strip())
    return name.strip(), value
