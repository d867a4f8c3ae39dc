"""EfficientNet, B0 to B3.

Source: M. Tan and Q. Le, *EfficientNet: Rethinking Model Scaling for Convolutional Neural
Networks*, 2019, Table 1 and the released settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spherenorm_experiments.paper.shared.layers import (
    InvertedResidual,
    convolution,
    divisible,
    head,
    initialize,
)

__all__ = ["SCALES", "STAGES", "EfficientNet", "Scale", "efficientnet"]

STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1),
)  # fmt: skip
"""Expansion, kernel, channels, blocks and stride of each stage of B0."""

SQUEEZE = 4
"""Channels of a block's input per channel in its squeeze-and-excitation."""


@dataclass(frozen=True)
class Scale:
    """Factors of B0's channels and depth, the side of the image in pixels, the dropout rate."""

    width: float
    depth: float
    side: int
    dropout: float


SCALES = {
    "b0": Scale(1.0, 1.0, 224, 0.2),
    "b1": Scale(1.0, 1.1, 240, 0.2),
    "b2": Scale(1.1, 1.2, 260, 0.3),
    "b3": Scale(1.2, 1.4, 300, 0.3),
}


class EfficientNet(nn.Module):
    """Inverted residuals with squeeze-and-excitation and x sigmoid(x).

    B0 to B3 have 5,288,548, 7,794,184, 9,109,994 and 12,233,232 parameters with 1,000 classes.

    Args:
        stages: expansion, kernel, channels, blocks and stride of each stage.
        width: a factor of all channels.
        depth: a factor of the blocks of each stage, rounded up.
        stem: channels of the first convolution.
        stem_stride: 2, or 1 for small images.
        features: channels before the classifier.
        classes: outputs.
        dropout: the rate before the classifier.
        stochastic_depth: the rate of a block behind the last; it rises linearly with depth from 0.
        divisor: of all numbers of channels.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[int]] = STAGES,
        width: float = 1.0,
        depth: float = 1.0,
        stem: int = 32,
        stem_stride: int = 2,
        features: int = 1280,
        classes: int = 1000,
        dropout: float = 0.2,
        stochastic_depth: float = 0.2,
        divisor: int = 8,
    ) -> None:
        super().__init__()
        channels, features = (divisible(width * count, divisor) for count in (stem, features))
        layers: list[nn.Module] = [
            convolution(3, channels, 3, stem_stride, activation=nn.SiLU),
        ]
        rows = [(*row[:3], math.ceil(depth * row[3]), row[4]) for row in stages]
        count = sum(row[3] for row in rows)
        for expansion, kernel, wide, repeats, stride in rows:
            outputs = divisible(width * wide, divisor)
            for place in range(repeats):
                layers.append(
                    InvertedResidual(
                        channels,
                        outputs,
                        expansion,
                        stride if place == 0 else 1,
                        nn.SiLU,
                        kernel,
                        squeeze=max(1, channels // SQUEEZE),
                        drop=stochastic_depth * (len(layers) - 1) / count,
                    )
                )
                channels = outputs
        layers.append(convolution(channels, features, activation=nn.SiLU))
        self.layers = nn.ModuleList(layers)
        self.head = head(features, classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


def efficientnet(name: str, **options: Any) -> EfficientNet:
    """One of the released scales.

    Args:
        name: b0, b1, b2 or b3.
        **options: of `EfficientNet`, in place of the scale's.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in efficientnet("b0").parameters())
        5288548
    """
    scale = SCALES[name]
    given = {"width": scale.width, "depth": scale.depth, "dropout": scale.dropout}
    return EfficientNet(**{**given, **options})
