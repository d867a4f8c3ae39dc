"""Sound event tagging: DCASE 2017, or synthetic sounds of a street, with a Harmonic CNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from spherenorm_experiments.core import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_experiments.paper.audio import dcase2017, street
from spherenorm_experiments.paper.audio._listening import (
    CHUNKS,
    EVALUATION_BATCH,
    SAMPLES,
    audited,
    averaged,
    harmonic_cnn,
)

__all__ = ["Events", "f1_of_items"]

THRESHOLD = 0.1
"""The paper's, of the probability of an event."""


@dataclass(frozen=True)
class Events(Task):
    """The sounds in a clip, any number of which are heard; scored by F1.

    F1 is that of a clip's events above a probability of 0.1, and its mean over clips.

    Attributes:
        data_set: street (eight synthetic sounds in 0.5 s of noise) or dcase2017 (17 events; crops
            of 5 s, in evaluation the mean over 16 of a clip).
        width: channels of the network's first block; 8 on street, the paper's 128 else, if None.
    """

    data_set: Literal["street", "dcase2017"] = "street"
    width: int | None = None

    name = "events"
    metric = "F1 (%)"
    evaluation_batch = EVALUATION_BATCH
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(8, 64),
        "full": Budget(30, 16),
    }

    def data(self) -> Splits:
        if self.data_set == "street":
            return street.street_sounds()
        return dcase2017.dcase2017(SAMPLES, CHUNKS)

    def model(self) -> nn.Module:
        sounds = len(street.SOUNDS if self.data_set == "street" else dcase2017.EVENTS)
        return harmonic_cnn(self.data_set, sounds, self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, heard = batch
        return binary_cross_entropy_with_logits(model(waves), heard)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, heard = batch
        told = averaged(model, waves, torch.sigmoid) > THRESHOLD
        return {"F1": Mean(100.0 * f1_of_items(heard, told))}

    def audit_inputs(self) -> tuple[Any, ...]:
        return audited(self, self.data_set)


def f1_of_items(true: Tensor, told: Tensor) -> Tensor:
    """F1 of each row, 2 |true and told| / (|true| + |told|); 0 where both are empty.

    Args:
        true: labels that are 0 or 1, of shape (items, labels).
        told: the same of predictions.

    Example:
        >>> f1_of_items(torch.tensor([[1, 1, 0], [0, 0, 0]]), torch.tensor([[1, 0, 0], [0, 0, 0]]))
        tensor([0.6667, 0.0000], dtype=torch.float64)
    """
    a, b = true.double(), told.double()
    both, either = (a * b).sum(dim=1), (a + b).sum(dim=1)
    return 2 * both / either.clamp(min=1)
