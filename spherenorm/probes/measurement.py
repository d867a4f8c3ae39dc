"""`Measurement`: one weight at one step; and the sinks that write measurements to files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from spherenorm.support import atomic_write, require_module


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a weight at a step, in the order of `View.units`; each of shape (units,).

    Attributes:
        norm_before, norm, effective_step, turn, cosine: the quantities of `Measurement` for each
            unit, in float64. The cosine is nan where the weight or the gradient is 0.
        invariant: True where the test found the unit scale-invariant. These are the units of
            `invariant_view`; there are none if that is None.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> with sn.probe(optimizer, every=1, units=True) as probe:
        ...     weight.grad = torch.tensor([[0.0, 1.0], [0.0, 0.5]])
        ...     optimizer.step()
        >>> probe.measurements[0].units.norm
        tensor([1.4142, 0.5000], dtype=torch.float64)
    """

    norm_before: Tensor
    norm: Tensor
    effective_step: Tensor
    turn: Tensor
    cosine: Tensor
    invariant: Tensor


@dataclass(frozen=True)
class Measurement:
    """A weight w at a step. A number is the root mean square over the weight's units, or nan.

    Attributes:
        step: number of steps of the optimizer so far, this one included.
        weight: name of the weight.
        view: the view that splits it into the units that are measured.
        norm_before: |w| before the step.
        norm: |w'|, after it.
        effective_step: |w'/|w'| - w/|w||.
        turn: the angle between w and w', in radians.
        cosine: cosine of w and the raw gradient; nan without a gradient.
        invariant: share of the weight's units that the test found scale-invariant.
        invariant_view: the view in which the test found them; None if it found none.
        predicted: the value that the law predicts; None without a law.
        units: the same quantities of each unit, if the probe was made with `units=True`.

    Example:
        >>> measurement = Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")
        >>> measurement.norm / measurement.norm_before, measurement.plain()["weight"]
        (1.5, 'a')
    """

    step: int
    weight: str
    view: str
    norm_before: float
    norm: float
    effective_step: float
    turn: float
    cosine: float
    invariant: float
    invariant_view: str | None
    predicted: float | None = None
    units: Units | None = field(default=None, compare=False, repr=False)

    def plain(self) -> dict[str, Any]:
        """Return the entries by name for JSON; nan and infinities become None.

        `units`, if there are any, is a list of numbers for each name.
        """
        names = [f.name for f in fields(self) if f.name != "units"]
        entries = {name: _finite_or_none(getattr(self, name)) for name in names}
        if self.units is None:
            return entries
        units = {f.name: getattr(self.units, f.name).tolist() for f in fields(Units)}
        return {
            **entries,
            "units": {name: [_finite_or_none(x) for x in values] for name, values in units.items()},
        }


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


SCALAR_NAMES = [f.name for f in fields(Measurement) if str(f.type).startswith("float")]
"""The entries of a measurement that are numbers, without the step and the units."""

MeasurementsFn = Callable[[Sequence[Measurement]], object]


class Sink:
    """A receiver of a probe's measurements, block by block. A plain function will do, too.

    Known sinks: `JSONLines`, `TensorBoard` and `WandB` write blocks; `Page` shows each
    measured step at once. A subclass defines `__call__`, and `close` if it has to end something.

    Args:
        function: a function that is called with each block.

    Attributes:
        block: number of measured steps in a block, unless `probe` is given another number. The
            probe waits for the device once per block.

    Example:
        >>> class Largest(sn.probes.Sink):
        ...     block = 1
        ...     def __call__(self, measurements):
        ...         print("step", measurements[-1].step, max(m.weight for m in measurements))
        ...     def close(self):
        ...         print("ended")
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD({"w": weight}.items(), lr=1.0)
        >>> with sn.probe(optimizer, every=1, to=Largest()):
        ...     weight.grad = torch.eye(2)
        ...     optimizer.step()
        step 1 w
        ended
    """

    block: int = 64

    def __init__(self, function: MeasurementsFn | None = None) -> None:
        self._function = function

    def __call__(self, measurements: Sequence[Measurement]) -> object:
        """Receive the measurements of a block, in the order of steps."""
        if self._function is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not define __call__(measurements)"
            )
        return self._function(measurements)

    def close(self) -> None:
        """End the sink; no block follows."""


class JSONLines(Sink):
    """A sink that writes each block to a new file; `cat folder/*.jsonl` is the whole run.

    A line is a measurement; numbers that are not finite are null. A file is written whole or not at
    all, and is named after its last step: a run that resumes from a checkpoint writes its files
    anew. Files of another run would stay beside them, so each run needs its own folder.

    Args:
        folder: folder of the files; it is made if it does not exist.

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

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        lines = [json.dumps(m.plain(), allow_nan=False) + "\n" for m in measurements]
        atomic_write(self._folder / f"{measurements[-1].step:09d}.jsonl", "".join(lines))


class TensorBoard(Sink):
    """A sink that writes each number of a weight as a scalar `number/weight`.

    Args:
        folder: folder of the event files, or a `SummaryWriter` of yours.

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
            tensorboard = require_module(
                "torch.utils.tensorboard",
                "TensorBoard is not there ({error}): pip install 'spherenorm[tensorboard]'",
            )
            self._writer = tensorboard.SummaryWriter(str(folder))

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            for name, value in _finite_scalars(measurement).items():
                self._writer.add_scalar(name, value, measurement.step)
        self._writer.flush()


class WandB(Sink):
    """A sink that logs each number of a weight to Weights & Biases, over `probe/step`.

    The names are `number/weight`.

    Args:
        run: a run of `wandb.init`; None takes the present one.

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
            wandb = require_module(
                "wandb", "WandB is not there ({error}): pip install 'spherenorm[wandb]'"
            )
            run = wandb.run
        if run is None:
            raise ValueError("WandB: no run is open; call wandb.init() first, or pass its run")
        self._run = run
        # The run's own step is the training loop's, which may have logged beyond a block's steps.
        run.define_metric("probe/step")
        for name in SCALAR_NAMES:
            run.define_metric(f"{name}/*", step_metric="probe/step")

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        for step, same_step in groupby(measurements, lambda m: m.step):
            scalars: dict[str, float] = {}
            for measurement in same_step:
                scalars |= _finite_scalars(measurement)
            self._run.log({"probe/step": step, **scalars})


def _finite_scalars(measurement: Measurement) -> dict[str, float]:
    """Return the finite numbers of a measurement, by `number/weight`."""
    entries = measurement.plain()
    return {
        f"{name}/{measurement.weight}": entries[name]
        for name in SCALAR_NAMES
        if entries[name] is not None
    }
