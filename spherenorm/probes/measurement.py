"""One weight at one step, as a probe reports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a weight at a step, in the order of `View.units`; each of shape (units,).

    Attributes:
        norm_before, norm, effective_step, turn, cosine: of each unit, as in `Measurement`, in
            float64. The cosine is nan where the weight or the gradient is 0.
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
    """A weight at a step. A number is the root mean square over the weight's units, or nan.

    Attributes:
        step: the steps of the optimizer so far, this one included.
        weight: its name.
        view: splits it into the units that are measured.
        norm_before: |w| before the step.
        norm: |w'|, after it.
        effective_step: |w'/|w'| - w/|w||.
        turn: the angle between w and w', in radians.
        cosine: of w and the raw gradient; nan without a gradient.
        invariant: the share of the weight's units that the test found scale-invariant.
        invariant_view: the view in which it did; None if in none.
        predicted: by the law, if there is one.
        units: the same of each unit, if the probe was made with `units=True`.

    Example:
        >>> found = Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")
        >>> found.norm / found.norm_before, found.plain()["weight"]
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
        """The entries by name; nan and infinities, which JSON does not have, as None.

        `units`, if there are any, is a list of numbers for each name.
        """
        names = [f.name for f in fields(self) if f.name != "units"]
        entries = {name: _plain(getattr(self, name)) for name in names}
        if self.units is None:
            return entries
        units = {f.name: getattr(self.units, f.name).tolist() for f in fields(Units)}
        return {**entries, "units": {k: [_plain(x) for x in v] for k, v in units.items()}}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


NUMBERS = [f.name for f in fields(Measurement) if str(f.type).startswith("float")]
"""The entries of a measurement that are numbers, without the step and those of its units."""

OfMeasurements = Callable[[Sequence[Measurement]], object]


class Sink:
    """Takes the measurements of a probe, block by block. A function does, too, if it needs no end.

    Known sinks: `JSONLines`, `TensorBoard` and `WandB` write blocks; `Page` shows each
    measured step at once. A subclass defines `__call__`.

    Args:
        function: that is called with each block.

    Attributes:
        block: measured steps that are handed over at once, unless `probe` is given another number.
            The device is waited for once in so many.

    Example:
        >>> class Largest(sn.probes.Sink):
        ...     block = 1
        ...     def __call__(self, measured):
        ...         print("step", measured[-1].step, max(each.weight for each in measured))
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

    def __init__(self, function: OfMeasurements | None = None) -> None:
        self._function = function

    def __call__(self, measured: Sequence[Measurement]) -> object:
        """Take the measurements of a block, in the order of steps."""
        if self._function is None:
            raise NotImplementedError(f"{type(self).__name__} does not define __call__(measured)")
        return self._function(measured)

    def close(self) -> None:
        """Know that nothing follows."""
