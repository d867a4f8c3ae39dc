"""`show` and `diff`: one stored run, and the ways in which two differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm_experiments.cli._console import answer, console, say, usage_errors
from spherenorm_experiments.cli._options import AsJson, Out, existing_store
from spherenorm_experiments.cli._stored import find_run, flattened, state_of
from spherenorm_experiments.engine import RunFolder

__all__ = ["diff", "show"]

RunName = Annotated[str, typer.Argument(help="The beginning of its name, or of the hash in it.")]

LONGEST = 60
"""Characters of a value in a table."""

BULKY = ("views", "shapes", "files")
"""Entries of a summary that are about every weight or file."""


def show(run: RunName, out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """One run: its state, its settings and its summary."""
    with usage_errors():
        folder = find_run(existing_store(out), run)
    found = _read(folder)
    if as_json:
        answer(found)
        return
    say(f"[bold]{escape(folder.name)}[/bold]: {found['state']} {escape(found['error'])}".rstrip())
    for part in ("settings", "summary"):
        table = RichTable(title=part, show_header=False, box=box.SIMPLE_HEAD)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in found[part].items():
            table.add_row(escape(name), escape(_short(value)))
        console.print(table)
    for path in found["files"]:
        say(f"[dim]{escape(path)}[/dim]")


def diff(first: RunName, second: RunName, out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """Two runs: the settings in which they differ, and their summaries side by side."""
    with usage_errors():
        store = existing_store(out)
        a, b = find_run(store, first), find_run(store, second)
    left, right = _read(a), _read(b)
    found = {
        "runs": [a.name, b.name],
        "states": [left["state"], right["state"]],
        "settings": _differing(left["settings"], right["settings"]),
        "summary": _differing(left["summary"], right["summary"]),
    }
    if as_json:
        answer(found)
        return
    for heading, folder, content in (("first", a, left), ("second", b, right)):
        say(f"{heading}: {escape(folder.name)}, {content['state']}")
    for part in ("settings", "summary"):
        _print_difference(part, found[part])  # type: ignore[arg-type]


def _read(folder: RunFolder) -> dict[str, Any]:
    """The content of a run; each file is checked, also those that no result is made of."""
    summary, origin = folder.summary() or {}, folder.read_json("origin.json") or []
    folder.load_checkpoint()
    return {
        "run": folder.name,
        "state": state_of(folder, folder.status()),
        "error": folder.status().get("error", ""),
        "settings": flattened(folder.config() or {}),
        "summary": flattened({k: v for k, v in summary.items() if k not in BULKY}),
        "origin": origin,
        "files": [str(path) for path in sorted(folder.path.iterdir()) if path.name != "lock"],
    }


def _differing(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    """The entries that differ, with both values; None where one has no such entry."""
    names = [*a, *(name for name in b if name not in a)]
    return {
        name: [a.get(name), b.get(name)]
        for name in names
        if a.get(name) != b.get(name) or (name in a) != (name in b)
    }


def _print_difference(part: str, rows: dict[str, list[Any]]) -> None:
    if not rows:
        say(f"{part}: no difference")
        return
    table = RichTable(title=part, box=box.SIMPLE_HEAD)
    for heading in ("", "first", "second", "second - first"):
        first = heading == ""
        table.add_column(heading, justify="left" if first else "right", no_wrap=first)
    for name, (a, b) in rows.items():
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        gap = f"{b - a:+.6g}" if numbers else ""
        table.add_row(*map(escape, (name, _short(a), _short(b), gap)))
    console.print(table)


def _short(value: Any) -> str:
    """A value as JSON, cut to the width of a column; a number with seven digits."""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
