"""The store: a folder per run, named by its spec and its data.

    <root>/runs/<task>-<recipe>-<spec>-<data>/
        rows.json       the result, written last: spec, data, code, origin, seconds, numbers
        status.json     running | finished | diverged | failed | interrupted; times, the error
        metrics.jsonl   a line per step, appended; cut back to the checkpoint when a run resumes
        checkpoint.pt   the last state to go on from
        progress.json   how far it is, while it trains
    <root>/batches/<task>-<recipe>-<rows>/
        rows.json       runs of a pure task that have trained as one computation: a row for each
        arrays.npz      their curves
    <root>/code/<digest>.json     the modules that were loaded, and the sources of a user's own
    <root>/plans/<digest>.json    what was asked for

Nothing in it is lost, and nothing runs twice. A file is written whole or not at all. One that
cannot be read is named in a warning and does not count. Nothing here imports torch before it loads
a checkpoint, so that a command that only looks at a store is fast.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherenorm.support import write_whole
from spherenorm_experiments.code import digest, is_current, loaded_code, source_texts

if TYPE_CHECKING:
    import numpy as np

    from spherenorm_experiments.spec import Spec

BULKY = ("views", "shapes")
"""Entries of a summary that are about every weight."""

LONGEST = 120
"""Letters of a folder's name before the hashes; file systems take 255 bytes."""

DATA_DIGITS = 8
"""Of the fingerprint of the data, in a run's name."""


class StoreError(Exception):
    """The store cannot be written or read (a full disk, no permission): no run can go on."""


class StoreWarning(UserWarning):
    """A file of the store cannot be read, or a part of a request cannot be shown here."""


class Busy(Exception):  # noqa: N818  (not an error: somebody else does the work)
    """Another process holds the run."""


def spec_name(spec: Spec) -> str:
    """The name of a run without its data: task, recipe, and 16 digits of the spec's SHA-256."""
    readable = re.sub(r"[^\w-]+", "_", f"{spec.task}-{spec.recipe}")
    return f"{readable[:LONGEST]}-{hashlib.sha256(spec.text.encode()).hexdigest()[:16]}"


def run_name(spec: Spec, data: str) -> str:
    """The name of a run.

    Args:
        data: the fingerprint of its data.
    """
    return f"{spec_name(spec)}-{digest(data)[:DATA_DIGITS]}"


@dataclass(frozen=True)
class Row:
    """A run that has ended.

    Attributes:
        name: of the run, see `run_name`.
        spec: what was asked for.
        summary: its numbers, and "diverged_at".
        folder: its files.
        index: its place in the folder's arrays; None for a run that trained alone.
        code: the names of the code that it was trained with, in the store; several if it was
            resumed after an edit, under `--accept-code`.
        about: the versions, the hardware and the executor of its steps, and the seconds it took.
        written: when, in seconds since 1970.
    """

    name: str
    spec: Spec
    summary: Mapping[str, Any]
    folder: RunFolder
    index: int | None = None
    code: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    written: float = 0.0

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that its task has kept."""
        if self.index is None:
            return {}
        arrays = _arrays(self.folder.path / "arrays.npz", self.written)
        return {name: x[self.index] for name, x in arrays.items()}

    def records(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The measurements at each step, of a run that trained alone; see `Records.read`."""
        return [] if self.index is not None else self.folder.metrics.read(names)


