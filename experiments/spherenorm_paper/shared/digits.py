"""Handwritten digits: scikit-learn's 1,797 images of 8 x 8 pixels, and small networks for them.

The networks are of the paper's families.

Source: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine
Learning Repository.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_paper.shared.layers import convolution, head
from spherenorm_paper.shared.resnet import Block


@dataclass(frozen=True)
class Digits(Task):
    """Classify 8 x 8 digits: 1,150 to train on, 287 for validation, 360 to test.

    Every class has the same share of each split.

    Attributes:
        variant: the network: plain (three convolutions with BatchNorm), residual (ResNet's basic
            blocks).
        width: channels of the first layer.
        label_smoothing: the share of a target that is spread over all classes.
    """

    variant: Literal["plain", "residual"] = "plain"
    width: int = 16
    label_smoothing: float = 0.0

    name = "digits"
    metric = "accuracy (%)"
    better = "higher"
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(13, 64),
        "full": Budget(100, 64),
    }

    def data(self) -> Splits:
        return _digits()

    def model(self) -> nn.Module:
        stem, wide = convolution(1, self.width, 3, activation=nn.ReLU), 2 * self.width
        if self.variant == "residual":
            blocks = Block("basic", self.width, self.width), Block("basic", self.width, wide, 2)
            return nn.Sequential(stem, *blocks, head(wide, 10))
        block = convolution(self.width, wide, 3, 2, activation=nn.ReLU)
        third = convolution(wide, 2 * wide, 3, 2, activation=nn.ReLU)
        return nn.Sequential(stem, block, third, head(2 * wide, 10))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        targets = F.one_hot(labels, 10).float()
        return F.cross_entropy(model(images), targets, label_smoothing=self.label_smoothing)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels = batch
        return {"accuracy": Mean(100.0 * (model(images).argmax(1) == labels))}


@functools.cache
def _digits() -> Splits:
    load_digits = require_extra("sklearn.datasets", "the digits").load_digits
    split = require_extra("sklearn.model_selection", "the digits").train_test_split
    images, labels = load_digits(return_X_y=True)
    rest_x, test_x, rest_y, test_y = split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    train_x, valid_x, train_y, valid_y = split(
        rest_x, rest_y, test_size=287, stratify=rest_y, random_state=0
    )
    mean, std = train_x.mean(), train_x.std()
    parts = (train_x, train_y), (valid_x, valid_y), (test_x, test_y)
    return Splits(
        *((torch.from_numpy((x - mean) / std).float().reshape(-1, 1, 8, 8), torch.from_numpy(y))
          for x, y in parts)
    )  # fmt: skip
