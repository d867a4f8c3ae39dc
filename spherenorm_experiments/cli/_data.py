"""`data`: the paper's data sets on disk, held against their official layouts and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spherenorm.support import unknown_name
from spherenorm_experiments.cli._console import FAILED, say, usage_errors
from spherenorm_experiments.cli._options import Data
from spherenorm_experiments.paper.shared.layout import Layout, checked, layouts, use_folder
from spherenorm_experiments.paper.shared.layout import data_folder as given_folder

__all__ = ["data"]

data = typer.Typer(no_args_is_help=True, help=__doc__)


@data.command("list")
def list_layouts() -> None:
    """The data sets, and the tree of files that each has on disk."""
    for name, layout in layouts().items():
        say(f"[bold]{name}[/bold] {layout.title} ({layout.source})")
        say(layout.tree.strip("\n"), markup=False)


@data.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which data sets; all that are there by default.")
    ] = None,
    folder: Data = None,
) -> None:
    """Compare what lies in DIR/NAME with the official layout and its counts."""
    with usage_errors():
        if folder is not None:
            use_folder(folder)
        root = given_folder("a data set")
        chosen = [_layout(name) for name in names or _present(root)]
        if not chosen:
            raise ValueError(f"--data {str(root)!r} holds none of {', '.join(layouts())}")
    complete = [_is_complete(layout, root / layout.name) for layout in chosen]
    if not all(complete):
        raise typer.Exit(FAILED)


def _layout(name: str) -> Layout:
    known = layouts()
    if name not in known:
        raise unknown_name("data set", name, known)
    return known[name]


def _present(root: Path) -> list[str]:
    return [name for name in layouts() if (root / name).is_dir()]


def _is_complete(layout: Layout, folder: Path) -> bool:
    """Print what is there; True if it is all that is expected."""
    try:
        found = checked(layout, folder)
    except ValueError as error:
        say(f"[red]{layout.name}[/red]", end=" ")
        say(str(error), markup=False)
        return False
    for name, (expected, count) in found.items():
        mark = "[green]ok[/green]" if count == expected else "[red]differs[/red]"
        seen = "not counted" if count is None else f"{count:,}"
        say(f"{layout.name}: {name}: {seen} (expected: {expected:,}) {mark}")
    return all(count == expected for expected, count in found.values())
