"""Handwritten digits: scikit-learn's bundled 1,797 images of 8 x 8 pixels, and a small convolutional network with BatchNorm.

Source: E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Data", "data", "network"]


@dataclass(frozen=True)
class Data:
    """Images of shape (n, 1, 8, 8), standardized, and labels of shape (n,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def to(self, device: str) -> Data:
        return Data(*(tensor.to(device) for tensor in vars(self).values()))


@functools.cache
def data() -> Data:
    """The digits, split once and for all: 1,437 to train on, 360 to test, every class in the same share."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the digits need scikit-learn: pip install -e '.[experiments]'") from error
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    mean, std = train_x.mean(), train_x.std()

    def as_images(x: Any) -> Tensor:
        return torch.from_numpy((x - mean) / std).float().reshape(-1, 1, 8, 8)

    return Data(as_images(train_x), torch.from_numpy(train_y), as_images(test_x), torch.from_numpy(test_y))


def network(width: int = 16) -> nn.Module:
    """Three convolutions, each followed by BatchNorm and hence scale-invariant channel by channel, and a linear classifier."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, width, 1),
        *block(width, 2 * width, 2),
        *block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
