"""Retrieval: embeddings by triplets or proxies, on CUB, Cars-196, In-Shop, SOP, or on glyphs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import (
    Batch,
    Budget,
    Collected,
    Splits,
    Statistic,
    Task,
    are_tensors,
    require_extra,
)
from spherenorm_experiments.paper.retrieval import cars, cub, in_shop, products
from spherenorm_experiments.paper.retrieval._recall import recall_at_1
from spherenorm_experiments.paper.retrieval.embedding import Embedding
from spherenorm_experiments.paper.retrieval.glyph_classes import glyph_classes
from spherenorm_experiments.paper.retrieval.listed import splits_of
from spherenorm_experiments.paper.shared.layout import data_folder
from spherenorm_experiments.paper.shared.published import load_published
from spherenorm_experiments.paper.shared.resnet import ResNet, resnet50

__all__ = ["Learner", "Retrieval"]

ON_DISK = {"cub": cub, "cars-196": cars, "in-shop": in_shop, "sop": products}

PUBLISHED = Path("pretrained") / "resnet50.pth"
"""The file of torchvision's model in the folder of `--data`."""

SIDE = 16
"""Pixels of a glyph's image."""

AUDITED = 32
"""Images of the audit's batch."""

MARGIN = 0.1
"""Of triplets and proxies, as in the released code of ProxyAnchor."""


@dataclass(frozen=True)
class Retrieval(Task):
    """Find an image of the same class, of classes that were not seen; scored by recall@1.

    Triplets are semi-hard: the negative is farther from the anchor than the positive, but by less
    than the margin. ProxyAnchor has a vector for each class, which is trained with them.

    Attributes:
        data_set: glyphs, divided in one of four ways, or one of the paper's data sets.
        objective: triplet or proxy-anchor.
        network: small (two blocks) or resnet50.
        dimension: of the embedding.
        bias: has its linear layer one; W is scale-invariant (as a whole) without.
        per_class: images of each class of a batch, whose classes are random; 0 draws images at
            random. In an epoch of `per_class` an image may come twice or not at all.
        proxy_factor: the learning rate of proxies, times that of the network.
        frozen_statistics: BatchNorm keeps its statistics in training.
        alone: in so many first steps only the linear layer trains.
        start: of ResNet-50: random, or pretrained, from pretrained/resnet50.pth in the folder of
            `--data`, as torchvision publishes it.
        side: pixels of an image's side, of a data set on disk.
        held_out: training classes that are the validation set, of a data set on disk; with 0 that
            is a part of the training set.
    """

    data_set: Literal[
        "few-classes", "turned", "queries", "few-images", "cub", "cars-196", "in-shop", "sop"
    ] = "few-classes"
    objective: Literal["triplet", "proxy-anchor"] = "triplet"
    network: Literal["small", "resnet50"] = "small"
    dimension: int = 32
    bias: bool = False
    per_class: int = 0
    proxy_factor: float = 1.0
    frozen_statistics: bool = False
    alone: int = 0
    start: Literal["random", "pretrained"] = "random"
    side: int = 224
    held_out: int = 0

    name = "retrieval"
    metric = "recall@1 (%)"
    is_mean = False  # of pairs of items
    evaluation_batch = 128
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 120),
        "small": Budget(8, 60),
        "full": Budget(60, 120),
    }

    def data(self) -> Splits:
        source = ON_DISK.get(self.data_set)
        if source is None:
            return glyph_classes(self.data_set, SIDE)
        return _splits(source.LAYOUT.folder(), self.data_set, self.side, self.held_out)

    def model(self) -> nn.Module:
        trunk = resnet50() if self.network == "resnet50" else _small()
        if self.start == "pretrained":
            load_published([trunk.stem, *trunk.stages], self._published)
        embedding = Embedding(
            trunk,
            self.dimension,
            bias=self.bias,
            frozen_statistics=self.frozen_statistics,
            alone=self.alone,
        )
        classes = 1 + int(self._labels().max())
        return Learner(embedding, self.objective, classes, self.dimension)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels, _ = batch
        loss: Tensor = model(images, labels, step=True)
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels, roles = batch
        return {"recall@1": Collected(recall_at_1, model(images), labels, roles)}

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        assert isinstance(model, Learner)
        proxies = list(model.criterion.parameters())
        return [{"params": proxies, "lr_factor": self.proxy_factor}] if proxies else []

    def order(self, count: int, batch_size: int, random: torch.Generator) -> Tensor:
        """Batches of a few images of each of some classes, if `per_class` asks for them."""
        if not self.per_class:
            return super().order(count, batch_size, random)
        return balanced(self._labels(), self.per_class, count, batch_size, random)

    def audit_inputs(self) -> tuple[Any, ...]:
        """Images; and classes where proxies matter. Mining triplets is no smooth function."""
        images, labels, _ = self.first_batch(self.data().train, AUDITED)
        return (images,) if self.objective == "triplet" else (images, labels)

    def shards(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Learner)
        trunk = model.embedding.trunk
        return [trunk.stem, *trunk.stages]

    def fingerprint(self) -> str:
        found = super().fingerprint()
        if self.start == "pretrained":
            found += hashlib.sha256(self._published.read_bytes()).hexdigest()
        return found

    def _labels(self) -> Tensor:
        train = self.data().train
        return train[1] if are_tensors(train) else torch.from_numpy(train.labels)  # type: ignore[union-attr]

    @property
    def _published(self) -> Path:
        return data_folder("the pretrained start") / PUBLISHED


