"""MobileNetV2.

Source: M. Sandler et al., *MobileNetV2: Inverted Residuals and Linear Bottlenecks*, 2018, Table 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from spherenorm_experiments.paper.shared.layers import (
    InvertedResidual,
    convolution,
    divisible,
    head,
    initialize,
)

__all__ = ["STAGES", "MobileNetV2"]

STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
    (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, blocks and stride of each stage."""


class MobileNetV2(nn.Module):
    """MobileNetV2: 3,504,872 parameters with 1,000 classes.

    Args:
        stages: expansion, channels, blocks and stride of the first block, for each stage.
        width: a factor of all channels.
        stem: channels of the first convolution.
        stem_stride: 2, or 1 for small images.
        features: channels before the classifier.
        classes: outputs.
        dropout: the rate before the classifier.
        stochastic_depth: the rate of the last block; it rises linearly with depth from 0.

    Example:
        >>> import torch
        >>> network = MobileNetV2(((1, 8, 1, 1), (4, 16, 1, 2)), features=32, classes=10)
        >>> network(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        stages: Sequence[Sequence[int]] = STAGES,
        width: float = 1.0,
        stem: int = 32,
        stem_stride: int = 2,
        features: int = 1280,
        classes: int = 1000,
        dropout: float = 0.2,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        channels = divisible(width * stem)
        features = max(features, divisible(width * features))
        layers: list[nn.Module] = [
            convolution(3, channels, 3, stem_stride, activation=nn.ReLU6),
        ]
        count = sum(repeats for _, _, repeats, _ in stages)
        for expansion, wide, repeats, stride in stages:
            outputs = divisible(width * wide)
            for place in range(repeats):
                drop = stochastic_depth * (len(layers) - 1) / max(1, count - 1)
                steps = stride if place == 0 else 1
                layers.append(
                    InvertedResidual(channels, outputs, expansion, steps, nn.ReLU6, drop=drop)
                )
                channels = outputs
        layers.append(convolution(channels, features, activation=nn.ReLU6))
        self.layers = nn.ModuleList(layers)
        self.head = head(features, classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out
