"""Files that are written whole or not at all, and that say by a checksum if they are intact."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPEAT = "repeat its `run` command: what has finished is kept and not run again"
LOST_REQUEST = f"what was asked is lost; {REPEAT}"


class RequestWarning(UserWarning):
    """A part of a request that cannot be shown here."""


class StoreError(Exception):
    """The store cannot be written or read (a full disk, no permission): no run can go on."""


class CorruptFileWarning(UserWarning):
    """A file of the store does not match its checksum."""


class Busy(Exception):  # noqa: N818  (not an error: somebody else does the work)
    """Another process holds the run."""


def sha256(content: bytes) -> str:
    """The SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder need not exist.

    Raises:
        StoreError: it cannot be written.
    """
    from spherenorm.support import write_whole

    with as_store_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def write_json(path: Path, content: Any, owner: str = "") -> None:
    """Write JSON content together with its checksum.

    Args:
        owner: the run that it is of; the same file in another run's folder is not intact.
    """
    body = json.loads(_dumped(content))
    document = {"content": body, "owner": owner, "sha256": _checksum(body, owner)}
    write_file(path, _dumped(document).encode())


def read_json(path: Path, owner: str = "") -> Any:
    """The content; None if there is no such file, or with a warning if it is corrupt."""
    raw = read_bytes(path)
    if raw is None:
        return None
    try:
        document = json.loads(raw)
        content = document["content"]
        known = document.get("owner", "")  # without one: written by an earlier version
        intact = known in ("", owner) and _checksum(content, known) == document["sha256"]
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        whose = "this run" if owner else "this store"
        warn_damaged(path, f"it is no JSON document of {whose} or its checksum is wrong")
        return None
    return content


def _checksum(content: Any, owner: str) -> str:
    return sha256((f"{owner}\n" * bool(owner) + _dumped(content)).encode())


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


def read_documents(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The intact JSON documents of a folder by name, and the files of the others."""
    contents = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    intact = {path.stem: content for path, content in contents.items() if content is not None}
    return intact, [path.name for path in contents if path.stem not in intact]


def warn_damaged(path: Path, reason: str) -> None:
    """Say that a file is not what was written; who holds the run writes it anew."""
    warnings.warn(f"{path}: {reason}; it does not count", CorruptFileWarning, stacklevel=3)


@contextmanager
def as_store_error(path: Path) -> Iterator[None]:
    """Raise an OSError as a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def _dumped(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True)
