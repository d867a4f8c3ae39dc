"""One weight at one step, as a probe reports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

__all__ = ["COLUMNS", "Law", "Measurement", "Sink"]


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

    def plain(self) -> dict[str, Any]:
        """The entries by name; nan and infinities, which JSON does not have, as None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


COLUMNS = {
    f.name: int if f.name == "step" else str if "weight" in f.name or "view" in f.name else float
    for f in fields(Measurement)
}
"""The entries of a measurement and their types."""

Sink = Callable[[Sequence[Measurement]], object]
"""Takes the measurements of a block, in the order of steps."""


class Law(Protocol):
    """A law that says something of a measured step."""

    def predict(self, measured: Measurement, /) -> float:
        """The number to compare with one of `measured`, such as its `norm`."""
