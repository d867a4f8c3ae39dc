"""The weights to evaluate with, in the place of those that are trained, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm._numerics import working
from spherenorm.core import Rule, State

USE = "call optimizer.train() first, or evaluate under `with optimizer.evaluating():`"


@dataclass(frozen=True)
class Held:
    """The trained weights, while the parameters are those to evaluate with.

    Attributes:
        trained: a copy of each weight that was exchanged, by its parameter.
        versions: torch's counts of the writes to these parameters, since the exchange.
    """

    trained: Mapping[Tensor, Tensor]
    versions: Mapping[Tensor, int]

    def restore(self) -> int:
        """Write the trained weights back.

        Returns:
            The number of parameters that somebody has written to; what he wrote is gone.
        """
        changed = sum(weight._version != count for weight, count in self.versions.items())
        _write(self.trained)
        return changed


def exchanged(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: Mapping[Tensor, State],
) -> Held:
    """Write `rule.readout` into each weight that has been stepped; all are computed before one is
    written.
    """
    read: dict[Tensor, Tensor] = {}
    for group, rule in zip(param_groups, rules, strict=True):
        for weight in group["params"] if rule.reads_out else ():
            state = states.get(weight, {})
            if state.keys() == {*rule.keys}:
                read[weight] = rule.readout(working(weight.detach()), state)
    trained = {weight: weight.detach().clone() for weight in read}
    _write(read)
    return Held(trained, {weight: weight._version for weight in read})


def _write(values: Mapping[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for weight, value in values.items():
            weight.copy_(value)
