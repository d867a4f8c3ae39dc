"""Runs of a store by the beginning of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.engine import RunFolder, Store

__all__ = ["find_run", "flattened", "state_of"]


def find_run(store: Store, name: str) -> RunFolder:
    """The run whose name, or the hash at its end, begins with `name`.

    Raises:
        ValueError: there is none, or more than one.
    """
    folders = list(store.folders())
    exact = [folder for folder in folders if folder.name == name]
    found = exact or [
        folder
        for folder in folders
        if folder.name.startswith(name) or folder.name.rpartition("-")[2].startswith(name)
    ]
    if not name or not found:
        raise ValueError(f"no run in {store.root} begins with {name!r}")
    if len(found) > 1:
        some = ", ".join(folder.name for folder in found[:3])
        raise ValueError(f"{len(found)} runs begin with {name!r}: {some}, ...; give more of it")
    return found[0]


def state_of(folder: RunFolder, recorded: Mapping[str, Any]) -> str:
    """The state of a run; a process that no longer lives was killed.

    Args:
        recorded: its status, as it is stored.
    """
    state: str = recorded.get("state", "never started")
    return "killed" if state == "running" and not folder.held() else state


def flattened(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested entries by their path.

    >>> flattened({"lr": 0.1, "regime": {"warmup": 5}})
    {'lr': 0.1, 'regime.warmup': 5}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{above}{name}.")
        else:
            flat[f"{above}{name}"] = value
    return flat
