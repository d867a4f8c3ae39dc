"""Files that measurements are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from spherenorm.probes._measurement import COLUMNS, Measurement, Sink, Units
from spherenorm.support import require_module, write_whole

NUMBERS = [name for name, kind in COLUMNS.items() if kind is not str]
"""The entries of a measurement that are numbers."""


class JSONLines(Sink):
    """Write each block to a file of its own, a measurement per line; `cat folder/*.jsonl` is all.

    A file is written whole or not at all, and is named after its last step: a run that resumes
    from a checkpoint writes its files anew. Files of another run would stay beside them, so each
    run needs a folder of its own. Numbers that are not finite are null.

    Args:
        folder: of the files; it is made, if need be.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = sn.optim.SGDP([weight], lr=0.1)
        >>> with sn.probe(optimizer, every=1, to=JSONLines("runs/probe")):
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> [file.name for file in Path("runs/probe").iterdir()]
        ['000000001.jsonl']
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = _made(folder)

    def __call__(self, measured: Sequence[Measurement]) -> None:
        lines = (json.dumps(each.plain(), allow_nan=False) + "\n" for each in measured)
        write_whole(self._folder / f"{measured[-1].step:09d}.jsonl", "".join(lines))


class Parquet(Sink):
    """Write each block to a Parquet file of its own; readers take the folder as one table.

    Files are named and written as those of `JSONLines`. The units of a probe with `units=True` are
    a column of lists, one for each number.

    Args:
        folder: of the files; it is made, if need be.

    Raises:
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> write = Parquet("runs/parquet")  # for sn.probe(optimizer, to=write)
        >>> write([Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")])
        >>> [file.name for file in Path("runs/parquet").iterdir()]
        ['000000010.parquet']
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


class TensorBoard(Sink):
    """Write each number of a weight as a scalar `number/weight`.

    Args:
        folder: of the event files, or a `SummaryWriter` of yours.

    Raises:
        MissingExtraError: tensorboard is not installed.

    Example:
        >>> write = TensorBoard("runs/board")  # for sn.probe(optimizer, to=write)
        >>> write([Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")])
        >>> [file.name.split(".")[0] for file in Path("runs/board").iterdir()]
        ['events']
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
            for name, value in scalars_of(each).items():
                self._writer.add_scalar(name, value, each.step)
        self._writer.flush()


class WandB(Sink):
    """Log each number of a weight to Weights & Biases as `number/weight`, over `probe/step`.

    Args:
        run: of `wandb.init`; by default the present one.

    Raises:
        MissingExtraError: wandb is not installed.
        ValueError: there is no run.

    Example:
        >>> WandB()
        Traceback (most recent call last):
        ValueError: WandB: no run is open; call wandb.init() first, or pass its run
    """

    def __init__(self, run: Any = None) -> None:
        if run is None:
            missing = "WandB is not there ({error}): pip install 'spherenorm[wandb]'"
            run = require_module("wandb", missing).run
        if run is None:
            raise ValueError("WandB: no run is open; call wandb.init() first, or pass its run")
        self._run = run
        # The run's own step is the training loop's, which may have logged beyond a block's steps.
        run.define_metric("probe/step")
        for name in (name for name in NUMBERS if name != "step"):
            run.define_metric(f"{name}/*", step_metric="probe/step")

    def __call__(self, measured: Sequence[Measurement]) -> None:
        for step, each in groupby(measured, lambda m: m.step):
            scalars = {key: value for m in each for key, value in scalars_of(m).items()}
            self._run.log({"probe/step": step, **scalars})


def scalars_of(measured: Measurement) -> dict[str, float]:
    """The finite numbers of a measurement, by `number/weight`, as loggers of scalars take them."""
    entries = measured.plain()
    numbers = {name: entries[name] for name in NUMBERS if name != "step"}
    return {f"{n}/{measured.weight}": x for n, x in numbers.items() if x is not None}


def _made(folder: str | Path) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