class Store:
    """All runs under one root.

    Args:
        accept_code: rows of other code than is here count, too.
    """

    def __init__(self, root: Path | str, accept_code: bool = False) -> None:
        self.root, self.accept_code = Path(root), accept_code
        self._read: dict[Path, tuple[int, list[Row]]] = {}
        self._current: dict[str, bool] = {}

    def folder(self, name: str) -> RunFolder:
        """The folder of the run of that name, which need not exist yet."""
        return RunFolder(self.root / "runs" / name)

    def batch(self, names: Sequence[str]) -> RunFolder:
        """The folder of runs that train as one computation."""
        readable = names[0].rsplit("-", 2)[0]
        return RunFolder(self.root / "batches" / f"{readable}-{digest(list(names))[:16]}")

    def folders(self) -> Iterator[RunFolder]:
        """Every folder in the store, by name; those of batches come last."""
        for kind in ("runs", "batches"):
            yield from (RunFolder(path) for path in sorted((self.root / kind).glob("*/")))

    def rows(self) -> list[Row]:
        """Every run that has ended, also those of other code than is here."""
        return [row for folder in self.folders() for row in self._rows_in(folder)]

    def find(self, names: Iterable[str]) -> dict[str, Row]:
        """Of the runs of these names those that have ended and count."""
        found: dict[str, Row] = {}
        batched = self._batched()
        for name in dict.fromkeys(names):
            rows = [*self._rows_in(self.folder(name)), *batched.get(name, ())]
            known = [row for row in rows if self.counts(row.code)]
            if known:
                found[name] = max(known, key=lambda row: (self.is_current(row.code), row.written))
        return found

    def newest(self, specs: Iterable[Spec]) -> dict[str, Row]:
        """Of these specs those that have ended, by `spec_name`: the current row, else the newest.

        Their code and data need not be here. Of the rows of one task with its options those count
        that have the data of the newest.
        """
        wanted = {spec_name(spec): spec for spec in specs}
        found: dict[str, list[Row]] = {}
        for name in self._names():
            if (own := name.rpartition("-")[0]) in wanted:
                found.setdefault(own, []).extend(self._rows_in(self.folder(name)))
        for name, rows in self._batched().items():
            if (own := name.rpartition("-")[0]) in wanted:
                found.setdefault(own, []).extend(rows)
        latest: dict[str, Row] = {}
        for row in (row for rows in found.values() for row in rows):
            kept = latest.setdefault(_task(row.spec), row)
            if row.written > kept.written:
                latest[_task(row.spec)] = row
        chosen = {}
        for name in (name for name, spec in wanted.items() if _task(spec) in latest):
            data = latest[_task(wanted[name])].name.rpartition("-")[2]
            rows = [row for row in found.get(name, ()) if row.name.endswith(f"-{data}")]
            if rows:
                rank = [(self.is_current(row.code), row.written) for row in rows]
                chosen[name] = rows[rank.index(max(rank))]
        return chosen

    def counts(self, code: Sequence[str]) -> bool:
        """True for code that is here, or for any if it is accepted."""
        return self.accept_code or self.is_current(code)

    def is_current(self, code: Sequence[str]) -> bool:
        """True if all modules that a run had loaded have the same bytes here."""
        for name in code:
            if name not in self._current:
                content = read_json(self.root / "code" / f"{name}.json")
                self._current[name] = content is not None and is_current(content["modules"])
        return bool(code) and all(self._current[name] for name in code)

    def write_code(self) -> str:
        """The name of the code that is loaded here, which the store then has."""
        modules = loaded_code()
        name = digest(modules)[:16]
        path = self.root / "code" / f"{name}.json"
        if not path.exists():
            write_json(path, {"modules": modules, "sources": source_texts(modules)})
        return name

    def _rows_in(self, folder: RunFolder) -> list[Row]:
        """The rows of a folder, read again only if its file is another one."""
        try:
            stamp = (folder.path / "rows.json").stat().st_mtime_ns
        except OSError:
            return []
        if folder.path not in self._read or self._read[folder.path][0] != stamp:
            self._read[folder.path] = stamp, folder.rows()
        return self._read[folder.path][1]

    def _batched(self) -> dict[str, list[Row]]:
        """The runs that have trained with others, by name."""
        found: dict[str, list[Row]] = {}
        for path in sorted((self.root / "batches").glob("*/")):
            for row in self._rows_in(RunFolder(path)):
                found.setdefault(row.name, []).append(row)
        return found

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root / "runs"))
        except OSError:
            return []


