"""The records of a run: a line of JSON for each step, appended.

A checkpoint keeps a mark of the records before it, their length and checksum, and a resumed run
rewinds its records to it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spherenorm_experiments.files import as_store_error, read_bytes, warn_damaged

__all__ = ["Mark", "Records"]

Mark = list[Any]
"""The length in bytes, and the SHA-256."""


class Records:
    """The records of one run, `metrics.jsonl` in its folder."""

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
