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
`spherenorm_experiments.engine.Row`.

Nothing in it is lost, and nothing runs twice. A file is written whole or not at all, and carries
its SHA-256. One that does not match is named in a warning and does not count: the run goes on from
what is intact, to the same bits. Nothing here imports torch before it loads a checkpoint, so that a
command that only looks at a store is fast.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherenorm_experiments.files import (
    Busy,
    StoreError,
    as_store_error,
    read_bytes,
    read_json,
    sha256,
    warn_damaged,
    write_file,
    write_json,
)

if TYPE_CHECKING:
    import numpy as np


BULKY = ("views", "shapes", "files")
"""Entries of a summary that are about every weight or file."""


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

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def rows(self) -> list[str]:
        """The names of its runs: several, if they train as one computation."""
        rows: list[str] = (self.config() or {}).get("rows", [self.name])
        return rows

    @property
    def metrics(self) -> Records:
        """The records of each step."""
        return Records(self.path)

    def lock(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold the run; see `locked`."""
        return locked(self.path, wait)

    def held(self) -> bool:
        """True if a living process holds the run, or if that cannot be found out here."""
        if not (self.path / "lock").exists():
            return False
        try:
            with self.lock():
                return False
        except (Busy, StoreError):
            return True

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

    def state(self) -> str:
        """The state in its status; a process that no longer lives was killed."""
        state: str = self.status().get("state", "never started")
        return "killed" if state == "running" and not self.held() else state

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, if all files that it vouches for are intact.

        If one is not, it counts as not finished, and is computed again if it is asked for.
        """
        summary: dict[str, Any] | None = self.read_json("summary.json")
        for name, expected in ({} if summary is None else summary.get("files", {})).items():
            content = read_bytes(self.path / name)
            if content is None or sha256(content) != expected:
                if content is not None:
                    warn_damaged(self.path / name, "it does not match the summary's checksum")
                return None
        return summary

    def complete(self) -> bool:
        """True if a finished run still has its configuration and its status."""
        return self.config() is not None and bool(self.status())

    def finish(self, summary: Mapping[str, Any], files: Iterable[str]) -> None:
        """Write the result; it vouches for `files` by their checksums."""
        digests = {name: sha256((self.path / name).read_bytes()) for name in files}
        self.write_json("summary.json", {**summary, "files": digests})

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        import torch

        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        payload = buffer.getvalue()
        write_file(self.path / "checkpoint.pt", self._checksum(payload) + b"\n" + payload)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; None if there is none, or none that is intact."""
        import torch

        path = self.path / "checkpoint.pt"
        content = read_bytes(path)
        if content is None:
            return None
        expected, _, payload = content.partition(b"\n")
        if self._checksum(payload) != expected:
            warn_damaged(path, "it is no checkpoint of this run or its checksum is wrong")
            return None
        buffer = io.BytesIO(payload)
        state: dict[str, Any] = torch.load(buffer, weights_only=True, map_location="cpu")
        return state

    def _checksum(self, payload: bytes) -> bytes:
        """The checksum of a checkpoint, which holds for this run only."""
        return sha256(self.name.encode() + b"\n" + payload).encode()

    def clear(self) -> None:
        """Forget how far the run was, to start it from the beginning."""
        for name in ("metrics.jsonl", "checkpoint.pt", "summary.json"):
            (self.path / name).unlink(missing_ok=True)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_file(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    with np.load(path) as file:
        return dict(file)


@contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a run; the operating system releases it when the process ends, however it ends.

    Raises:
        Busy: somebody else has held it for `wait` seconds.
        StoreError: its lock cannot be opened.
    """
    from filelock import FileLock, Timeout  # not needed by commands that only read

    with as_store_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", timeout=wait)
    try:
        lock.acquire()
    except Timeout:
        raise Busy(folder.name) from None
    except OSError as error:
        raise StoreError(f"cannot lock {folder}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def delete_leftovers(folder: Path) -> None:
    """Delete what a process that was killed left half written; only who holds a run may."""
    for path in folder.glob(".*"):
        if path.is_file():
            path.unlink(missing_ok=True)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """The progress of a run that trains now: step, steps, rate (1/s), remaining (s), last."""
    try:
        content = json.loads((folder / "progress.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


Mark = list[Any]
"""The length in bytes, and the SHA-256."""


class Records:
    """The records of one run, `metrics.jsonl` in its folder: a line of JSON for each step.

    A checkpoint keeps a mark of the records before it, their length and checksum, and a resumed run
    rewinds its records to it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"
        self._digest = hashlib.sha256()
        self._length = 0

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records after those that are there; `rewind` or `clear` comes before the first."""
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        with as_store_error(self.path), self.path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(lines)
        self._length += len(lines)

    def read(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Every whole line, or of each only the numbers of these names.

        A run that was killed may have left half a line at the end.
        """
        content = read_bytes(self.path) or b""
        records = [json.loads(line) for line in content.split(b"\n")[:-1] if line]
        if names is None:
            return records
        return [{name: record[name] for name in names if name in record} for record in records]

    def mark(self) -> Mark:
        """The present end of the records, to which `rewind` returns."""
        return [self._length, self._digest.hexdigest()]

    def rewind(self, mark: Mark) -> bool:
        """Cut the records back to the mark.

        False, with a warning, if what comes before the mark is not what was written.
        """
        if len(mark) != 2:  # of an earlier version
            return False
        length, expected = mark
        content = read_bytes(self.path) or b""
        digest = hashlib.sha256(content[:length])
        if len(content) < length or digest.hexdigest() != expected:
            if content:
                warn_damaged(self.path, "it does not match the checkpoint's checksum")
            return False
        if len(content) > length:
            os.truncate(self.path, length)
        self._digest, self._length = digest, length
        return True

    def clear(self) -> None:
        """Delete all records."""
        self.path.unlink(missing_ok=True)
        self._digest, self._length = hashlib.sha256(), 0
