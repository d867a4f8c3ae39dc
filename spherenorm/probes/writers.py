"""Files that measurements are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from spherenorm.probes.measurement import NUMBERS, Measurement, Sink
from spherenorm.support import atomic_write, require_module


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
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, measured: Sequence[Measurement]) -> None:
        lines = (json.dumps(each.plain(), allow_nan=False) + "\n" for each in measured)
        atomic_write(self._folder / f"{measured[-1].step:09d}.jsonl", "".join(lines))


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
        for name in NUMBERS:
            run.define_metric(f"{name}/*", step_metric="probe/step")

    def __call__(self, measured: Sequence[Measurement]) -> None:
        for step, each in groupby(measured, lambda m: m.step):
            scalars = {key: value for m in each for key, value in scalars_of(m).items()}
            self._run.log({"probe/step": step, **scalars})


def scalars_of(measured: Measurement) -> dict[str, float]:
    """The finite numbers of a measurement, by `number/weight`, as loggers of scalars take them."""
    entries = measured.plain()
    found = {f"{name}/{measured.weight}": entries[name] for name in NUMBERS}
    return {name: x for name, x in found.items() if x is not None}
