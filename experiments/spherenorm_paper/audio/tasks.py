"""The tasks on sound: raw waves into a Harmonic CNN, scores averaged over the chunks of a clip.

Each has an official data set, and synthetic waves in its place.

Source: M. Won et al., *Data-driven Harmonic Filters for Audio Representation Learning*, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from spherenorm_experiments.task import Batch, Budget, Collected, Mean, Splits, Statistic, Task
from spherenorm_paper.audio import synthetic
from spherenorm_paper.audio.harmonic_cnn import POOLS, HarmonicCNN, HarmonicFilters
from spherenorm_paper.audio.recordings import EVENTS, TAGS, WORDS, recordings
from spherenorm_paper.shared import clips

SOURCES: dict[str, tuple[Callable[[], Splits], int]] = {
    "clips": (clips.clips, len(clips.TAGS)),
    "spoken": (synthetic.spoken_words, len(synthetic.WORDS)),
    "street": (synthetic.street_sounds, len(synthetic.SOUNDS)),
    "magnatagatune": (partial(recordings, "magnatagatune"), TAGS),
    "speech_commands": (partial(recordings, "speech_commands"), len(WORDS)),
    "dcase2017": (partial(recordings, "dcase2017"), len(EVENTS)),
}
"""The splits of each data set, and the outputs of its network."""


@dataclass(frozen=True)
class _Listening(Task):
    """Labels of a clip, any number of which hold.

    Attributes:
        data_set: synthetic waves, or an official data set: crops of 5 s of its music and events,
            in evaluation the mean over 16 of a clip; words whole.
        width: channels of the first block of the small network, which synthetic waves have.
    """

    data_set: str
    width: int = 8

    evaluation_batch = 32
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(8, 64),
        "full": Budget(30, 16),
    }

    def data(self) -> Splits:
        return SOURCES[self.data_set][0]()

    def model(self) -> nn.Module:
        """The paper's network, or a small one: four blocks and harmonics, from 123 Hz on."""
        outputs = SOURCES[self.data_set][1]
        if self.data_set in POOLS:
            return HarmonicCNN(outputs, POOLS[self.data_set])
        widths = [self.width, self.width, 2 * self.width, 2 * self.width]
        filters = HarmonicFilters(rate=8000, window=256, harmonics=4, per_semitone=1, lowest=47)
        return HarmonicCNN(outputs, (2,) * 4, widths, filters, dropout=0.0)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, labels = batch
        return binary_cross_entropy_with_logits(model(waves), labels)

    def audit_inputs(self) -> tuple[Any, ...]:
        count = 4 if self.data_set in POOLS else 16
        return tuple(self.first_batch(self.data().train, count)[:-1])


@dataclass(frozen=True)
class Tagging(_Listening):
    """The tags of a clip of music, any number of which hold; scored by ROC-AUC and PR-AUC.

    Both are means over tags; PR-AUC is average precision. The data are clips (ten tags of a
    synthetic note of 0.25 s) or magnatagatune (50 tags).
    """

    data_set: Literal["clips", "magnatagatune"] = "clips"

    name = "tagging"
    metric = "ROC-AUC (%)"
    better = "higher"
    tiers = {**_Listening.tiers, "full": Budget(100, 16)}  # noqa: RUF012

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, tags = batch
        scores = _averaged(model, waves, torch.sigmoid)
        return {
            "ROC-AUC": Collected(partial(_area, "roc_auc_score"), tags, scores),
            "PR-AUC": Collected(partial(_area, "average_precision_score"), tags, scores),
        }


@dataclass(frozen=True)
class Keywords(_Listening):
    """The word of a clip; scored by accuracy. Nobody speaks in two of the splits.

    The data are spoken (12 synthetic words of 0.5 s) or speech_commands (35 words).
    """

    data_set: Literal["spoken", "speech_commands"] = "spoken"

    name = "keywords"
    metric = "accuracy (%)"
    better = "higher"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, words = batch
        return cross_entropy(model(waves), words)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, words = batch
        shares = _averaged(model, waves, partial(torch.softmax, dim=1))
        return {"accuracy": Mean(100.0 * (shares.argmax(1) == words))}


@dataclass(frozen=True)
class Events(_Listening):
    """The sounds in a clip, any number of which are heard; scored by F1.

    F1 is 2 |heard and told| / (|heard| + |told|) of a clip, 0 where both are empty, and its mean
    over clips; an event is told above the paper's probability of 0.1. The data are street (eight
    synthetic sounds in 0.5 s of noise) or dcase2017 (17 events).
    """

    data_set: Literal["street", "dcase2017"] = "street"

    name = "events"
    metric = "F1 (%)"
    better = "higher"

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, heard = batch[0], batch[1].double()
        predicted = (_averaged(model, waves, torch.sigmoid) > 0.1).double()
        f1 = 2 * (heard * predicted).sum(dim=1) / (heard + predicted).sum(dim=1).clamp(min=1)
        return {"F1": Mean(100.0 * f1)}


def _averaged(model: nn.Module, waves: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of `then(logits)` over the chunks of waves of shape (items, chunks, samples)."""
    if waves.ndim == 2:
        return then(model(waves))
    return torch.stack([then(model(chunk)) for chunk in waves.unbind(dim=1)]).mean(dim=0)


def _area(name: str, tags: Tensor, scores: Tensor) -> float:
    """A metric of scikit-learn in percent; nan for scores of a network that has diverged."""
    from sklearn import metrics

    if not scores.isfinite().all():
        return math.nan
    return 100 * float(getattr(metrics, name)(tags.numpy(), scores.float().numpy()))
