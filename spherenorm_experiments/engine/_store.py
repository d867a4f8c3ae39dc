"""The store: a folder per run, named by the hash of its configuration.

    <root>/runs/<task>-<recipe>-<hash>/
        config.json     the whole configuration, written first
        origin.json     versions and hardware; it names a file in <root>/sources/
        status.json     running | finished | diverged | failed | interrupted; times, the error
        metrics.jsonl   a line per step, appended; cut back to the checkpoint when a run resumes
        checkpoint.pt   the last state to go on from, with its checksum
        progress.json   how far it is, while it trains
        summary.json    the result, written last
        arrays.npz      curves of a pure task

Runs of a pure task that train as one computation share a folder <task>-<recipe>-<hash>-<hash>; see
`_rows.py`.

Nothing in it is lost, and nothing runs twice. A file is written whole or not at all, and carries
its SHA-256. One that does not match is named in a warning and does not count: the run goes on from
what is intact, to the same bits.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spherenorm_experiments.engine._records import Records
from spherenorm_experiments.files import (
    is_held,
    locked,
    read_bytes,
    read_json,
    sha256,
    warn_damaged,
    write_file,
    write_json,
)

__all__ = ["RunFolder", "Store"]


class Store:
    """All runs under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, name: str) -> RunFolder:
        """The folder of the run of that name, which need not exist yet."""
        return RunFolder(self.root / "runs" / name)

    def folders(self) -> Iterator[RunFolder]:
        """Every run in the store, by name."""
        for path in sorted((self.root / "runs").glob("*/")):
            yield RunFolder(path)

    def write_json(self, name: str, content: Any) -> None:
        """Write a document of the store itself (a plan)."""
        write_json(self.root / name, content)

    def read_json(self, name: str) -> Any:
        """A document of the store itself; None if there is none, or none that is intact."""
        return read_json(self.root / name)


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"RunFolder({self.name})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def metrics(self) -> Records:
        """The records of each step."""
        return Records(self.path)

    def lock(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the run; see `spherenorm_experiments.files.locked`."""
        return locked(self.path, wait)

    def held(self) -> bool:
        """True if a living process holds the run, or if that cannot be found out here."""
        return is_held(self.path)

    def read_json(self, name: str) -> Any:
        """A document of this run; None if there is none, or none that is intact."""
        return read_json(self.path / name, self.name)

    def write_json(self, name: str, content: Any) -> None:
        """Write a document of this run; in another run's folder it is not intact."""
        write_json(self.path / name, content, self.name)

    def config(self) -> dict[str, Any] | None:
        return self.read_json("config.json")  # type: ignore[no-any-return]

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.write_json("config.json", config)

    def status(self) -> dict[str, Any]:
        """Empty if the run has not started."""
        return self.read_json("status.json") or {}

    def write_status(self, state: str, **more: Any) -> None:
        stamp = {"state": state, "updated": time.time(), "pid": os.getpid()}
        self.write_json("status.json", {**stamp, **more})

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, if all files that it vouches for are intact.

        If one is not, it counts as not finished, and is computed again if it is asked for.
        """
        summary = self.read_json("summary.json")
        if summary is None or not _are_intact(self.path, summary.get("files", {})):
            return None
        return summary  # type: ignore[no-any-return]

    def complete(self) -> bool:
        """True if a finished run still has its configuration and its status."""
        return self.config() is not None and bool(self.status())

    def finish(self, summary: Mapping[str, Any], files: Iterable[str]) -> None:
        """Write the result; it vouches for `files` by their checksums."""
        digests = {name: sha256((self.path / name).read_bytes()) for name in files}
        self.write_json("summary.json", {**summary, "files": digests})

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        payload = buffer.getvalue()
        write_file(self.path / "checkpoint.pt", _checksum(self.name, payload) + b"\n" + payload)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; None if there is none, or none that is intact."""
        path = self.path / "checkpoint.pt"
        content = read_bytes(path)
        if content is None:
            return None
        expected, _, payload = content.partition(b"\n")
        if _checksum(self.name, payload) != expected:
            warn_damaged(path, "it is no checkpoint of this run or its checksum is wrong")
            return None
        buffer = io.BytesIO(payload)
        state: dict[str, Any] = torch.load(buffer, weights_only=True, map_location="cpu")
        return state

    def save_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_file(self.path / "arrays.npz", buffer.getvalue())

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path / "arrays.npz") as file:
            return dict(file)

    def clear(self) -> None:
        """Forget how far the run was, to start it from the beginning."""
        for name in ("metrics.jsonl", "checkpoint.pt", "summary.json"):
            (self.path / name).unlink(missing_ok=True)


def _are_intact(folder: Path, digests: Mapping[str, str]) -> bool:
    """True if the files are there and match; a warning names the first that does not."""
    for name, expected in digests.items():
        content = read_bytes(folder / name)
        if content is None or sha256(content) != expected:
            if content is not None:
                warn_damaged(folder / name, "it does not match the summary's checksum")
            return False
    return True


def _checksum(run: str, payload: bytes) -> bytes:
    """The checksum of a checkpoint, which holds for its run only."""
    return sha256(run.encode() + b"\n" + payload).encode()
