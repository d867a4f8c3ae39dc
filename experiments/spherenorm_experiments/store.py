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
    <root>/code/<digest>.json     the release, and the user's own files that were loaded
    <root>/plans/<digest>.json    what was asked for

A file is written whole or not at all, and nothing runs twice. Nothing here imports torch before it
loads a checkpoint, so that a command that only looks at a store is fast.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherenorm import __version__
from spherenorm.support import PACKAGES, atomic_write, is_installed
from spherenorm_experiments.spec import Spec, spec_name

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".py", *(f".{name.rpartition('.')[2]}" for name in EXTENSION_SUFFIXES))


def digest(content: Any) -> str:
    """Return the SHA-256 of JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def user_files() -> dict[str, Path]:
    """Return the file of each loaded module that is a user's own, by the module's name.

    Modules of this project are those of a release, and installed packages have versions.
    """
    files: dict[str, Path] = {}
    # Another thread may import a module meanwhile; a copy is taken at once, a list is not.
    for key, module in sys.modules.copy().items():
        file, name = getattr(module, "__file__", None) or "", key
        if key in ("__main__", "__mp_main__"):  # by its own name: a worker imports it as that
            spec = getattr(module, "__spec__", None)
            name = Path(file).stem if spec is None else spec.name
        path = _user_file(name, file)
        if path is not None:
            files[name] = path
    return files


def changed_modules(digests: Mapping[str, str]) -> list[str]:
    """Return those of these modules that have other bytes here, or are not here.

    Args:
        digests: the SHA-256 of each module's file, by the module's name.
    """
    files = {name: _file_of(name) for name in digests}
    return sorted(
        name for name, path in files.items() if path is None or file_digest(path) != digests[name]
    )


@functools.cache  # the code in memory runs, even if its file changes later
def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as it was when this process first asked."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _user_file(name: str, file: str) -> Path | None:
    """Return the file of a loaded module if it is a user's own, else None."""
    path = Path(file)
    if not path.is_absolute() or path.suffix not in SUFFIXES:  # (`torch.ops` says "_ops.py")
        return None
    path = path.resolve()
    is_ours = name.partition(".")[0] in PACKAGES
    return None if is_ours or is_installed(path) or not path.is_file() else path


