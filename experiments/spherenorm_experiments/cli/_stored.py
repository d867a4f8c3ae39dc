"""Looks at what there is: studies, stored runs, data sets on disk; and `gc`, which tidies up."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table as RichTable

from spherenorm_experiments.cli._console import (
    FAILED,
    answer,
    console,
    say,
    store_errors,
    tell_unusable,
    usage_errors,
)
from spherenorm_experiments.cli._options import AsJson, Data, Out, existing_store
from spherenorm_experiments.files import LOST_REQUEST, Busy, as_store_error, read_documents
from spherenorm_experiments.named import places
from spherenorm_experiments.store import BULKY, RunFolder, Store, read_progress

if TYPE_CHECKING:
    from spherenorm_experiments.paper.shared.layout import Layout

data = typer.Typer(no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="The beginning of its name, or of the hash in it.")]

LONGEST = 60
"""Characters of a value in a table."""

REMOVED = "removed"
"""The folder in which a run that is being removed lies: it is no run any more."""


def list_(as_json: AsJson = False) -> None:
    """The studies, tasks and recipes."""
    kinds = ("STUDIES", "TASKS")
    studies, tasks = ({k: _title(place) for k, place in places(kind).items()} for kind in kinds)
    recipes = _recipes()
    if as_json:
        answer({"studies": studies, "tasks": tasks, "recipes": recipes})
        return
    for heading, entries in (
        ("studies", studies),
        ("tasks", tasks),
        ("recipes (your own: module:function)", recipes),
    ):
        console.print(f"[bold]{heading}[/bold]")
        for name, text in entries.items():
            say(f"  [cyan]{name}[/cyan] {escape(text)}")


def _title(place: str) -> str:
    """The first line about a class or an instance, from its source: to import it takes seconds."""
    module, _, name = place.partition(":")
    package, _, file = module.rpartition(".")
    text = (_folder(package) / f"{file}.py").read_text()
    about = re.search(rf'^(class {name}\b|{name} = ).*?"""(.+?)(\n|""")', text, re.M | re.S)
    return about[2] if about else name


def _recipes() -> dict[str, str]:
    """The library's recipes with their hyper-parameters, from their source."""
    found = {
        node.name: f"({', '.join(a.arg for a in (*node.args.args, *node.args.kwonlyargs))})"
        for path in (_folder("spherenorm") / "recipes").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    return dict(sorted(found.items()))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def status(out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """The runs of the store by state, and what went wrong."""
    with usage_errors():
        store = existing_store(out)
    states: dict[str, int] = {}
    problems = [{"run": f"plans/{name}", "error": text} for name, text in _lost(out).items()]
    alive: set[str] = set()
    for folder in store.folders():
        state = folder.state()
        alive |= {folder.name} if state == "running" else set()
        states[state] = states.get(state, 0) + len(folder.rows)
        if state == "failed":
            problems.append({"run": folder.name, "error": folder.status().get("error", "")})
    running = [(name, found) for name, found in progress_of_runs(store) if name in alive]
    if as_json:
        shown = [{"run": name, **found} for name, found in running]
        answer({"runs": states, "running": shown, "problems": problems})
        return
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    say(counts or f"no runs in {out}")
    for name, found in running:
        say(f"[cyan]{name}[/cyan]: {escape(progress_line(found))}")
    for problem in problems:
        say(f"[red]{problem['run']}[/red]: {escape(problem['error'])}")


def progress_of_runs(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """The runs that have a progress file, with its content; see `read_progress`."""
    found = ((folder.name, read_progress(folder.path)) for folder in store.folders())
    return [(name, content) for name, content in found if content is not None]


def _lost(out: Path) -> dict[str, str]:
    """The requests of a store that cannot be read, with what to do.

    One of another version of this package is named by `resume` and `report`, which understand it.
    """
    return dict.fromkeys(read_documents(out / "plans")[1], LOST_REQUEST)


def progress_line(progress: Mapping[str, Any]) -> str:
    """The step, the rate, the remaining time and the last values, in a line."""
    left = progress.get("remaining")
    parts = [f"step {progress['step']} of {progress['steps']}", f"{progress['rate']:.3g} steps/s"]
    parts += [] if left is None else [f"{duration(left)} left"]
    return ", ".join([*parts, last_values(progress)]).rstrip(", ")


def duration(seconds: float) -> str:
    """Seconds, or minutes, as a reader wants them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def last_values(progress: Mapping[str, Any]) -> str:
    shown = {name: x for name, x in progress["last"].items() if name in ("loss", "validation")}
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())


def show(run: RunName, out: Out = Path("runs"), as_json: AsJson = False) -> None:
    """One run: its state, its settings and its summary."""
    with usage_errors():
        folder, row = _find_run(existing_store(out), run)
    found = _read(folder, row)
    if as_json:
        answer(found)
        return
    say(f"[bold]{escape(found['run'])}[/bold]: {found['state']} {escape(found['error'])}".rstrip())
    for part in ("settings", "summary"):
        table = RichTable(title=part, show_header=False, box=box.SIMPLE_HEAD)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in found[part].items():
            table.add_row(escape(name), escape(_short(value)))
        console.print(table)
    for path in found["files"]:
        say(f"[dim]{escape(path)}[/dim]")


def _read(folder: RunFolder, row: str | None) -> dict[str, Any]:
    """The content of a run; each file is checked, also those that no result is made of.

    Args:
        row: the name of one run of several that trained as one computation.
    """
    from spherenorm_experiments.engine import rows_in

    summary, settings = folder.summary() or {}, folder.config() or {}
    for one in rows_in(folder):
        if one.name == row:
            summary, settings = dict(one.summary), one.spec.to_json()
    folder.load_checkpoint()
    return {
        "run": row or folder.name,
        "state": folder.state(),
        "error": folder.status().get("error", ""),
        "settings": _flattened(settings),
        "summary": _flattened({k: v for k, v in summary.items() if k not in BULKY}),
        "origin": folder.read_json("origin.json") or [],
        "files": [str(path) for path in sorted(folder.path.iterdir()) if path.name != "lock"],
    }


def _short(value: Any) -> str:
    """A value as JSON, cut to the width of a column; a number with seven digits."""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _find_run(store: Store, name: str) -> tuple[RunFolder, str | None]:
    """The run whose name, or the hash at its end, begins with `name`.

    Returns:
        Its folder; and its own name, if it shares the folder with others.

    Raises:
        ValueError: there is none, or more than one.
    """
    folders = [(folder.name, folder, None) for folder in store.folders()]
    rows = [(row, folder, row) for _, folder, _ in folders for row in folder.rows]
    for known in (folders, rows):
        exact = [each for each in known if each[0] == name]
        found = exact or [
            each
            for each in known
            if each[0].startswith(name) or re.split("[-/]", each[0])[-1].startswith(name)
        ]
        if len(found) > 1:
            some = ", ".join(each[0] for each in found[:3])
            raise ValueError(f"{len(found)} runs begin with {name!r}: {some}, ...; give more of it")
        if name and found:
            return found[0][1:]
    raise ValueError(f"no run in {store.root} begins with {name!r}")


def _flattened(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested entries by their path.

    >>> _flattened({"lr": 0.1, "regime": {"warmup": 5}})
    {'lr': 0.1, 'regime.warmup': 5}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flattened(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat


def gc(
    out: Out = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the runs that no request asks for, after saying which.

    These are left over when a recipe, a task or a study was edited, or when a request was repeated
    with other settings and deleted. A run that a process holds stays. With --json and without --yes
    it only says what it would remove.
    """
    with usage_errors():
        store = existing_store(out)
    shutil.rmtree(store.root / REMOVED, ignore_errors=True)  # of a removal that was killed
    left = _unasked(store)
    sizes = {folder.name: _size(folder) for folder in left}
    if as_json and not yes:
        answer({"unasked": sizes, "removed": []})
        return
    if not as_json:
        for name, size in sizes.items():
            say(f"{escape(name)}  [dim]{_shown(size)}[/dim]")
        say(f"{len(left)} runs that no request asks for, {_shown(sum(sizes.values()))}")
    if left and not yes and not typer.confirm("remove them?"):
        return
    with store_errors():
        removed = _remove(store, left)
    if as_json:
        answer({"unasked": sizes, "removed": removed})
    elif left:
        console.print(f"{len(removed)} removed, {len(left) - len(removed)} kept", highlight=False)


def _unasked(store: Store) -> list[RunFolder]:
    """The runs that no request asks for, and that no process holds.

    A request that cannot be read may ask for any of them, so that it ends the command.
    """
    from spherenorm_experiments.study import read_requests

    requests, unusable = read_requests(store)
    if tell_unusable(unusable):
        raise typer.Exit(FAILED)
    asked = {
        name for request in requests for trials in request.trials.values() for _, name in trials
    }
    return [f for f in store.folders() if asked.isdisjoint(f.rows) and not f.held()]


def _remove(store: Store, folders: Sequence[RunFolder]) -> list[str]:
    """Remove runs; those that were asked for or begun in the meantime stay.

    Raises:
        StoreError: one cannot be removed.
    """
    still = {folder.name for folder in _unasked(store)}
    removed = []
    for folder in folders:
        aside = store.root / REMOVED / folder.name
        with suppress(Busy), as_store_error(folder.path), folder.lock():
            if folder.name in still:
                aside.parent.mkdir(exist_ok=True)
                os.replace(folder.path, aside)  # at once: a run is there as a whole or not at all
                removed.append(folder.name)
    shutil.rmtree(store.root / REMOVED, ignore_errors=True)
    return removed


def _size(folder: RunFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


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
