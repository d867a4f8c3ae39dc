"""`gc`: remove the runs of a store that no request asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from spherenorm_experiments.cli._console import (
    FAILED,
    answer,
    console,
    say,
    store_errors,
    usage_errors,
)
from spherenorm_experiments.cli._options import AsJson, Out, existing_store
from spherenorm_experiments.cli._requests import tell_unusable
from spherenorm_experiments.engine import Busy, RunFolder, Store, StoreError
from spherenorm_experiments.study import read_requests

__all__ = ["gc"]

REMOVED = "removed"
"""The folder in which a run that is being removed lies: it is no run any more."""


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
    requests, unusable = read_requests(store)
    if tell_unusable(unusable):
        raise typer.Exit(FAILED)
    asked = {
        name for request in requests for trials in request.trials.values() for _, name in trials
    }
    return [f for f in store.folders() if asked.isdisjoint(_runs(f)) and not f.held()]


def _runs(folder: RunFolder) -> list[str]:
    """The names of a folder's runs."""
    names: list[str] = (folder.config() or {}).get("rows", [folder.name])
    return names


def _remove(store: Store, folders: Sequence[RunFolder]) -> list[str]:
    """Remove runs; those that were asked for or begun in the meantime stay.

    Raises:
        StoreError: one cannot be removed.
    """
    still = {folder.name for folder in _unasked(store)}
    removed = []
    for folder in folders:
        aside = store.root / REMOVED / folder.name
        try:
            with folder.lock():
                if folder.name not in still:
                    continue
                aside.parent.mkdir(exist_ok=True)
                os.replace(folder.path, aside)  # at once: a run is there as a whole or not at all
        except Busy:
            continue
        except OSError as error:
            raise StoreError(f"cannot remove {folder.path}: {error.strerror or error}") from error
        removed.append(folder.name)
    shutil.rmtree(store.root / REMOVED, ignore_errors=True)
    return removed


def _size(folder: RunFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
