"""The records of a run, one per step: lines of JSON, or for long runs parts of Parquet.

    metrics.jsonl                       a line per record, appended; for runs of seconds
    metrics/000500-001000.parquet       500 records, a column of float32 for each number

Both are read in the same way. A checkpoint keeps a mark, and a resumed run rewinds its records to
it. The last part is written anew at each checkpoint under another name, until it is full; what a
mark does not name is deleted when the run resumes.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spherenorm_experiments.core import require_extra
from spherenorm_experiments.files import (
    as_store_error,
    read_bytes,
    set_aside,
    sha256,
    write_file,
)

__all__ = ["LONG", "PART", "JsonLines", "ParquetParts", "Records", "records_in"]

LONG = 5000
"""Steps of a run from which on its records are Parquet, if pyarrow is installed."""

PART = 500
"""Records of a part."""

Record = Mapping[str, Any]
Mark = list[list[Any]]
"""For each file its name, checksum, and length: bytes of lines, records of a part."""


class Records(ABC):
    """The records of one run."""

    @abstractmethod
    def append(self, records: Iterable[Record]) -> None:
        """Write records after those that are there."""

    @abstractmethod
    def read(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Every record, or of each only the numbers of these names."""

    @abstractmethod
    def mark(self) -> Mark:
        """The present end of the records, to which `rewind` returns."""

    @abstractmethod
    def rewind(self, mark: Mark) -> bool:
        """Cut the records back to the mark.

        False, and the files are set aside, if what comes before the mark is not what was written.
        """

    def settle(self, mark: Mark) -> None:  # noqa: B027  (lines have nothing to delete)
        """Delete what a mark does not name, now that it is safe in a checkpoint."""

    @abstractmethod
    def files(self) -> list[str]:
        """The names of the files, within the run's folder."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all records."""


def records_in(folder: Path, steps: int = 0) -> Records:
    """The records of a run's folder, in the form that they have; new ones by the run's steps."""
    if (folder / "metrics.jsonl").exists():
        return JsonLines(folder)
    if (folder / "metrics").is_dir() or (steps >= LONG and _has_pyarrow()):
        return ParquetParts(folder)
    return JsonLines(folder)


def _has_pyarrow() -> bool:
    try:
        require_extra("pyarrow", "records in Parquet")
    except ValueError:
        return False
    return True


class JsonLines(Records):
    """A line of JSON per record."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def append(self, records: Iterable[Record]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        with as_store_error(self.path), self.path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())

    def read(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Every whole line; a run that was killed may have left half a line at the end."""
        content = read_bytes(self.path) or b""
        records = [json.loads(line) for line in content.split(b"\n")[:-1] if line]
        if names is None:
            return records
        return [{name: record[name] for name in names if name in record} for record in records]

    def mark(self) -> Mark:
        content = read_bytes(self.path) or b""
        return [[self.path.name, sha256(content), len(content)]]

    def rewind(self, mark: Mark) -> bool:
        if len(mark) != 1 or mark[0][0] != self.path.name:
            return False
        _, expected, length = mark[0]
        content = read_bytes(self.path) or b""
        if len(content) < length or sha256(content[:length]) != expected:
            if content:
                set_aside(self.path, "does not match the checkpoint's checksum")
            return False
        if len(content) > length:
            os.truncate(self.path, length)
        return True

    def files(self) -> list[str]:
        return [self.path.name]

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


