"""The networks of Tables 2, D.2 and D.3 by their names: of full size, and small ones of glyphs.

MobileNetV2, EfficientNet and ReXNet are stages of inverted residuals between a stem and a linear
classifier. A small network has fewer blocks and channels, and its stem keeps the side of the image.

Source: M. Sandler et al., *MobileNetV2: Inverted Residuals and Linear Bottlenecks*, 2018, Table 2.
M. Tan and Q. Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks*, 2019,
Table 1 and the released settings. D. Han et al., *ReXNet: Diminishing Representational Bottleneck
on Convolutional Neural Network*, 2020, and the released settings; its table has 6.4 M parameters
for the width 1.3, the network that the authors released has 7,557,091.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spherenorm_paper.shared.layers import (
    Activation,
    StochasticDepth,
    convolution,
    head,
    initialize,
    rising,
)
from spherenorm_paper.shared.resnet import ResNet, resnet18, resnet50


class Block(NamedTuple):
    """A row of a network's table.

    Attributes:
        squeeze: channels of the input per channel of the squeeze-and-excitation; 0 for none.
    """

    outputs: int
    expansion: int
    kernel: int
    stride: int
    squeeze: int = 0


class SqueezeExcitation(nn.Module):
    """x times a gate in (0, 1) for each channel, a small network's of the channels' means.

    Args:
        squeezed: channels of its hidden layer.
        normalized: BatchNorm and ReLU in the hidden layer, as ReXNet has it, in place of SiLU.

    Source: J. Hu et al., *Squeeze-and-Excitation Networks*, 2018.
    """

    def __init__(self, channels: int, squeezed: int, normalized: bool) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            *([nn.BatchNorm2d(squeezed), nn.ReLU()] if normalized else [nn.SiLU()]),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """1 x 1 to `expansion` times the channels, depthwise k x k, 1 x 1 back without activation.

    The input is added if the shape stays.

    Args:
        drop: the rate of stochastic depth.
        widens: as in ReXNet, the input is also added to the first channels of a wider output, and
            ReLU6 follows the squeeze-and-excitation in place of an activation before it.
    """

    def __init__(
        self, inputs: int, row: Block, activation: Activation, drop: float, widens: bool
    ) -> None:
        super().__init__()
        n_hidden, depthwise = row.expansion * inputs, None if widens else activation
        layers: list[nn.Module] = []
        if row.expansion > 1:
            layers.append(convolution(inputs, n_hidden, activation=activation))
        layers.append(convolution(n_hidden, n_hidden, row.kernel, row.stride, n_hidden, depthwise))
        if row.squeeze:
            layers.append(SqueezeExcitation(n_hidden, max(1, inputs // row.squeeze), widens))
        if widens:
            layers.append(nn.ReLU6())
        self.body = nn.Sequential(*layers, convolution(n_hidden, row.outputs))
        self.drop = StochasticDepth(drop)
        fits = inputs <= row.outputs if widens else inputs == row.outputs
        self.is_residual = row.stride == 1 and fits

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        if not self.is_residual:
            return out
        out, old = self.drop(out), x.shape[1]
        return torch.cat([out[:, :old] + x, out[:, old:]], dim=1)


class InvertedNetwork(nn.Module):
    """A convolution, inverted residuals, a 1 x 1 convolution, and a linear classifier.

    Args:
        rows: the residuals.
        stem, features: channels of the first and of the last convolution.
        widens: blocks are ReXNet's.
        stochastic_depth: the rate of the last block; it rises linearly with depth from 0.
        behind: blocks behind the last, the last of which would have that rate.

    Example:
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in FULL["efficientnet-b0"]().parameters())
        5288548
    """

    def __init__(
        self,
        rows: Sequence[Block],
        stem: int,
        features: int,
        activation: Activation = nn.SiLU,
        *,
        widens: bool = False,
        stem_stride: int = 2,
        classes: int = 1000,
        dropout: float = 0.2,
        stochastic_depth: float = 0.0,
        behind: int = 0,
    ) -> None:
        super().__init__()
        channels = (stem, *(row.outputs for row in rows))
        drops = rising(stochastic_depth, len(rows) + behind)
        self.layers = nn.Sequential(
            convolution(3, stem, 3, stem_stride, activation=activation),
            *(InvertedResidual(inputs, row, activation, drop, widens)
              for inputs, row, drop in zip(channels, rows, drops, strict=False)),
            convolution(channels[-1], features, activation=activation),
        )  # fmt: skip
        self.head = head(features, classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))  # type: ignore[no-any-return]


class Scale(NamedTuple):
    """Factors of B0's channels and depth, the side of the image in pixels, the dropout rate."""

    width: float = 1.0
    depth: float = 1.0
    side: int = 224
    dropout: float = 0.2


