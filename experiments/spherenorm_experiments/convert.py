"""Stores of version 0.1, as rows of this one.

Their runs have digests of sources in their names, and no list of modules: what becomes of them is
marked as of other code than is here, and counts under `--accept-code`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spherenorm_experiments.spec import Spec, points_of, run_name
from spherenorm_experiments.store import RunFolder, Store, write_json

CODE = "version-0.1"
"""The name of their code, of which there is no list."""

ABOUT = ("spherenorm", "torch", "numpy", "python", "platform", "cpu", "gpu", "backend")

Rows = list[tuple[str, Spec, Mapping[str, Any]]]


def convert_store(source: Path, target: Path) -> tuple[int, dict[str, str]]:
    """Copy the ended runs and the requests of a store, each once; what is there already stays.

    Checkpoints, sources and logs are left behind.

    Returns:
        The number of runs, and the folders that were left out, with the reasons.

    Raises:
        ValueError: there is no store.
    """
    if not (source / "runs").is_dir():
        raise ValueError(f"there is no store at {source}")
    store, count, left = Store(target), 0, dict[str, str]()
    for path in sorted((source / "runs").glob("*/")):
        try:
            count += _copy(path, store)
        except (OSError, KeyError, TypeError, ValueError) as error:
            left[path.name] = f"{type(error).__name__}: {error}"
    for path in sorted((source / "plans").glob("*.json")):
        content = json.loads(path.read_text())["content"]
        kept = {name: content.get(name) for name in ("studies", "plan", "number", "ended")}
        write_json(target / "plans" / path.name, kept)
    return count, left


def _copy(path: Path, store: Store) -> int:
    """Copy the runs of one folder; how many there are."""
    config, summary = _content(path / "config.json"), _content(path / "summary.json")
    data = str(config["data"])
    about = _about(path)
    if "rows" not in config:
        spec = Spec.from_json(config)
        summary.pop("files", None)
        folder = store.folder(run_name(spec, data))
        rows: Rows = [(folder.name, spec, summary)]
    else:
        table = summary["rows"]
        numbers = [dict(zip(table, x, strict=True)) for x in zip(*table.values(), strict=True)]
        rows = [
            (run_name(spec, data), spec, {"steps": summary["steps"], **own})
            for spec, own in zip(_specs(config), numbers, strict=True)
        ]
        folder = store.batch([name for name, *_ in rows])
    if not (folder.path / "rows.json").exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "arrays.npz"):
            if (path / name).exists():
                shutil.copyfile(path / name, folder.path / name)
        _finish(folder, rows, about)
    return len(rows)


def _finish(folder: RunFolder, rows: Rows, about: dict[str, Any]) -> None:
    ended = any(summary["diverged_at"] is None for *_, summary in rows)
    state = "finished" if ended else "diverged"
    folder.write_status(state, names=[name for name, *_ in rows])
    folder.finish(rows, [CODE], about)


def _specs(config: Mapping[str, Any]) -> Iterator[Spec]:
    """The specs of runs that have trained together: every point with every seed."""
    for point in points_of(config["hyper_parameters"]):
        for seed in config.get("seeds") or [config["seed"]]:
            yield Spec.from_json({**config, "hyper_parameters": point, "seed": seed})


def _about(path: Path) -> dict[str, Any]:
    origins = _content(path / "origin.json") if (path / "origin.json").exists() else [{}]
    status = _content(path / "status.json") if (path / "status.json").exists() else {}
    found = {name: origins[-1][name] for name in ABOUT if name in origins[-1]}
    found["executor"] = found.pop("backend", None)
    return found | ({"seconds": status["seconds"]} if "seconds" in status else {})


def _content(path: Path) -> Any:
    return json.loads(path.read_text())["content"]
