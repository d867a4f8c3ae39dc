"""Language modelling: Transformer-XL on WikiText-103, or a small one on the library's source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spherenorm_experiments.metrics import Mean, Statistic
from spherenorm_experiments.paper.language.texts import PARTS, corpus, source_corpus, windows
from spherenorm_experiments.paper.language.transformer_xl import TransformerXL
from spherenorm_experiments.task import Batch, Budget, Splits, Task

CUTOFFS = {"wikitext-103": (20_000, 40_000, 200_000), "library": (16, 40)}
"""The first token of each cluster of the adaptive softmax; those within the vocabulary hold."""


@dataclass(frozen=True)
class Language(Task):
    """The next token of a text; scored by minus the perplexity.

    An item is a segment of text with the tokens before it, which are its context. Segments come in
    random order, or with `recurrent` as in the original: each row of a batch goes on where it was
    in the batch before, with the hidden states of that step as its memory. (In one process, of one
    micro-batch; several read the context anew.) Every token of the validation and the test text but
    the first is scored once, after `memory` tokens of context.

    Attributes:
        data_set: the standard library's source, by characters, or WikiText-103, by words.
        layers, width, heads, inner, dropout, weight_norm: of the network.
        segment: tokens that are predicted at once.
        memory: tokens before them.
        recurrent: train on the text in its order, with hidden states from step to step.
    """

    data_set: Literal["library", "wikitext-103"] = "library"
    layers: int = 2
    width: int = 64
    heads: int = 4
    inner: int = 128
    dropout: float = 0.0
    weight_norm: bool = False
    segment: int = 48
    memory: int = 32
    recurrent: bool = False

    name = "language"
    metric = "minus perplexity"
    evaluation_batch = 64
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 512),
        "small": Budget(2, 16),
        "full": Budget(17, 60),
    }

    def data(self) -> Splits:
        texts = self._corpus[1]
        return Splits(*(
            (windows(texts[part], self.memory, self.segment, complete=part == "train"),)
            for part in PARTS
        ))  # fmt: skip

    def model(self) -> nn.Module:
        count, _ = self._corpus
        # A checkpoint would not hold the memories of several processes.
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        return TransformerXL(
            count,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            cutoffs=[cutoff for cutoff in CUTOFFS[self.data_set] if cutoff < count],
            memory=self.memory,
            recurrent=self.recurrent and alone,
            dropout=self.dropout,
            weight_norm=self.weight_norm,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).mean()  # type: ignore[no-any-return]

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        losses = model(batch[0])[batch[0][:, self.memory + 1 :] >= 0]
        return {
            "minus perplexity": Mean(losses, then=lambda mean: -_perplexity(mean)),
            "perplexity": Mean(losses, then=_perplexity),
            "bits per token": Mean(losses / math.log(2)),
        }

    def order(self, count: int, batch_size: int, random: torch.Generator) -> Tensor:
        if not self.recurrent:
            return super().order(count, batch_size, random)
        steps = count // batch_size  # what is left is one smaller batch
        rows = torch.arange(batch_size * steps).view(batch_size, steps)
        return torch.cat([rows.T.flatten(), torch.arange(batch_size * steps, count)])

    def audit_inputs(self) -> tuple[Any, ...]:
        return tuple(self.first_batch(self.data().train, 4))

    def shards(self, model: nn.Module) -> Sequence[nn.Module]:
        """The layers; the vocabulary, whose methods the model calls, is sharded with the model."""
        assert isinstance(model, TransformerXL)
        return list(model.layers)

    @property
    def _corpus(self) -> tuple[int, Mapping[str, Tensor]]:
        return corpus() if self.data_set == "wikitext-103" else source_corpus()


def _perplexity(mean: float) -> float:
    return math.exp(min(mean, 700.0))  # float64 ends at exp(709)