SCALES = {
    "efficientnet-b0": Scale(),
    "efficientnet-b1": Scale(1.0, 1.1, 240, 0.2),
    "efficientnet-b2": Scale(1.1, 1.2, 260, 0.3),
    "efficientnet-b3": Scale(1.2, 1.4, 300, 0.3),
}
"""The released scales of EfficientNet."""

MOBILENET = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 3, 32, 3, 2), (6, 3, 64, 4, 2),
    (6, 3, 96, 3, 1), (6, 3, 160, 3, 2), (6, 3, 320, 1, 1),
)  # fmt: skip
EFFICIENTNET = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1),
)  # fmt: skip
"""Expansion, kernel, channels, blocks and stride of each stage; of B0."""

REXNET = ((1, 1, False), (2, 2, False), (2, 2, True), (3, 2, True), (3, 1, True), (5, 2, True))
"""Blocks, stride and squeeze-and-excitation of each stage."""


Network = Callable[..., nn.Module]


def scaled(
    stages: Sequence[Sequence[int]],
    scale: Scale,
    *,
    squeeze: int = 0,
    stem: int = 32,
    features: int = 1280,
    divisor: int = 8,
    **options: Any,
) -> Network:
    """A network of stages, widened and deepened.

    Args:
        stages: rows of expansion, kernel, channels, blocks and stride.
        divisor: of all numbers of channels.
    """

    def wide(channels: int) -> int:
        return divisible(scale.width * channels, divisor)

    rows = [
        Block(wide(outputs), expansion, kernel, 1 if place else stride, squeeze)
        for expansion, kernel, outputs, repeats, stride in stages
        for place in range(math.ceil(scale.depth * repeats))
    ]
    options = {"dropout": scale.dropout, **options}
    return partial(InvertedNetwork, rows, wide(stem), wide(features), **options)


def rexnet(
    width: float,
    stages: Sequence[tuple[int, int, bool]] = REXNET,
    channels: tuple[int, int] = (16, 180),
    stem: int = 32,
    features: int = 1280,
    **options: Any,
) -> Network:
    """ReXNet.

    Args:
        width: a factor of all channels.
        channels: of the first block and, beyond these, of the last: they grow from block to block.
    """
    shapes = [
        (6 if number else 1, 3, 1 if place else stride, 2 if squeezed else 0)
        for number, (repeats, stride, squeezed) in enumerate(stages)
        for place in range(repeats)
    ]
    stem_channels, growth = channels
    outputs = [
        round(width * (stem_channels + growth * k / len(shapes))) for k in range(len(shapes))
    ]
    rows = [Block(n_inputs, *shape) for n_inputs, shape in zip(outputs, shapes, strict=True)]
    wide = round(width * stem), math.floor(width * features)
    return partial(InvertedNetwork, rows, *wide, widens=True, **options)


def divisible(channels: float, by: int = 8) -> int:
    """The multiple of `by` nearest to a number of channels, at least 9 / 10 of it.

    The rule of Tan and Le for networks of other widths.

    Example:
        >>> divisible(32 * 1.1), divisible(11)
        (32, 16)
    """
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded if rounded >= 0.9 * channels else rounded + by


WIDTHS = {"rexnet-1.0": 1.0, "rexnet-1.3": 1.3}
SQUEEZED: dict[str, Any] = {"squeeze": 4, "stochastic_depth": 0.2, "behind": 1}
TINY: dict[str, Any] = {"stem": 8, "stem_stride": 1, "features": 64}
FEW = ((1, 3, 8, 1, 1), (4, 5, 16, 1, 2))

FULL: dict[str, Network] = {
    "mobilenetv2": scaled(MOBILENET, Scale(), activation=nn.ReLU6),
    "resnet18": resnet18,
    "resnet50": resnet50,
    **{name: scaled(EFFICIENTNET, scale, **SQUEEZED) for name, scale in SCALES.items()},
    **{name: rexnet(width) for name, width in WIDTHS.items()},
}
"""With 1,000 classes: MobileNetV2 has 3,504,872 parameters, EfficientNet 5,288,548 (B0) to
12,233,232 (B3), ReXNet 4,796,873 and 7,557,091."""

SMALL: dict[str, Network] = {
    "mobilenetv2": scaled((*FEW[:1], (4, 3, 16, 1, 2), (4, 3, 24, 1, 2)), Scale(),
                          activation=nn.ReLU6, **TINY),
    "resnet18": partial(ResNet, "basic", (1, 1, 1), 8, "small"),
    "resnet50": partial(ResNet, "bottleneck", (1, 1, 1), 4, "small"),
    **{name: scaled(FEW, scale._replace(dropout=0.2), divisor=2, **SQUEEZED, **TINY)
       for name, scale in SCALES.items()},
    **{name: rexnet(width, ((1, 1, False), (2, 2, True)), (8, 24), **TINY)
       for name, width in WIDTHS.items()},
}  # fmt: skip