class RunFolder:
    """The files of a run, or of runs that train as one computation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

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

    def status(self) -> dict[str, Any]:
        """Empty if the run has not started."""
        return read_json(self.path / "status.json") or {}

    def write_status(self, state: str, **more: Any) -> None:
        stamp = {"state": state, "updated": time.time(), "pid": os.getpid()}
        write_json(self.path / "status.json", {**stamp, **more})

    def state(self) -> str:
        """The state in its status; a process that no longer lives was killed."""
        state: str = self.status().get("state", "never started")
        return "killed" if state == "running" and not self.held() else state

    def rows(self) -> list[Row]:
        """The rows of the runs, once they have ended."""
        from spherenorm_experiments.spec import Spec

        path = self.path / "rows.json"
        content = read_json(path)
        if content is None:
            return []
        try:
            alone, about = len(content["rows"]) == 1 and self.path.parent.name == "runs", content
            return [
                Row(
                    row["name"],
                    Spec.from_json(row["spec"]),
                    row["summary"],
                    self,
                    None if alone else index,
                    tuple(about["code"]),
                    about["about"],
                    about["written"],
                )
                for index, row in enumerate(content["rows"])
            ]
        except (KeyError, TypeError, ValueError) as error:
            warn_unreadable(path, f"it is of another version ({error})")
            return []

    def summary(self) -> Mapping[str, Any] | None:
        """The numbers of a run that trained alone; None before it has ended."""
        rows = self.rows()
        return rows[0].summary if rows else None

    def finish(
        self,
        rows: Sequence[tuple[str, Spec, Mapping[str, Any]]],
        code: Sequence[str],
        about: Mapping[str, Any],
    ) -> None:
        """Write the rows: names, specs and summaries."""
        listed = [
            {"name": name, "spec": spec.to_json(), "summary": summary}
            for name, spec, summary in rows
        ]
        content = {"code": list(code), "about": about, "written": time.time(), "rows": listed}
        write_json(self.path / "rows.json", content)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        import torch

        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_file(self.path / "checkpoint.pt", buffer.getvalue())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; None if there is none, or none that can be read."""
        import torch

        path = self.path / "checkpoint.pt"
        content = read_bytes(path)
        if content is None:
            return None
        try:
            state: dict[str, Any] = torch.load(
                io.BytesIO(content), weights_only=True, map_location="cpu"
            )
        except Exception as error:  # of many types, by the kind of damage
            warn_unreadable(path, str(error).partition("\n")[0])
            return None
        return state

    def clear(self) -> None:
        """Forget how far the run was, to start it from the beginning; its row stays."""
        for name in ("metrics.jsonl", "checkpoint.pt"):
            (self.path / name).unlink(missing_ok=True)


class Records:
    """The records of one run, `metrics.jsonl` in its folder: a line of JSON for each step.

    A checkpoint keeps the length in bytes of the records before it, to which a resumed run cuts
    them back.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Write records after those that are there; the length of all of them."""
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        with as_store_error(self.path), self.path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Every whole line, or of each only the numbers of these names.

        A run that was killed may have left half a line at the end.
        """
        content = read_bytes(self.path) or b""
        records = [json.loads(line) for line in content.split(b"\n")[:-1] if line]
        if names is None:
            return records
        return [{name: record[name] for name in names if name in record} for record in records]

    def rewind(self, length: int) -> bool:
        """Cut the records back to a length; False if there are fewer."""
        try:
            known = self.path.stat().st_size
        except OSError:
            known = 0
        if known > length:
            os.truncate(self.path, length)
        return known >= length


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder need not exist.

    Raises:
        StoreError: it cannot be written.
    """
    with as_store_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def write_json(path: Path, content: Any) -> None:
    """Write JSON content, whole or not at all."""
    write_file(path, json.dumps(content, indent=1, allow_nan=False).encode())


def read_json(path: Path) -> Any:
    """The content; None if there is no such file, or with a warning if it is no JSON."""
    raw = read_bytes(path)
    if raw is None:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        warn_unreadable(path, "it is no JSON document")
        return None


def read_bytes(path: Path) -> bytes | None:
    """The bytes of a file; None if there is none.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a missing permission, a path that is too long
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def warn_unreadable(path: Path, reason: str) -> None:
    """Say that a file does not count; who holds the run writes it anew."""
    warnings.warn(f"{path}: {reason}; it does not count", StoreWarning, stacklevel=3)


@contextmanager
def as_store_error(path: Path) -> Iterator[None]:
    """Raise an OSError as a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


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


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_file(path, buffer.getvalue())


@functools.lru_cache(maxsize=64)
def _arrays(path: Path, written: float) -> dict[str, np.ndarray]:
    """The arrays of a batch; of a file that was written anew, those of the new one."""
    import numpy as np

    with np.load(path) as file:
        return dict(file)


def _task(spec: Spec) -> str:
    """A task with its options, as text."""
    return json.dumps([spec.task, dict(spec.options)], sort_keys=True)
