"""Image classification: the paper's networks on ImageNet, small ones of their families on glyphs.

On ImageNet a network has its full size. On glyphs it has fewer blocks and channels, and its first
convolution keeps the side of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_experiments.train import Training
from spherenorm_paper.imagenet.networks import FULL, SCALES, SMALL, Scale
from spherenorm_paper.shared import augmentation, glyphs
from spherenorm_paper.shared.imagenet import CLASSES, imagenet
from spherenorm_paper.shared.items import Items

Name = Literal[
    "mobilenetv2",
    "resnet18",
    "resnet50",
    "efficientnet-b0",
    "efficientnet-b1",
    "efficientnet-b2",
    "efficientnet-b3",
    "rexnet-1.0",
    "rexnet-1.3",
]

GLYPHS, COUNTS = glyphs.CHARACTERS[:10], (1920, 480, 960)
APPEARANCE = glyphs.Appearance(angle=12.0, scale=(0.75, 0.95), shift=0.5, contrast=90.0)
"""Glyphs on which a small network learns something in 200 steps, and optimizers still differ."""

MAGNITUDE = 4.0
"""RandAugment's on glyphs: at 9 they are turned by 27 degrees and shifted by 5 of 12 pixels."""


class Averaged(nn.Module):
    """A model that trains, and the exponential average of its weights, which is evaluated."""

    def __init__(self, live: nn.Module, decay: float) -> None:
        super().__init__()
        self.live = live
        average = get_ema_avg_fn(decay)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(live, avg_fn=average, use_buffers=True)
        self.average.requires_grad_(False)
        self.average.n_averaged.fill_(1)  # of the initial weights

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = (self.live if self.training else self.average)(images)
        return out


@dataclass(frozen=True)
class Classification(Task):
    """Classify photographs of 1,000 synsets, or glyphs of ten characters.

    Attributes:
        network: by its name in the paper.
        data_set: glyphs (drawn here; the fonts of training, validation and test differ) or imagenet
            (official layout, in the folder of `--data`).
        side: pixels of an image's side; None for the network's on photographs, 12 on glyphs.
        augmentation: standard (random crops and flips of photographs; none of glyphs), or
            randaugment after it.
        cutmix: the probability with which a batch is mixed (CutMix, alpha 1).
        dropout: the rate before the classifier; None for the network's.
        stochastic_depth: the rate of the last block; None for the network's.
        label_smoothing: the share of a target that is spread over all classes.
        averaged: the decay of the average of the weights that is evaluated; None for the weights.
    """

    network: Name = "resnet18"
    data_set: Literal["glyphs", "imagenet"] = "glyphs"
    side: int | None = None
    augmentation: Literal["standard", "randaugment"] = "standard"
    cutmix: float = 0.0
    dropout: float | None = None
    stochastic_depth: float | None = None
    label_smoothing: float = 0.0
    averaged: float | None = None

    name = "classification"
    metric = "accuracy (%)"
    better = "higher"
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(3, 32),
        "full": Budget(100, 256),
    }

    def data(self) -> Splits:
        augmented = self.augmentation == "randaugment"
        if self.data_set == "glyphs":
            return _glyphs(self.side or 12, augmented)
        side = self.side or SCALES.get(self.network, Scale()).side
        return imagenet(side, augmentation.rand_augment if augmented else None)

    def model(self) -> nn.Module:
        options = {"dropout": self.dropout, "stochastic_depth": self.stochastic_depth}
        options = {name: value for name, value in options.items() if value is not None}
        sizes = FULL if self.data_set == "imagenet" else SMALL
        model = sizes[self.network](classes=self._classes, **options)
        return model if self.averaged is None else Averaged(model, self.averaged)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        if self.cutmix and torch.rand(()) < self.cutmix:
            images, labels = augmentation.cutmix(images, F.one_hot(labels, self._classes).float())
        return F.cross_entropy(model(images), labels, label_smoothing=self.label_smoothing)

    @contextmanager
    def around_step(self, training: Training, step: int) -> Iterator[None]:
        """Average the weights after each step."""
        yield
        if isinstance(training.module, Averaged):
            training.module.average.update_parameters(training.module.live)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels = batch
        return {"accuracy": Mean(100.0 * (model(images).argmax(1) == labels))}

    def audit_inputs(self) -> tuple[Any, ...]:
        """Return eight photographs: the audit takes a dozen passes in float64."""
        count = 8 if self.data_set == "imagenet" else 64
        return tuple(self.first_batch(self.data().train, count)[:-1])

    @property
    def _classes(self) -> int:
        return CLASSES if self.data_set == "imagenet" else len(GLYPHS)


@functools.lru_cache(maxsize=4)
def _glyphs(side: int, augmented: bool) -> Splits:
    how = {"size": side, "characters": GLYPHS, "appearance": APPEARANCE}
    drawn = glyphs.by_fonts(glyphs.glyph_images, COUNTS, **how)
    splits = Splits(*((augmentation.standardized(images), labels) for images, labels in drawn))
    return splits._replace(train=Items(_augmented, *drawn[0])) if augmented else splits


def _augmented(image: Tensor, label: Tensor) -> tuple[Tensor, int]:
    picture = require_extra("PIL.Image", "augmentation").fromarray(image.permute(1, 2, 0).numpy())
    changed = augmentation.rand_augment(picture, MAGNITUDE)
    return augmentation.normalized(changed), int(label)
