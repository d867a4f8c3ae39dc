"""The tasks on sound: raw waves into a Harmonic CNN, scores averaged over the chunks of a clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import Task
from spherenorm_experiments.paper.audio.harmonic_cnn import (
    POOLS,
    WIDTHS,
    HarmonicCNN,
    HarmonicFilters,
)

__all__ = ["CHUNKS", "EVALUATION_BATCH", "SAMPLES", "audited", "averaged", "harmonic_cnn"]

SAMPLES, CHUNKS = 80_000, 16
"""The authors' crop, 5 s at 16 kHz, and how many of a clip are averaged in evaluation."""

EVALUATION_BATCH = 32
"""Clips of a batch of `evaluate`."""

SMALL_WIDTH, SMALL_POOLS = 8, (2, 2, 2, 2)
AUDITED, AUDITED_ON_DISK = 16, 4


def harmonic_cnn(data_set: str, classes: int, width: int | None = None) -> nn.Module:
    """The paper's network for an official data set, a small one for embedded data.

    The small one has four blocks in place of seven, and four harmonics in place of six, from 123 Hz
    on, of waves at 8 kHz.

    Args:
        data_set: a key of `POOLS`, or the name of embedded data.
        classes: outputs.
        width: channels of the first block; 128, and 8 for embedded data, if None.
    """
    if data_set in POOLS:
        first = WIDTHS[0] if width is None else width
        widths = [first * each // WIDTHS[0] for each in WIDTHS]
        return HarmonicCNN(classes, widths=widths, pools=POOLS[data_set])
    first = SMALL_WIDTH if width is None else width
    filters = HarmonicFilters(rate=8000, window=256, harmonics=4, per_semitone=1, lowest=47)
    widths = [first, first, 2 * first, 2 * first]
    return HarmonicCNN(classes, widths=widths, pools=SMALL_POOLS, filters=filters, dropout=0.0)


def averaged(model: nn.Module, waves: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean over chunks of a function of the logits.

    Args:
        waves: shape (items, samples), or (items, chunks, samples).
        then: such as `torch.sigmoid`.
    """
    if waves.ndim == 2:
        return then(model(waves))
    return torch.stack([then(model(chunk)) for chunk in waves.unbind(dim=1)]).mean(dim=0)


def audited(task: Task, data_set: str) -> tuple[Any, ...]:
    """The waves of the audit: few of an official data set, whose network is large."""
    count = AUDITED_ON_DISK if data_set in POOLS else AUDITED
    return tuple(task.first_batch(task.data().train, count)[:-1])
