"""Music tagging: MagnaTagATune, or synthetic clips, with a Harmonic CNN.

Source: M. Won et al., *Data-driven Harmonic Filters for Audio Representation Learning*, 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from spherenorm_experiments.core import Batch, Budget, Collected, Splits, Statistic, Task
from spherenorm_experiments.paper.audio import magnatagatune
from spherenorm_experiments.paper.audio._listening import (
    CHUNKS,
    EVALUATION_BATCH,
    SAMPLES,
    audited,
    averaged,
    harmonic_cnn,
)
from spherenorm_experiments.paper.shared import clips

__all__ = ["Tagging"]


@dataclass(frozen=True)
class Tagging(Task):
    """The tags of a clip of music, any number of which hold; scored by ROC-AUC and PR-AUC.

    Both are means over tags; PR-AUC is average precision.

    Attributes:
        data_set: clips (ten tags of a synthetic note of 0.25 s) or magnatagatune (50 tags; crops of
            5 s, in evaluation the mean over 16 of a clip).
        width: channels of the network's first block; 8 on clips, the paper's 128 else, if None.
    """

    data_set: Literal["clips", "magnatagatune"] = "clips"
    width: int | None = None

    name = "tagging"
    metric = "ROC-AUC (%)"
    evaluation_batch = EVALUATION_BATCH
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(8, 64),
        "full": Budget(100, 16),
    }

    def data(self) -> Splits:
        if self.data_set == "clips":
            return clips.clips()
        return magnatagatune.magnatagatune(SAMPLES, CHUNKS)

    def model(self) -> nn.Module:
        tags = len(clips.TAGS) if self.data_set == "clips" else magnatagatune.TAGS
        return harmonic_cnn(self.data_set, tags, self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        waves, tags = batch
        return binary_cross_entropy_with_logits(model(waves), tags)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        waves, tags = batch
        scores = averaged(model, waves, torch.sigmoid)
        return {
            "ROC-AUC": Collected(_roc_auc, tags, scores),
            "PR-AUC": Collected(_pr_auc, tags, scores),
        }

    def audit_inputs(self) -> tuple[Any, ...]:
        return audited(self, self.data_set)


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
