"""The store: a folder per run, named by the hash of its configuration. Nothing in it is lost, and nothing runs twice.

    <root>/runs/<task>-<recipe>-<hash>/
        config.json     the whole configuration, written first
        status.json     running | finished | diverged | failed | interrupted; step, times, the error if there was one
        metrics.jsonl   a line per step, appended; what lies beyond the checkpoint is cut off when the run resumes
        checkpoint.pt   the last state to go on from
        summary.json    the result, written last
        arrays.npz      curves of a sweep

A file is written whole or not at all, and carries its SHA-256. One that does not match is set aside under the name
`<file>.corrupt-<n>` with a warning, never deleted, and the run goes on from what is intact.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from experiments.spec import Spec

__all__ = ["Busy", "CorruptFileWarning", "RunFolder", "Store", "StoreError"]


class StoreError(Exception):
    """The store cannot be written (a full disk, a missing permission): no run can go on."""


class Busy(Exception):  # noqa: N818  (not an error: somebody else does the work)
    """Another process holds the run."""


class CorruptFileWarning(UserWarning):
    """A file of the store did not match its checksum and was set aside."""


class Store:
    """All runs under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, spec: Spec) -> RunFolder:
        """The folder of a run, which need not exist yet."""
        return self.run(spec.id)

    def run(self, name: str) -> RunFolder:
        """The folder of the run of that name."""
        return RunFolder(self.root / "runs" / name)

    def folders(self) -> Iterator[RunFolder]:
        """Every run in the store, by name."""
        for path in sorted((self.root / "runs").glob("*/")):
            yield RunFolder(path)

    def write_json(self, name: str, content: Any) -> None:
        """A document of the store itself (a plan)."""
        _write_json(self.root / name, content)

    def read_json(self, name: str) -> Any:
        return _read_json(self.root / name)


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"

    def __repr__(self) -> str:
        return f"RunFolder({self.path.name})"

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the run; the operating system releases it when the process ends, however it ends.

        Raises:
            Busy: somebody else has held it for `wait` seconds.
        """
        _make_folder(self.path)
        try:
            with FileLock(self.path / "lock", timeout=wait):
                yield
        except Timeout:
            raise Busy(self.path.name) from None

    def held(self) -> bool:
        """Whether a living process holds the run."""
        try:
            with self.lock():
                return False
        except Busy:
            return True

    def config(self) -> dict[str, Any] | None:
        return _read_json(self.path / "config.json")  # type: ignore[no-any-return]

    def write_config(self, config: Mapping[str, Any]) -> None:
        _write_json(self.path / "config.json", config)

    def status(self) -> dict[str, Any]:
        """Empty if the run has not started."""
        return _read_json(self.path / "status.json") or {}

    def write_status(self, state: str, **more: Any) -> None:
        _write_json(
            self.path / "status.json",
            {"state": state, "updated": time.time(), "pid": os.getpid(), **more},
        )

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, if everything that it vouches for is intact."""
        summary = _read_json(self.path / "summary.json")
        if summary is None:
            return None
        for name, expected in summary.get("files", {}).items():
            content = _read_bytes(self.path / name)
            if content is None or _sha256(content) != expected:
                if content is not None:
                    _set_aside(self.path / name, "does not match the summary's checksum")
                (
                    self.path / "summary.json"
                ).unlink()  # of a result whose curves are gone: it is computed anew
                return None
        return summary  # type: ignore[no-any-return]

    def whole(self) -> bool:
        """Whether a finished run still has what tells what it was and how it ended."""
        return self.config() is not None and bool(self.status())

    def finish(self, summary: Mapping[str, Any], files: Iterable[str]) -> None:
        """Write the result; it vouches for `files` by their checksums."""
        digests = {name: _sha256((self.path / name).read_bytes()) for name in files}
        _write_json(self.path / "summary.json", {**summary, "files": digests})

    def append_metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        with _as_store_error(self.metrics_path), self.metrics_path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Every whole line; a run that was killed may have left half a line at the end."""
        content = _read_bytes(self.metrics_path) or b""
        return [json.loads(line) for line in content.split(b"\n")[:-1] if line]

    def metrics_mark(self) -> tuple[int, str]:
        """Length and checksum of the metrics, kept in a checkpoint so that both can be brought together again."""
        content = _read_bytes(self.metrics_path) or b""
        return len(content), _sha256(content)

    def rewind_metrics(self, mark: tuple[int, str]) -> bool:
        """Cut the metrics back to the mark; False, and set them aside, if what comes before it is not what was written."""
        length, expected = mark
        content = _read_bytes(self.metrics_path) or b""
        if len(content) < length or _sha256(content[:length]) != expected:
            if content:
                _set_aside(self.metrics_path, "does not match the checkpoint's checksum")
            return False
        if len(content) > length:
            os.truncate(self.metrics_path, length)
        return True

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        payload = buffer.getvalue()
        write_whole(self.path / "checkpoint.pt", _sha256(payload).encode() + b"\n" + payload)

    def load_checkpoint(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        content = _read_bytes(path)
        if content is None:
            return None
        expected, _, payload = content.partition(b"\n")
        if _sha256(payload).encode() != expected:
            _set_aside(path, "its checksum is wrong")
            return None
        return torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")  # type: ignore[no-any-return]

    def save_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_whole(self.path / "arrays.npz", buffer.getvalue())

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path / "arrays.npz") as file:
            return dict(file)

    def clear(self) -> None:
        """Forget how far the run was, to start it from the beginning."""
        for name in ("metrics.jsonl", "checkpoint.pt", "summary.json"):
            (self.path / name).unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all, and on the disk when this returns."""
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _as_store_error(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _write_json(path: Path, content: Any) -> None:
    body = json.dumps(content, indent=1, sort_keys=True)
    write_whole(
        path,
        json.dumps(
            {"content": json.loads(body), "sha256": _sha256(body.encode())},
            indent=1,
            sort_keys=True,
        ).encode(),
    )


def _read_json(path: Path) -> Any:
    """The content; None if there is no such file, or if it was corrupt and is now set aside."""
    raw = _read_bytes(path)
    if raw is None:
        return None
    try:
        document = json.loads(raw)
        content = document["content"]
        body = json.dumps(content, indent=1, sort_keys=True)
        intact = _sha256(body.encode()) == document["sha256"]
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        _set_aside(path, "it is no JSON document of this store or its checksum is wrong")
        return None
    return content


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _set_aside(path: Path, reason: str) -> None:
    n = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{n}")).exists():
        n += 1
    try:
        os.replace(path, aside)
    except FileNotFoundError:  # another process was faster
        return
    warnings.warn(f"{path}: {reason}; set aside as {aside.name}", CorruptFileWarning, stacklevel=3)


def _make_folder(path: Path) -> None:
    with _as_store_error(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
