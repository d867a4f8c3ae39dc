"""Looks at what there is: studies, stored runs, data sets on disk; and `convert`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm_experiments.cli._options import (
    FAILED,
    NOTE,
    AsJson,
    Data,
    Out,
    answer,
    console,
    existing_store,
    say,
    say_error,
    usage_errors,
)
from spherenorm_experiments.store import BULKY, Row, RunFolder, Store

if TYPE_CHECKING:
    from spherenorm_experiments.paper.shared.layout import Layout

data = typer.Typer(no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="The beginning of its name, or of the hash in it.")]

LONGEST = 60
"""Characters of a value in a table."""


def list_(as_json: AsJson = False) -> None:
    """The studies, tasks and recipes."""
    from spherenorm import bind, recipe_names
    from spherenorm_experiments.comparing import find_study, study_classes
    from spherenorm_experiments.lookup import named, places

    found = {
        "studies": {name: find_study(name).title() for name in study_classes()},
        "tasks": {
            name: (named("TASKS", name).__doc__ or "").splitlines()[0] for name in places("TASKS")
        },
        "recipes": {name: f"({', '.join(bind(name).defaults)})" for name in recipe_names()},
    }
    if as_json:
        return answer(found)
    for heading, entries in found.items():
        console.print(f"[bold]{heading}[/bold] (your own: module:name)")
        for name, text in entries.items():
            say(f"  [cyan]{name}[/cyan] {escape(text)}")


def status(out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """The runs of the store by state, and what went wrong."""
    from spherenorm_experiments.plan import read_requests

    with usage_errors():
        store = existing_store(out)
    states: dict[str, int] = {}
    lost = read_requests(store)[1].items()
    problems = [{"run": f"plans/{name}", "error": text} for name, text in lost]
    running: list[dict[str, Any]] = []
    ended = {row.name for row in store.rows()}
    for folder in store.folders():
        state, found = folder.state(), folder.status()
        names = found.get("names") or [folder.name]
        if state == "failed" and ended.issuperset(names):  # they have ended in another batch
            continue
        states[state] = states.get(state, 0) + len(names)
        if state == "failed":
            problems.append({"run": folder.name, "error": found.get("error", "")})
        if state == "running" and (progress := folder.progress()) is not None:
            running.append({"run": folder.name, **progress})
    if as_json:
        return answer({"runs": states, "running": running, "problems": problems})
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    say(counts or f"no runs in {out}")
    for each in running:
        say(f"[cyan]{each['run']}[/cyan]: {escape(_progress_line(each))}")
    for problem in problems:
        say(f"[red]{problem['run']}[/red]: {escape(problem['error'])}")


def _progress_line(progress: Mapping[str, Any]) -> str:
    """The step, the rate, the remaining time and the last values, in a line."""
    left = progress.get("remaining")
    parts = [f"step {progress['step']} of {progress['steps']}", f"{progress['rate']:.3g} steps/s"]
    parts += [] if left is None else [f"{left:.0f} s left"]
    shown = {name: x for name, x in progress["last"].items() if name in ("loss", "validation")}
    return ", ".join([*parts, *(f"{name} {value:.4g}" for name, value in shown.items())])


def show(run: RunName, out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """One run: its state, its settings and its summary."""
    with usage_errors():
        folder, row = _find_run(existing_store(out), run)
    summary = {} if row is None else {k: v for k, v in row.summary.items() if k not in BULKY}
    found = {
        "run": folder.name if row is None else row.name,
        "state": folder.state(),
        "error": folder.status().get("error", ""),
        "settings": {} if row is None else _flattened(row.spec.to_json()),
        "summary": _flattened(summary),
        "about": {} if row is None else dict(row.about),
        "code": [] if row is None else list(row.code),
        "files": [str(path) for path in sorted(folder.path.iterdir()) if path.name != "lock"],
    }
    if as_json:
        return answer(found)
    say(f"[bold]{escape(found['run'])}[/bold]: {found['state']} {escape(found['error'])}".rstrip())
    for part in ("settings", "summary"):
        table = RichTable(title=part, show_header=False, box=box.SIMPLE_HEAD)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in found[part].items():
            text = f"{value:.7g}" if isinstance(value, float) else json.dumps(value).strip('"')
            table.add_row(escape(name), escape(text[:LONGEST] + "…" * (len(text) > LONGEST)))
        console.print(table)
    for path in found["files"]:
        say(f"[dim]{escape(path)}[/dim]")


def _find_run(store: Store, name: str) -> tuple[RunFolder, Row | None]:
    """The run whose name, or the first hash in it, begins with `name`; its row once it has ended.

    Raises:
        ValueError: there is none, or more than one.
    """
    rows = {row.name: row for row in store.rows()}
    begun = {each.name: each for each in store.folders() if each.path.parent.name == "runs"}
    names = [*dict.fromkeys([*begun, *rows])]
    found = [n for n in names if n == name] or [
        n for n in names if n.startswith(name) or n.rsplit("-", 2)[-2:][0].startswith(name)
    ]
    if not found or not name:
        raise ValueError(f"no run in {store.root} begins with {name!r}")
    if len(found) > 1:
        some = ", ".join(found[:3])
        raise ValueError(f"{len(found)} runs begin with {name!r}: {some}, ...; give more of it")
    row = rows.get(found[0])
    return begun[found[0]] if row is None else row.folder, row


def _flattened(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested entries by their path.

    >>> _flattened({"lr": 0.1, "regime": {"warmup": 5}})
    {'lr': 0.1, 'regime.warmup': 5}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        nested = isinstance(value, Mapping)
        flat |= _flattened(value, f"{above}{name}.") if nested else {f"{above}{name}": value}
    return flat


def convert(
    store: Annotated[Path, typer.Argument(help="A store of an earlier version.")],
    out: Annotated[Path, typer.Option("--out", help="The new store.")] = Path("runs"),
) -> None:
    """Copy the results of a store of an earlier version, which then count with --accept-code."""
    from spherenorm_experiments.convert import convert_store

    with usage_errors():
        count, left = convert_store(store, out)
    say(f"{count} runs copied to {out}; they count with --accept-code")
    for name, reason in left.items():
        say_error(f"{name}: {reason}", NOTE)


@data.command("list")
def list_layouts() -> None:
    """The data sets, and the tree of files that each has on disk."""
    from spherenorm_experiments.paper.shared.layout import layouts

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
    from spherenorm.support import unknown_name
    from spherenorm_experiments.paper.shared.layout import data_folder, layouts, use_folder

    with usage_errors():
        if folder is not None:
            use_folder(folder)
        root, known = data_folder("a data set"), layouts()
        for name in names or ():
            if name not in known:
                raise unknown_name("data set", name, known)
        chosen = names or [name for name in known if (root / name).is_dir()]
        if not chosen:
            raise ValueError(f"--data {str(root)!r} holds none of {', '.join(known)}")
    complete = [_is_complete(known[name], root / name) for name in chosen]
    if not all(complete):
        raise typer.Exit(FAILED)


def _is_complete(layout: Layout, folder: Path) -> bool:
    """Print what is there; True if it is all that is expected."""
    from spherenorm_experiments.paper.shared.layout import checked

    try:
        found = checked(layout, folder)
    except ValueError as error:
        say(f"[red]{layout.name}[/red]", end=" ")
        say(str(error), markup=False)
        return False
    for name, (expected, count) in found.items():
        mark = "[green]ok[/green]" if count == expected else "[red]differs[/red]"
        say(f"{layout.name}: {name}: {count:,} (expected: {expected:,}) {mark}")
    return all(count == expected for expected, count in found.values())
