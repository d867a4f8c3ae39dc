"""Retrieval: embeddings by triplets or proxies, on CUB, Cars-196, In-Shop, SOP, or on glyphs.

`Embedding(resnet50())` has 24,557,120 parameters, 23,508,032 of them below the linear layer. The
length of W f + b is divided out, so that only the direction of W and b together matters, of the
layer as a whole: no row of W is scale-invariant by itself. With a bias W alone is not either.

Source: S. Kim et al., *Proxy Anchor Loss for Deep Metric Learning*, 2020, and its released code;
F. Schroff et al., *FaceNet*, 2015.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.lookup import data_folder, require_extra
from spherenorm_experiments.task import (
    Batch,
    Budget,
    Collected,
    Splits,
    Statistic,
    Task,
    are_tensors,
)
from spherenorm_experiments.train import Training
from spherenorm_paper.retrieval import images as sets
from spherenorm_paper.shared.layers import load_published
from spherenorm_paper.shared.resnet import ResNet, resnet50

MARGIN = 0.1
"""The margin of triplets and proxies, as in the released code of ProxyAnchor."""


class Embedding(nn.Module):
    """l2-normalized W (mean + maximum over the image) + b.

    Args:
        trunk: without its classifier.
        frozen_statistics: BatchNorm keeps its statistics in training. The convolutions below it
            are then not scale-invariant.
    """

    def __init__(
        self,
        trunk: ResNet,
        dimension: int = 512,
        *,
        bias: bool = True,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        self.trunk = nn.Sequential(trunk.stem, *trunk.stages)
        self.frozen_statistics = frozen_statistics
        self.linear = nn.Linear(trunk.features, dimension, bias=bias)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Shape (items, dimension), of images of shape (items, 3, height, width)."""
        if self.frozen_statistics:
            self.trunk.eval()  # which has no other layer with a mode
        features = self.trunk(images)
        pooled = features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))
        return F.normalize(self.linear(pooled))


class Learner(nn.Module):
    """An embedding with one of two losses of pytorch-metric-learning."""

    def __init__(self, embedding: Embedding, objective: str, classes: int) -> None:
        super().__init__()
        require_extra("pytorch_metric_learning", "retrieval")
        from pytorch_metric_learning import losses, miners

        self.embedding, self.miner = embedding, None
        if objective == "triplet":
            self.miner = miners.TripletMarginMiner(MARGIN, type_of_triplets="semihard")
            self.criterion: nn.Module = losses.TripletMarginLoss(MARGIN)
        else:
            dimension = embedding.linear.out_features
            self.criterion = losses.ProxyAnchorLoss(classes, dimension, margin=MARGIN, alpha=32)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Embeddings of shape (items, dimension), or with labels, of shape (items), the loss."""
        embeddings: Tensor = self.embedding(images)
        if labels is None:
            return embeddings
        with torch.autocast(images.device.type, enabled=False):
            if embeddings.dtype in (torch.float16, torch.bfloat16):
                embeddings = embeddings.float()  # the library would cast the proxies to the half
            triplets = None if self.miner is None else self.miner(embeddings, labels)
            return self.criterion(embeddings, labels, triplets)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Retrieval(Task):
    """Find an image of the same class, of classes that were not seen; scored by recall@1.

    Triplets are semi-hard: the negative is farther from the anchor than the positive, but by less
    than the margin. ProxyAnchor has a vector for each class, which is trained with them.

    Attributes:
        data_set: glyphs of 16 x 16 pixels, divided in one of four ways, or one of the paper's data
            sets.
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
    better = "higher"
    is_mean = False  # of pairs of items
    evaluation_batch = 128
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 120),
        "small": Budget(8, 60),
        "full": Budget(60, 120),
    }

    def data(self) -> Splits:
        if self.data_set in sets.PROTOCOLS:
            return sets.glyph_classes(self.data_set)
        return sets.photos(self.data_set, self.side)

    def model(self) -> nn.Module:
        small = self.network == "small"
        trunk = ResNet("basic", (1, 1), 12, stem="small", classes=1) if small else resnet50()
        if self.start == "pretrained":
            load_published([trunk.stem, *trunk.stages], self._published)
        embedding = Embedding(
            trunk, self.dimension, bias=self.bias, frozen_statistics=self.frozen_statistics
        )
        return Learner(embedding, self.objective, 1 + int(self._labels().max()))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels, _ = batch
        return model(images, labels)  # type: ignore[no-any-return]

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
        images, labels, _ = self.first_batch(self.data().train, 32)
        return (images,) if self.objective == "triplet" else (images, labels)

    def fingerprint(self) -> str:
        fingerprint = super().fingerprint()
        if self.start == "pretrained":
            fingerprint += hashlib.sha256(self._published.read_bytes()).hexdigest()
        return fingerprint

    def _labels(self) -> Tensor:
        train = self.data().train
        return train[1] if are_tensors(train) else torch.from_numpy(train.labels)  # type: ignore[union-attr]

    @property
    def _published(self) -> Path:
        return data_folder("the pretrained start") / "pretrained" / "resnet50.pth"


def recall_at_1(embeddings: Tensor, labels: Tensor, roles: Tensor) -> float:
    """The percentage of queries whose nearest image of the gallery has their class.

    An image that is both query and gallery does not find itself. Queries without an image to find
    do not count. It is the precision@1 of pytorch-metric-learning.

    Args:
        embeddings: vectors of length 1, shape (items, dimension).
        labels: classes, shape (items).
        roles: QUERY, GALLERY or BOTH, shape (items).

    Returns:
        nan without a gallery, and for embeddings that are not finite.
    """
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    queries, gallery = roles != sets.GALLERY, roles != sets.QUERY
    if not gallery.any() or not embeddings.isfinite().all():  # a rehearsal may have queries alone
        return float("nan")
    neighbours = CustomKNN(CosineSimilarity(), batch_size=4096)
    accuracies = AccuracyCalculator(
        include=("precision_at_1",), k=1, knn_func=neighbours
    ).get_accuracy(
        *(embeddings[queries], labels[queries], embeddings[gallery], labels[gallery]),
        ref_includes_query=torch.equal(queries, gallery),
    )
    return 100 * float(accuracies["precision_at_1"])


def balanced(
    labels: Tensor, per_class: int, count: int, batch_size: int, random: torch.Generator
) -> Tensor:
    """`count` indices, of which every `batch_size` are of `per_class` images of random classes.

    Classes are drawn without replacement, until all have been drawn; so are the images of a class
    that has enough.
    """
    members = [(labels == label).nonzero()[:, 0] for label in torch.unique(labels)]
    wanted = -(-batch_size // per_class)
    neighbors: list[Tensor] = []
    for _ in range(-(-count // batch_size)):
        rounds = range(-(-wanted // len(members)))
        order = torch.cat([torch.randperm(len(members), generator=random) for _ in rounds])
        batch = [_some(members[int(label)], per_class, random) for label in order[:wanted]]
        neighbors.append(torch.cat(batch)[:batch_size])
    return torch.cat(neighbors)[:count]


def _some(members: Tensor, count: int, random: torch.Generator) -> Tensor:
    if len(members) >= count:
        return members[torch.randperm(len(members), generator=random)[:count]]
    return members[torch.randint(len(members), (count,), generator=random)]
