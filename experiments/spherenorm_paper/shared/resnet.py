"""ResNet: 18 and 50 layers for ImageNet, and small ones of the same blocks.

Source: K. He et al., *Deep Residual Learning for Image Recognition*, 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from spherenorm_paper.shared.layers import (
    StochasticDepth,
    convolution,
    head,
    initialize,
    rising,
)

EXPANSION = {"basic": 1, "bottleneck": 4}
"""Channels of a block's output per channel of its width."""


class Block(nn.Module):
    """relu(shortcut(x) + body(x)), with BatchNorm after every convolution.

    The body of a basic block is two 3 x 3 convolutions; that of a bottleneck is 1 x 1, 3 x 3 (with
    the stride, as in the networks that are trained today) and 1 x 1 to four times the width.
    """

    def __init__(
        self, kind: str, inputs: int, width: int, stride: int = 1, drop: float = 0.0
    ) -> None:
        super().__init__()
        outputs = EXPANSION[kind] * width
        *inner, last = {
            "basic": [(inputs, width, 3, stride), (width, outputs, 3, 1)],
            "bottleneck": [
                (inputs, width, 1, 1),
                (width, width, 3, stride),
                (width, outputs, 1, 1),
            ],
        }[kind]
        active = (convolution(*shape, activation=nn.ReLU) for shape in inner)
        self.body = nn.Sequential(*active, convolution(*last))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        self.drop, self.activation = StochasticDepth(drop), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.shortcut(x) + self.drop(self.body(x)))
        return out


class ResNet(nn.Module):
    """A stem, stages of residual blocks, the means over the image, a linear classifier.

    Each stage but the first halves the image; stage k has the width 2^k times that of the first.

    Args:
        block: basic (two 3 x 3 convolutions) or bottleneck (1 x 1, 3 x 3, 1 x 1).
        depths: blocks of each stage.
        width: of the first stage, and channels of the stem.
        stem: imagenet (7 x 7 with stride 2, then max pooling with stride 2), small (3 x 3) or
            halving (3 x 3 with stride 2).
        classes: outputs.
        dropout: the rate before the classifier.
        stochastic_depth: the rate of the last block; it rises linearly with depth from 0.

    Attributes:
        features: channels of the last stage.

    Example:
        >>> import torch
        >>> network = ResNet("basic", (1, 1), 8, stem="small", classes=10)
        >>> network.trunk(torch.zeros(1, 3, 16, 16)).shape
        torch.Size([1, 16, 8, 8])
    """

    def __init__(
        self,
        block: Literal["basic", "bottleneck"] = "basic",
        depths: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        stem: Literal["imagenet", "small", "halving"] = "imagenet",
        classes: int = 1000,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        kernel, stride = {"imagenet": (7, 2), "small": (3, 1), "halving": (3, 2)}[stem]
        pool = [nn.MaxPool2d(3, 2, padding=1)] if stem == "imagenet" else []
        self.stem = nn.Sequential(*convolution(3, width, kernel, stride, activation=nn.ReLU), *pool)
        rates = iter(rising(stochastic_depth, sum(depths)))
        channels, stages = width, []
        for index, depth in enumerate(depths):
            blocks = []
            for place in range(depth):
                stride = 2 if index and not place else 1
                blocks.append(Block(block, channels, width << index, stride, next(rates)))
                channels = EXPANSION[block] * (width << index)
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.features = channels
        self.head = head(channels, classes, dropout)
        initialize(self)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The output of each stage, of shape (items, channels, height, width)."""
        x, features = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features

    def trunk(self, x: Tensor) -> Tensor:
        """The output of the last stage."""
        return self.maps(x)[-1]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x))
        return out


def resnet18(**options: Any) -> ResNet:
    """ResNet-18: 11,689,512 parameters with 1,000 classes."""
    return ResNet("basic", (2, 2, 2, 2), **options)


def resnet50(**options: Any) -> ResNet:
    """ResNet-50: 25,557,032 parameters with 1,000 classes."""
    return ResNet("bottleneck", (3, 4, 6, 3), **options)