class ParquetParts(Records):
    """Parts of `PART` records (extra: data).

    Numbers are float32, `step` is an integer. Lists of numbers and what is nested are columns too,
    named by the JSON list of their keys; a number that a record does not have is null there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics"
        self._tail: list[dict[str, Any]] | None = None
        self._sealed: Mark = []

    def append(self, records: Iterable[Record]) -> None:
        tail = self._open() + [dict(record) for record in records]
        while len(tail) >= PART:
            self._sealed.append(self._write(tail[:PART], self._start()))
            tail = tail[PART:]
        self._tail = tail

    def mark(self) -> Mark:
        """The end; it writes the part that is not full yet."""
        tail = self._open()
        mark = [*self._sealed, *([self._write(tail, self._start())] if tail else [])]
        return [list(entry) for entry in mark]

    def rewind(self, mark: Mark) -> bool:
        for name, expected, _ in mark:
            path = self.path.parent / name
            content = read_bytes(path)
            if content is None or sha256(content) != expected:
                if content is not None:
                    set_aside(path, "does not match the checkpoint's checksum")
                return False
        self.settle(mark)
        full = [list(entry) for entry in mark if entry[2] == PART]
        self._sealed = full
        self._tail = [] if len(full) == len(mark) else _read(self.path.parent / mark[-1][0], None)
        return True

    def settle(self, mark: Mark) -> None:
        named = {Path(name).name for name, *_ in mark}
        for path in self.path.glob("*.parquet"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def read(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return [record for path in self._parts() for record in _read(path, names)]

    def files(self) -> list[str]:
        return [f"{self.path.name}/{path.name}" for path in self._parts()]

    def clear(self) -> None:
        self._tail, self._sealed = [], []
        for path in self.path.glob("*.parquet"):
            path.unlink(missing_ok=True)

    def _parts(self) -> list[Path]:
        """The parts in order; of two that start alike the longer one."""
        longest: dict[str, Path] = {}
        for path in sorted(self.path.glob("*.parquet")):
            longest[path.stem.partition("-")[0]] = path
        return list(longest.values())

    def _start(self) -> int:
        return PART * len(self._sealed)

    def _open(self) -> list[dict[str, Any]]:
        """The records after the last full part; read once, where a folder is opened anew."""
        if self._tail is None:
            raise RuntimeError("rewind or clear the records before appending")
        return self._tail

    def _write(self, records: Sequence[Record], start: int) -> list[Any]:
        content = _packed(records)
        name = f"{start:09d}-{start + len(records):09d}.parquet"
        write_file(self.path / name, content)
        return [f"{self.path.name}/{name}", sha256(content), len(records)]


def _packed(records: Sequence[Record]) -> bytes:
    pyarrow = require_extra("pyarrow", "records in Parquet")
    from pyarrow import parquet

    rows = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        nested = any(isinstance(value, list) for value in values)
        kind = pyarrow.int64() if name == "step" else pyarrow.float32()
        columns[name] = pyarrow.array(values, pyarrow.list_(kind) if nested else kind)
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def _flat(record: Record) -> dict[str, Any]:
    """The numbers, and lists of numbers, of a record; nested ones by their keys as JSON."""
    flat: dict[str, Any] = {}

    def visit(keys: list[Any], value: Any) -> None:
        lists = isinstance(value, list) and any(isinstance(x, dict | list) for x in value)
        if isinstance(value, dict) or lists:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in pairs:
                visit([*keys, key], inner)
        else:
            flat[keys[0] if len(keys) == 1 else json.dumps(keys)] = value

    for name, value in record.items():
        visit([name], value)
    return flat


def _read(path: Path, names: Sequence[str] | None) -> list[dict[str, Any]]:
    require_extra("pyarrow", "records in Parquet")
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    known = file.schema_arrow.names
    chosen = known if names is None else [name for name in known if _top(name) in names]
    return [_nested(row) for row in file.read(columns=chosen).to_pylist()]


def _top(name: str) -> str:
    return str(json.loads(name)[0]) if name.startswith("[") else name


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a row; dictionaries of consecutive integers are lists again."""
    record: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        keys = json.loads(name) if name.startswith("[") else [name]
        place = record
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
    return {name: _listed(value) for name, value in record.items()}


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(part) for key, part in value.items()}
    return [inner[key] for key in sorted(inner)] if set(inner) == set(range(len(inner))) else inner