class Learner(nn.Module):
    """An embedding with its loss: in training the loss of a batch, else its embeddings.

    Args:
        embedding: of images.
        objective: triplet or proxy-anchor.
        classes: proxies.
        dimension: of the embedding.

    Source: F. Schroff et al., *FaceNet*, 2015; S. Kim et al., *Proxy Anchor Loss for Deep Metric
    Learning*, 2020. The losses are those of pytorch-metric-learning.
    """

    def __init__(self, embedding: Embedding, objective: str, classes: int, dimension: int) -> None:
        super().__init__()
        require_extra("pytorch_metric_learning", "retrieval")
        from pytorch_metric_learning import losses, miners

        self.embedding, self.miner = embedding, None
        if objective == "triplet":
            self.miner = miners.TripletMarginMiner(MARGIN, type_of_triplets="semihard")
            self.criterion: nn.Module = losses.TripletMarginLoss(MARGIN)
        else:
            self.criterion = losses.ProxyAnchorLoss(classes, dimension, margin=MARGIN, alpha=32)

    def forward(
        self, images: Tensor, labels: Tensor | None = None, *, step: bool = False
    ) -> Tensor:
        """Embeddings of shape (items, dimension), or with labels the loss.

        Args:
            images: shape (items, 3, height, width).
            labels: classes, shape (items).
            step: it is the forward pass of a training step.
        """
        embeddings: Tensor = self.embedding(images, step)
        if labels is None:
            return embeddings
        with torch.autocast(images.device.type, enabled=False):
            if embeddings.dtype in (torch.float16, torch.bfloat16):
                embeddings = embeddings.float()  # the library would cast the proxies to the half
            triplets = None if self.miner is None else self.miner(embeddings, labels)
            loss: Tensor = self.criterion(embeddings, labels, triplets)
        return loss


def balanced(
    labels: Tensor, per_class: int, count: int, batch_size: int, random: torch.Generator
) -> Tensor:
    """`count` indices, of which every `batch_size` are of `per_class` images of random classes.

    Classes are drawn without replacement, until all have been drawn; so are the images of a class
    that has enough.
    """
    members = [(labels == label).nonzero()[:, 0] for label in torch.unique(labels)]
    wanted = -(-batch_size // per_class)
    found: list[Tensor] = []
    for _ in range(-(-count // batch_size)):
        rounds = -(-wanted // len(members))
        chosen = [torch.randperm(len(members), generator=random) for _ in range(rounds)]
        drawn = [
            _drawn(members[int(label)], per_class, random) for label in torch.cat(chosen)[:wanted]
        ]
        found.append(torch.cat(drawn)[:batch_size])
    return torch.cat(found)[:count]


def _drawn(members: Tensor, count: int, random: torch.Generator) -> Tensor:
    if len(members) >= count:
        return members[torch.randperm(len(members), generator=random)[:count]]
    return members[torch.randint(len(members), (count,), generator=random)]


def _small() -> ResNet:
    return ResNet("basic", (1, 1), 12, stem="small", classes=1)


@functools.lru_cache(maxsize=8)
def _splits(folder: Path, data_set: str, side: int, held_out: int) -> Splits:
    return splits_of(folder, ON_DISK[data_set].listed(folder), side, held_out)
