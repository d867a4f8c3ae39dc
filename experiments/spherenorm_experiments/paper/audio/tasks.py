"""The tasks on sound: raw waves into a Harmonic CNN, scores averaged over the chunks of a clip.

Each has an official data set, and synthetic waves in its place.

Source: M. Won et al., *Data-driven Harmonic Filters for Audio Representation Learning*, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from spherenorm_experiments.metrics import Collected, Mean, Statistic
from spherenorm_experiments.paper.audio import recordings, spoken, street
from spherenorm_experiments.paper.audio.harmonic_cnn import (
    POOLS,
    WIDTHS,
    HarmonicCNN,
    HarmonicFilters,
)
from spherenorm_experiments.paper.shared import clips
from spherenorm_experiments.task import Batch, Budget, Splits, Task

SAMPLES, CHUNKS = 80_000, 16
"""The authors' crop, 5 s at 16 kHz, and how many of a clip are averaged in evaluation."""

WORD = 16_384
"""Samples of a word: of one second, 16,000, the six poolings by two leave no frame."""

THRESHOLD = 0.1
"""The paper's, of the probability of an event."""

SMALL_WIDTH, SMALL_POOLS = 8, (2, 2, 2, 2)
AUDITED, AUDITED_ON_DISK = 16, 4
"""Clips of the audit's batch; the network of an official data set is large."""

SOURCES: dict[str, tuple[Callable[[], Splits], int]] = {
    "clips": (clips.clips, len(clips.TAGS)),
    "spoken": (spoken.spoken_words, len(spoken.WORDS)),
    "street": (street.street_sounds, len(street.SOUNDS)),
    "magnatagatune": (lambda: recordings.magnatagatune(SAMPLES, CHUNKS), recordings.TAGS),
    "speech_commands": (lambda: recordings.speech_commands(WORD), len(recordings.WORDS)),
    "dcase2017": (lambda: recordings.dcase2017(SAMPLES, CHUNKS), len(recordings.EVENTS)),
}
"""The splits of each data set, and the outputs of its network."""


@dataclass(frozen=True)
class _Listening(Task):
    """The network, and the data by the name of their set."""

    data_set: str
    width: int | None = None

    evaluation_batch = 32
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(8, 64),
        "full": Budget(30, 16),
    }

    def data(self) -> Splits:
        return SOURCES[self.data_set][0]()

    def model(self) -> nn.Module:
        """The paper's network for an official data set, a small one for embedded data.

        The small one has four blocks in place of seven, and four harmonics in place of six, from
        123 Hz on, of waves at 8 kHz.
        """
        outputs = SOURCES[self.data_set][1]
        if self.data_set in POOLS:
            first = WIDTHS[0] if self.width is None else self.width
            widths = [first * each // WIDTHS[0] for each in WIDTHS]
            return HarmonicCNN(outputs, widths=widths, pools=POOLS[self.data_set])
        first = SMALL_WIDTH if self.width is None else self.width
        filters = HarmonicFilters(rate=8000, window=256, harmonics=4, per_semitone=1, lowest=47)
        widths = [first, first, 2 * first, 2 * first]
        return HarmonicCNN(outputs, widths=widths, pools=SMALL_POOLS, filters=filters, dropout=0.0)

    def audit_inputs(self) -> tuple[Any, ...]:
        count = AUDITED_ON_DISK if self.data_set in POOLS else AUDITED
        return tuple(self.first_batch(self.data().train, count)[:-1])


@dataclass(frozen=True)
class Tagging(_Listening):
    """The tags of a clip of music, any number of which hold; scored by ROC-AUC and PR-AUC.

    Both are means over tags; PR-AUC is average precision.

    Attributes:
        data_set: clips (ten tags of a synthetic note of 0.25 s) or magnatagatune (50 tags; crops of
            5 s, in evaluation the mean over 16 of a clip).
        width: channels of the network's first block; 8 on clips, the paper's 128 else, if None.
    """

    data_set: Literal["clips", "magnatagatune"] = "clips"

    name = "tagging"
    metric = "ROC-AUC (%)"
    tiers = {**_Listening.tiers, "full": Budget(100, 16)}  # noqa: RUF012

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, tags = batch
        return binary_cross_entropy_with_logits(model(waves), tags)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, tags = batch
        scores = _averaged(model, waves, torch.sigmoid)
        return {
            "ROC-AUC": Collected(_roc_auc, tags, scores),
            "PR-AUC": Collected(_pr_auc, tags, scores),
        }


@dataclass(frozen=True)
class Keywords(_Listening):
    """The word of a clip; scored by accuracy. Nobody speaks in two of the splits.

    Attributes:
        data_set: spoken (12 synthetic words of 0.5 s) or speech_commands (35 words).
        width: channels of the network's first block; 8 on spoken, the paper's 128 else, if None.
    """

    data_set: Literal["spoken", "speech_commands"] = "spoken"

    name = "keywords"
    metric = "accuracy (%)"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, words = batch
        return cross_entropy(model(waves), words)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, words = batch
        shares = _averaged(model, waves, lambda logits: torch.softmax(logits, dim=1))
        return {"accuracy": Mean(100.0 * (shares.argmax(1) == words))}


@dataclass(frozen=True)
class Events(_Listening):
    """The sounds in a clip, any number of which are heard; scored by F1.

    F1 is that of a clip's events above a probability of 0.1, and its mean over clips.

    Attributes:
        data_set: street (eight synthetic sounds in 0.5 s of noise) or dcase2017 (17 events; crops
            of 5 s, in evaluation the mean over 16 of a clip).
        width: channels of the network's first block; 8 on street, the paper's 128 else, if None.
    """

    data_set: Literal["street", "dcase2017"] = "street"

    name = "events"
    metric = "F1 (%)"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, heard = batch
        return binary_cross_entropy_with_logits(model(waves), heard)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, heard = batch
        told = _averaged(model, waves, torch.sigmoid) > THRESHOLD
        return {"F1": Mean(100.0 * f1_of_items(heard, told))}


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


def _averaged(model: nn.Module, waves: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of `then(logits)` over the chunks of waves of shape (items, chunks, samples)."""
    if waves.ndim == 2:
        return then(model(waves))
    return torch.stack([then(model(chunk)) for chunk in waves.unbind(dim=1)]).mean(dim=0)


def _roc_auc(tags: Tensor, scores: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    return _percent(roc_auc_score, tags, scores)


def _pr_auc(tags: Tensor, scores: Tensor) -> float:
    from sklearn.metrics import average_precision_score

    return _percent(average_precision_score, tags, scores)


def _percent(score: Callable[..., float], tags: Tensor, scores: Tensor) -> float:
    """100 times the mean over tags; nan for scores of a network that has diverged."""
    if not scores.isfinite().all():
        return math.nan
    return 100 * float(score(tags.numpy(), scores.float().numpy(), average="macro"))
