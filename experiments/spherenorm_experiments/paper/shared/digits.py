"""Handwritten digits: scikit-learn's 1,797 images of 8 x 8 pixels, and small networks for them.

The networks are of the paper's families.

Source: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine
Learning Repository.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.metrics import Mean, Statistic
from spherenorm_experiments.paper.shared.layers import convolution, head
from spherenorm_experiments.paper.shared.resnet import Block
from spherenorm_experiments.task import Batch, Budget, Split, Splits, Task


@dataclass(frozen=True)
class Digits(Task):
    """Classify 8 x 8 digits: 1,150 to train on, 287 for validation, 360 to test.

    Every class has the same share of each split.

    Attributes:
        variant: the network: plain (three convolutions with BatchNorm), residual (ResNet's basic
            blocks), transformer (four-pixel patches, LayerNorm before each sublayer).
        width: channels of the first layer; the transformer has twice as many.
        label_smoothing: the share of a target that is spread over all classes.
    """

    variant: Literal["plain", "residual", "transformer"] = "plain"
    width: int = 16
    label_smoothing: float = 0.0

    name = "digits"
    metric = "accuracy (%)"
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(13, 64),
        "full": Budget(100, 64),
    }

    def data(self) -> Splits:
        return _digits()

    def model(self) -> nn.Module:
        return _NETWORKS[self.variant](self.width)

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
    train_test_split = require_extra("sklearn.model_selection", "the digits").train_test_split
    images, labels = load_digits(return_X_y=True)
    rest_x, test_x, rest_y, test_y = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    train_x, valid_x, train_y, valid_y = train_test_split(
        rest_x, rest_y, test_size=287, stratify=rest_y, random_state=0
    )
    mean, std = train_x.mean(), train_x.std()

    def split(x: Any, y: Any) -> Split:
        return torch.from_numpy((x - mean) / std).float().reshape(-1, 1, 8, 8), torch.from_numpy(y)

    return Splits(split(train_x, train_y), split(valid_x, valid_y), split(test_x, test_y))


def _plain(width: int) -> nn.Module:
    layers = [
        convolution(1, width, 3, activation=nn.ReLU),
        convolution(width, 2 * width, 3, 2, activation=nn.ReLU),
        convolution(2 * width, 4 * width, 3, 2, activation=nn.ReLU),
    ]
    return nn.Sequential(*layers, head(4 * width, 10))


def _residual(width: int) -> nn.Module:
    return nn.Sequential(
        convolution(1, width, 3, activation=nn.ReLU),
        Block("basic", width, width),
        Block("basic", width, 2 * width, stride=2),
        head(2 * width, 10),
    )


class _Transformer(nn.Module):
    """Two pre-norm encoder layers over the 16 patches of 2 x 2 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        dim = 2 * width
        self.embed = nn.Conv2d(1, dim, 2, 2)
        self.position = nn.Parameter(0.02 * torch.randn(16, dim))
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        layers = (nn.TransformerEncoderLayer(dim, 4, 2 * dim, **options) for _ in range(2))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(tokens)).mean(1))  # type: ignore[no-any-return]


_NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "plain": _plain,
    "residual": _residual,
    "transformer": _Transformer,
}
