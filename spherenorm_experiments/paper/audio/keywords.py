"""Keyword spotting: Speech Commands, or synthetic words, with a Harmonic CNN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import Batch, Budget, Mean, Splits, Statistic, Task, cross_entropy
from spherenorm_experiments.paper.audio import speech_commands, spoken
from spherenorm_experiments.paper.audio._listening import (
    EVALUATION_BATCH,
    audited,
    averaged,
    harmonic_cnn,
)

__all__ = ["Keywords"]

SAMPLES = 16_384
"""Of one second at 16 kHz, 16,000, the six poolings by two leave no frame."""


@dataclass(frozen=True)
class Keywords(Task):
    """The word of a clip; scored by accuracy. Nobody speaks in two of the splits.

    Attributes:
        data_set: spoken (12 synthetic words of 0.5 s) or speech_commands (35 words).
        width: channels of the network's first block; 8 on spoken, the paper's 128 else, if None.
    """

    data_set: Literal["spoken", "speech_commands"] = "spoken"
    width: int | None = None

    name = "keywords"
    metric = "accuracy (%)"
    evaluation_batch = EVALUATION_BATCH
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(8, 64),
        "full": Budget(30, 16),
    }

    def data(self) -> Splits:
        if self.data_set == "spoken":
            return spoken.spoken_words()
        return speech_commands.speech_commands(SAMPLES)

    def model(self) -> nn.Module:
        words = spoken.WORDS if self.data_set == "spoken" else speech_commands.WORDS
        return harmonic_cnn(self.data_set, len(words), self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, words = batch
        return cross_entropy(model(waves), words)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, words = batch
        found = averaged(model, waves, lambda logits: torch.softmax(logits, dim=1))
        return {"accuracy": Mean(100.0 * (found.argmax(1) == words))}

    def audit_inputs(self) -> tuple[Any, ...]:
        return audited(self, self.data_set)
