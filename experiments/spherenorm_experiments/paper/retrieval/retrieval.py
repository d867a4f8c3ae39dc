"""Retrieval: embeddings by triplets or proxies, on CUB, Cars-196, In-Shop, SOP, or on glyphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.metrics import Collected, Statistic
from spherenorm_experiments.paper.retrieval.embedding import Embedding, Learner
from spherenorm_experiments.paper.retrieval.glyph_classes import (
    GALLERY,
    PROTOCOLS,
    QUERY,
    glyph_classes,
)
from spherenorm_experiments.paper.retrieval.photos import photos
from spherenorm_experiments.paper.shared.layers import load_published
from spherenorm_experiments.paper.shared.layout import data_folder
from spherenorm_experiments.paper.shared.resnet import ResNet, resnet50
from spherenorm_experiments.task import Batch, Budget, Splits, Task, are_tensors
from spherenorm_experiments.train import Training

PUBLISHED = Path("pretrained") / "resnet50.pth"
"""The file of torchvision's model in the folder of `--data`."""

SIDE = 16
"""Pixels of a glyph's image."""

AUDITED = 32
"""Images of the audit's batch."""

CHUNK = 4096
"""Queries whose neighbours are looked for at a time."""


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
        start: of ResNet-50: random, or pretrained, from pretrained/resnet50.pth in the folder of
            `--data`, as torchvision publishes it.
        side: pixels of an image's side, of a data set on disk.
        frozen_epochs: the first epochs, in which what is below the last layer does not train.
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
    start: Literal["random", "pretrained"] = "random"
    side: int = 224
    frozen_epochs: float = 0.0

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
        if self.data_set in PROTOCOLS:
            return glyph_classes(self.data_set, SIDE)
        return photos(self.data_set, self.side)

    def model(self) -> nn.Module:
        small = self.network == "small"
        trunk = ResNet("basic", (1, 1), 12, stem="small", classes=1) if small else resnet50()
        if self.start == "pretrained":
            load_published([trunk.stem, *trunk.stages], self._published)
        frozen = self.frozen_statistics
        embedding = Embedding(trunk, self.dimension, bias=self.bias, frozen_statistics=frozen)
        classes = 1 + int(self._labels().max())
        return Learner(embedding, self.objective, classes, self.dimension)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels, _ = batch
        loss: Tensor = model(images, labels)
        return loss

    @contextmanager
    def around_step(self, training: Training, step: int) -> Iterator[None]:
        """Take the gradients of what is frozen."""
        if step < self.frozen_epochs * training.run.steps_per_epoch:
            assert isinstance(training.module, Learner)
            for weight in training.module.embedding.trunk.parameters():
                weight.grad = None
        yield

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


def recall_at_1(embeddings: Tensor, labels: Tensor, roles: Tensor) -> float:
    """The percentage of queries whose nearest image of the gallery has their class.

    An image that is both query and gallery does not find itself. Queries without an image to find
    do not count.

    Args:
        embeddings: vectors of length 1, shape (items, dimension).
        labels: classes, shape (items).
        roles: QUERY, GALLERY or BOTH, shape (items).

    Returns:
        nan if there is nothing to find.
    """
    queries, gallery = ((roles != other).nonzero()[:, 0] for other in (GALLERY, QUERY))
    hits = found = 0
    if not len(gallery):  # a rehearsal's few items may be queries alone
        return float("nan")
    for chunk in torch.split(queries, CHUNK):
        likeness = embeddings[chunk] @ embeddings[gallery].T
        itself = chunk[:, None] == gallery
        same = (labels[chunk, None] == labels[gallery]) & ~itself
        nearest = likeness.masked_fill(itself, -torch.inf).argmax(dim=1, keepdim=True)
        hits += int(same.gather(1, nearest).sum())
        found += int(same.any(dim=1).sum())
    return 100 * hits / found if found else float("nan")


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
