"""Files that measurements are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from spherenorm.probes._measurement import COLUMNS, Measurement, Units
from spherenorm.support import require_module, write_whole


class JSONLines:
    """Write each block to a file of its own, a measurement per line; `cat folder/*.jsonl` is all.

    A file is written whole or not at all, and is named after its last step: a run that resumes
    from a checkpoint writes its files anew. Files of another run would stay beside them, so each
    run needs a folder of its own. Numbers that are not finite are null.

    Args:
        folder: of the files; it is made, if need be.

    Example:
        >>> probe = sn.probe(optimizer, to=JSONLines("runs/probe"))  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = _made(folder)

    def __call__(self, measured: Sequence[Measurement]) -> None:
        lines = (json.dumps(each.plain(), allow_nan=False) + "\n" for each in measured)
        write_whole(self._folder / f"{measured[-1].step:09d}.jsonl", "".join(lines))


class Parquet:
    """Write each block to a Parquet file of its own; readers take the folder as one table.

    Files are named and written as those of `JSONLines`. The units of a probe with `units=True` are
    a column of lists, one for each number.

    Args:
        folder: of the files; it is made, if need be.

    Raises:
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> probe = sn.probe(optimizer, to=Parquet("runs/probe"))  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        missing = "Parquet needs pyarrow ({error}): pip install 'spherenorm[parquet]'"
        self._arrow = require_module("pyarrow", missing)
        self._parquet = require_module("pyarrow.parquet", missing)
        self._folder = _made(folder)

    def __call__(self, measured: Sequence[Measurement]) -> None:
        types = {int: self._arrow.int64(), str: self._arrow.string(), float: self._arrow.float64()}
        columns = [(name, types[kind]) for name, kind in COLUMNS.items()]
        if measured[0].units is not None:
            kinds = {f.name: types[float] for f in fields(Units)}
            kinds["invariant"] = self._arrow.bool_()
            lists = [(name, self._arrow.list_(kind)) for name, kind in kinds.items()]
            columns.append(("units", self._arrow.struct(lists)))
        schema = self._arrow.schema(columns)
        table = self._arrow.Table.from_pylist([each.plain() for each in measured], schema)
        buffer = self._arrow.BufferOutputStream()
        self._parquet.write_table(table, buffer)
        content = buffer.getvalue().to_pybytes()
        write_whole(self._folder / f"{measured[-1].step:09d}.parquet", content)


class TensorBoard:
    """Write each number of a weight as a scalar `number/weight`.

    Args:
        folder: of the event files, or a `SummaryWriter` of yours.

    Raises:
        MissingExtraError: tensorboard is not installed.

    Example:
        >>> probe = sn.probe(optimizer, to=TensorBoard("runs/probe"))  # doctest: +SKIP
    """

    def __init__(self, folder: Any) -> None:
        self._writer = folder
        if isinstance(folder, str | Path):
            missing = "TensorBoard is not there ({error}): pip install 'spherenorm[tensorboard]'"
            self._writer = require_module("torch.utils.tensorboard", missing).SummaryWriter(
                str(folder)
            )

    def __call__(self, measured: Sequence[Measurement]) -> None:
        for each in measured:
            for name, value in each.plain().items():
                if name != "step" and isinstance(value, int | float):
                    self._writer.add_scalar(f"{name}/{each.weight}", value, each.step)
        self._writer.flush()


def _made(folder: str | Path) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