def _file_of(name: str) -> Path | None:
    """Return the file of a module, loaded or not; None if there is no such module here."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file).resolve() if file else None
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # importing the package around it fails
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


BULKY = ("views", "shapes")
"""Entries of a summary that are about every weight."""


class StoreError(Exception):
    """The store cannot be written or read (a full disk, no permission): no run can go on."""


class StoreWarning(UserWarning):
    """A file of the store cannot be read, or a part of a request cannot be shown here."""


class Busy(Exception):  # noqa: N818  (not an error: somebody else does the work)
    """Another process holds the run."""


@dataclass(frozen=True)
class Row:
    """A run that has ended.

    Attributes:
        name: of the run, see `run_name`.
        spec: what was asked for.
        summary: its numbers, and "diverged_at".
        folder: its files.
        index: its place in the folder's arrays; None for a run that trained alone.
        code: hashes of the release and the user's own files, in the store; several if it was
            resumed after an edit, under `--accept-code`.
        about: the versions, the hardware and the executor of its steps, and the seconds it took.
        written_at: when, in seconds since 1970.
    """

    name: str
    spec: Spec
    summary: Mapping[str, Any]
    folder: RunFolder
    index: int | None = None
    code: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    written_at: float = 0.0

    @property
    def data(self) -> str:
        """The digits of its data, which end its name."""
        return self.name.rpartition("-")[2]

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that its task has kept."""
        if self.index is None:
            return {}
        arrays = _arrays(self.folder.path / "arrays.npz", self.written_at)
        return {name: x[self.index] for name, x in arrays.items()}

    def records(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The measurements at each step of a run that trained alone; see `RunFolder.records`."""
        return [] if self.index is not None else self.folder.records(names)


class Store:
    """All runs under one root.

    Args:
        accept_code: rows of other code than is here count, too.
    """

    def __init__(self, root: Path | str, accept_code: bool = False) -> None:
        self.root, self.accept_code = Path(root), accept_code
        self._read: dict[Path, tuple[int, list[Row]]] = {}
        self._changed: dict[str, list[str]] = {}

    def folder(self, name: str) -> RunFolder:
        """Return the folder of the run of that name, which need not exist yet."""
        return RunFolder(self.root / "runs" / name)

    def batch(self, names: Sequence[str]) -> RunFolder:
        """Return the folder of runs that train as one computation."""
        readable = names[0].rsplit("-", 2)[0]
        return RunFolder(self.root / "batches" / f"{readable}-{digest(list(names))[:16]}")

    def folders(self) -> Iterator[RunFolder]:
        """Yield every folder in the store, by name; those of batches come last."""
        for kind in ("runs", "batches"):
            yield from (RunFolder(path) for path in sorted((self.root / kind).glob("*/")))

    def rows(self) -> list[Row]:
        """Return every run that has ended, also those of other code than is here."""
        return [row for folder in self.folders() for row in self._rows_in(folder)]

    def find(self, names: Iterable[str]) -> dict[str, Row]:
        """Find the runs of these names that have ended and count."""
        rows = self._rows_of(set(names))
        return self._best((row.name, row) for row in rows if self.is_accepted(row.code))

    def newest(self, specs: Iterable[Spec]) -> dict[str, Row]:
        """Find each spec's run that has ended, by `spec_name`: the current one, else the newest.

        Their code and data need not be here. Of the rows of one task with its options those count
        that have the data of the newest.
        """
        wanted = {spec_name(spec) for spec in specs}
        names = [path.name for path in (self.root / "runs").glob("*")]
        names += [row.name for row in self._batched()]
        rows = self._rows_of({name for name in names if name.rpartition("-")[0] in wanted})
        data = {_task(row): row.data for row in sorted(rows, key=lambda row: row.written_at)}
        rows_of_newest_data = [row for row in rows if row.data == data[_task(row)]]
        return self._best((row.name.rpartition("-")[0], row) for row in rows_of_newest_data)

    def is_accepted(self, code: Sequence[str]) -> bool:
        """True for code that is here, or for any if it is accepted."""
        return self.accept_code or self.is_current(code)

    def is_current(self, code: Sequence[str]) -> bool:
        """True if a run's code is of this release, and the user's files have the same bytes."""
        return not self.changed(code)

    def changed(self, code: Sequence[str]) -> list[str]:
        """Return what differs here from a run's code: the user's modules, and the release."""
        for name in code:
            if name not in self._changed:
                content = read_json(self.root / "code" / f"{name}.json") or {}
                release = content.get("release", "of unknown release")
                changed = changed_modules(content.get("files", {}))
                changed += [f"spherenorm {release}"] if release != __version__ else []
                self._changed[name] = changed
        if not code:
            return ["unknown code"]
        return sorted({module for name in code for module in self._changed[name]})

    def write_code(self) -> str:
        """Write the release and the user's own files; return the name by which rows have them."""
        files = user_files()
        digests = {name: file_digest(path) for name, path in files.items()}
        identity = {"release": __version__, "files": digests}
        name = digest(identity)[:16]
        path = self.root / "code" / f"{name}.json"
        if not path.exists():
            sources = {name: file.read_text(errors="replace") for name, file in files.items()}
            write_json(path, {**identity, "sources": sources})
        return name

    def _rows_of(self, names: Set[str]) -> list[Row]:
        """Return the rows of runs of these names."""
        rows = [row for name in names for row in self._rows_in(self.folder(name))]
        return rows + [row for row in self._batched() if row.name in names]

    def _batched(self) -> list[Row]:
        """Return the rows of runs that have trained with others."""
        paths = (self.root / "batches").glob("*/")
        return [row for path in paths for row in self._rows_in(RunFolder(path))]

    def _best(self, named: Iterable[tuple[str, Row]]) -> dict[str, Row]:
        """Return the row of each name: one of current code, else the newest."""
        rank = [((self.is_current(row.code), row.written_at), name, row) for name, row in named]
        return {name: row for _, name, row in sorted(rank, key=lambda candidate: candidate[0])}

    def _rows_in(self, folder: RunFolder) -> list[Row]:
        """Return the rows of a folder, read again only if its file is another one."""
        try:
            stamp = (folder.path / "rows.json").stat().st_mtime_ns
        except OSError:
            return []
        if folder.path not in self._read or self._read[folder.path][0] != stamp:
            self._read[folder.path] = stamp, folder.rows()
        return self._read[folder.path][1]


class RunFolder:
    """The files of a run, or of runs that train as one computation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the run; the operating system releases it when the process ends, however it ends.

        Raises:
            Busy: somebody else has held it for `wait` seconds; -1 waits without an end.
        """
        from filelock import FileLock, Timeout  # not needed by commands that only read

        lock = FileLock(self.path / "lock", timeout=wait)
        with _as_store_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                raise Busy(self.name) from None
        try:
            yield
        finally:
            lock.release()

    def is_held(self) -> bool:
        """Return True if a living process holds the run, or if that cannot be found out here."""
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
        """Return the state in its status; a process that no longer lives was killed."""
        state: str = self.status().get("state", "never started")
        return "killed" if state == "running" and not self.is_held() else state

    def progress(self) -> dict[str, Any] | None:
        """The progress of a run that trains now: step, steps, rate (1/s), remaining (s), last."""
        content: dict[str, Any] | None = read_json(self.path / "progress.json")
        return content

    def rows(self) -> list[Row]:
        """Return the rows of the runs, once they have ended."""
        content = read_json(self.path / "rows.json")
        if content is None:
            return []
        is_single, rows = self.path.parent.name == "runs", []
        try:
            common = tuple(content["code"]), content["about"], content["written"]
            for index, row in enumerate(content["rows"]):
                spec, place = Spec.from_json(row["spec"]), None if is_single else index
                rows.append(Row(row["name"], spec, row["summary"], self, place, *common))
        except (KeyError, TypeError, ValueError) as error:  # of a version that had other fields
            _warn(self.path / "rows.json", str(error))
        return rows

    def summary(self) -> Mapping[str, Any] | None:
        """Return the numbers of a run that trained alone; None before it has ended."""
        rows = self.rows()
        return rows[0].summary if rows else None

    def finish(
        self,
        rows: Sequence[tuple[str, Spec, Mapping[str, Any]]],
        code: Sequence[str],
        about: Mapping[str, Any],
    ) -> None:
        """Write the rows: names, specs and summaries."""
        about_all = {"code": list(code), "about": about, "written": time.time()}
        listed = [{"name": n, "spec": s.to_json(), "summary": numbers} for n, s, numbers in rows]
        write_json(self.path / "rows.json", {**about_all, "rows": listed})

    def append(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Write the records of steps after those that are there; the length of all in bytes.

        A checkpoint keeps that length, to which a run that goes on cuts them back.
        """
        path = self.path / "metrics.jsonl"
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        with _as_store_error(path), path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def records(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the record of every step, or of each only the numbers of these names.

        A run that was killed may have left half a line at the end.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        records = [json.loads(line) for line in lines]
        if names is None:
            return records
        return [{name: record[name] for name in names if name in record} for record in records]

    def rewind(self, length: int) -> None:
        """Cut the records back to a length."""
        os.truncate(self.path / "metrics.jsonl", length)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        import torch

        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_file(self.path / "checkpoint.pt", buffer.getvalue())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint; None if there is none."""
        import torch

        path = self.path / "checkpoint.pt"
        exists = path.exists()
        return torch.load(path, weights_only=True, map_location="cpu") if exists else None

    def delete_leftovers(self) -> None:
        """Delete what a process that was killed left half written; only who holds a run may."""
        for path in self.path.glob(".*"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget how far the run was, to start it from the beginning; its row stays."""
        for name in ("metrics.jsonl", "checkpoint.pt"):
            (self.path / name).unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder need not exist.

    Raises:
        StoreError: it cannot be written.
    """
    with _as_store_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)


def write_json(path: Path, content: Any) -> None:
    """Write JSON content, whole or not at all."""
    write_file(path, json.dumps(content, indent=1, allow_nan=False).encode())


def read_json(path: Path) -> Any:
    """Return the content; None if there is no such file, or with a warning if it is no JSON."""
    try:
        with _as_store_error(path), suppress(FileNotFoundError, NotADirectoryError):
            return json.loads(path.read_bytes())
    except ValueError as error:
        _warn(path, str(error))
    return None


def _warn(path: Path, reason: str) -> None:
    warnings.warn(f"{path} does not count: {reason}", StoreWarning, stacklevel=3)


@contextmanager
def _as_store_error(path: Path) -> Iterator[None]:
    """Raise an OSError as a StoreError that names the path."""
    try:
        yield
    except OSError as error:  # a full disk, a missing permission, a path that is too long
        raise StoreError(f"cannot use {path}: {error.strerror or error}") from error


@functools.lru_cache(maxsize=64)
def _arrays(path: Path, written_at: float) -> dict[str, np.ndarray]:
    """Return the arrays of a batch; of a file that was written anew, those of the new one."""
    import numpy as np

    with np.load(path) as file:
        return dict(file)


def _task(row: Row) -> str:
    """Return the task of a row with its options, as text."""
    return json.dumps([row.spec.task, dict(row.spec.options)], sort_keys=True)
