"""Stored runs as rows: one point and one seed each, found by their own identity.

Runs that trained as one computation share a folder. Its `config.json` has their names, its summary
a list for each number, its arrays a leading dimension.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spherenorm_experiments.core import FORMAT, Spec, rows_of
from spherenorm_experiments.store import RunFolder, Store, read_arrays


@dataclass(frozen=True)
class Row:
    """A run that has ended.

    Attributes:
        name: its identity.
        spec: what was asked for.
        config: its configuration, or that of the computation it was a part of.
        summary: its numbers, and "diverged_at".
        folder: its files.
        index: its place in the folder's arrays; None for a run that trained alone.
        code: a digest of its rule and the recipe's sources, if it trained with others; "" in stores
            that have not noted it.
    """

    name: str
    spec: Spec
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    folder: RunFolder
    index: int | None = None
    code: str = ""

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that its task has kept."""
        if self.index is None:
            return {}
        path = self.folder.path / "arrays.npz"
        arrays = _loaded(path, _state_of(path))
        return {name: x[self.index] for name, x in arrays.items()}


def rows_in(folder: RunFolder) -> list[Row]:
    """The runs of a folder.

    None if they have not ended, if a file of theirs is damaged, or if an earlier version wrote it.
    """
    summary, config = folder.summary(), folder.config()
    if summary is None or config is None or config.get("format", FORMAT) != FORMAT:
        return []
    if "rows" not in config:
        return [Row(folder.name, Spec.from_json(config), config, summary, folder)]
    table = summary["rows"]
    numbers = (dict(zip(table, x, strict=True)) for x in zip(*table.values(), strict=True))
    specs = rows_of(Spec.from_json(config))
    codes = config.get("codes", [""] * len(specs))
    every = zip(config["rows"], specs, numbers, codes, strict=True)
    return [
        Row(name, spec, config, {"steps": summary["steps"], **own}, folder, index, code)
        for index, (name, spec, own, code) in enumerate(every)
    ]


def folders_of(store: Store, name: str) -> Iterator[RunFolder]:
    """The folders that may hold the run of this name."""
    family, slash, _ = name.partition("/")
    if not slash:
        yield store.folder(family)
        return
    for path in sorted((store.root / "runs").glob(f"{family}-*/")):
        yield store.folder(path.name)


def find_rows(store: Store, names: Iterable[str]) -> dict[str, Row]:
    """Of the runs of these names those that have ended."""
    wanted = dict.fromkeys(names)
    places = {name.partition("/")[0]: name for name in wanted}
    found: dict[str, Row] = {}
    for name in places.values():
        for folder in folders_of(store, name):
            for row in _kept(folder):
                if row.name in wanted:
                    found.setdefault(row.name, row)
    return {name: found[name] for name in wanted if name in found}


def _kept(folder: RunFolder) -> list[Row]:
    """The runs of a folder, read again only if its files have changed."""
    files = [folder.path / name for name in ("summary.json", "config.json")]
    if folder.summary() is None or not all(path.exists() for path in files):
        return []
    key = [_state_of(path) for path in files]
    if _known.get(folder.path, (None,))[0] != key:
        if not (rows := rows_in(folder)):
            return []
        _known[folder.path] = key, rows
    return _known[folder.path][1]


_known: dict[Path, tuple[Any, list[Row]]] = {}


@functools.lru_cache(maxsize=64)
def _loaded(path: Path, _: Any) -> dict[str, np.ndarray]:
    return read_arrays(path)


def _state_of(path: Path) -> tuple[int, int]:
    """Another one for a file that was written anew."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size
