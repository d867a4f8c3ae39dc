"""`Items`: a data set whose items are read one by one, from files or from arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FINGERPRINTED = 16
"""Files, spread evenly, whose bytes are part of a fingerprint; of the others the names are."""


class Items:
    """A map-style data set: item k is `load(column[k], ...)`, of every column.

    Args:
        load: of a row; randomness comes from the global random states, which each item seeds.
        columns: arrays, or tensors, of one length; workers share them.
        folder: if the first column is one of files, the folder in which they lie; `load` is given
            their paths, and bytes of a few of them are part of the fingerprint.
        form: of an item, such as its size; a part of the fingerprint.

    Example:
        >>> items = Items(lambda x, label: (2 * x, int(label)), [0.5, 1.5], [7, 8])
        >>> len(items), items[1]
        (2, (3.0, 8))
    """

    def __init__(
        self, load: Callable[..., Any], *columns: Any, folder: Path | None = None, form: Any = ""
    ) -> None:
        self.load, self.folder, self.form = load, folder, form
        if folder is not None:  # bytes: a million strings would be copied into every worker
            columns = (np.array(columns[0], dtype=np.bytes_), *columns[1:])
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Any:
        inputs, *more = (column[index] for column in self.columns)
        return self.load(inputs if self.folder is None else self.path(index), *more)

    def path(self, index: int) -> Path:
        """The file of an item."""
        assert self.folder is not None
        return self.folder / str(self.columns[0][index], "utf-8")

    def fingerprint(self) -> str:
        """A hash of all columns and of a few files, wherever the folder lies."""
        arrays = [np.asarray(column) for column in self.columns]
        form = self.form, [(x.dtype, x.shape) for x in arrays]
        digest = hashlib.sha256(b"".join([str(form).encode(), *(x.tobytes() for x in arrays)]))
        if self.folder is not None:
            spread = {k * (len(self) - 1) // (FINGERPRINTED - 1) for k in range(FINGERPRINTED)}
            for index in sorted(spread):
                digest.update(self.path(index).read_bytes())
        return digest.hexdigest()
