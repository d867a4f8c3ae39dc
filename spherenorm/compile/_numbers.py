"""The numbers of a rule, as the arguments of a recorded step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spherenorm._numerics import Scalar
from spherenorm.compile.gpu import upload

__all__ = ["Numbers"]


class Numbers:
    """The numbers of a rule at one step, in float64; those that are tensors on a GPU stay there."""

    def __init__(self, values: Sequence[Scalar]) -> None:
        self.values = values
        self._vectors: dict[torch.device, Tensor] = {}

    def vector(self, device: torch.device) -> Tensor:
        """All of them as one tensor, which nobody may write to."""
        if device not in self._vectors:
            here = {
                i: v
                for i, v in enumerate(self.values)
                if isinstance(v, Tensor) and v.device.type == device.type
            }
            read = [0.0 if i in here else float(v) for i, v in enumerate(self.values)]
            if device.type == "cpu":
                vector = torch.tensor(read, dtype=torch.float64)
            else:
                vector = upload(np.array(read, dtype=np.float64), device)
            if here:
                vector = vector.clone()
                for i, value in here.items():
                    vector[i : i + 1].copy_(value)
            self._vectors[device] = vector
        return self._vectors[device]
