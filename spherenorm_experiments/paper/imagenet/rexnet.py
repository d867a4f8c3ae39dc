"""ReXNet.

Source: D. Han et al., *ReXNet: Diminishing Representational Bottleneck on Convolutional Neural
Network*, 2020, and the released settings. The paper's table has 6.4 M parameters for the width
1.3; the network that the authors released has 7,557,091.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spherenorm_experiments.paper.shared.layers import (
    SqueezeExcitation,
    StochasticDepth,
    convolution,
    head,
    initialize,
)

__all__ = ["STAGES", "ReXNet"]

STAGES = ((1, 1, False), (2, 2, False), (2, 2, True), (3, 2, True), (3, 1, True), (5, 2, True))
"""Blocks, stride and squeeze-and-excitation of each stage."""

EXPANSION, SQUEEZE = 6, 12


class _Block(nn.Module):
    """An inverted residual whose input is added to the first channels of the output.

    Channels grow from block to block. The activation follows the squeeze-and-excitation.
    """

    def __init__(
        self, inputs: int, outputs: int, expansion: int, stride: int, squeezed: bool, drop: float
    ) -> None:
        super().__init__()
        hidden = expansion * inputs
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(convolution(inputs, hidden, activation=nn.SiLU))
        layers.append(convolution(hidden, hidden, 3, stride, hidden))
        if squeezed:
            layers.append(SqueezeExcitation(hidden, max(1, hidden // SQUEEZE), nn.ReLU, True))
        self.body = nn.Sequential(*layers, nn.ReLU6(), convolution(hidden, outputs))
        self.drop = StochasticDepth(drop)
        self.is_residual = stride == 1 and inputs <= outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        if not self.is_residual:
            return out
        out, old = self.drop(out), x.shape[1]
        return torch.cat([out[:, :old] + x, out[:, old:]], dim=1)


class ReXNet(nn.Module):
    """ReXNet: 4,796,873 parameters at width 1.0, 7,557,091 at 1.3, with 1,000 classes.

    Args:
        width: a factor of all channels.
        stages: blocks, stride and squeeze-and-excitation of each stage.
        channels: of the first block and, beyond these, of the last, at width 1.
        stem: channels of the first convolution at width 1.
        stem_stride: 2, or 1 for small images.
        features: channels before the classifier at width 1.
        classes: outputs.
        dropout: the rate before the classifier.
        stochastic_depth: the rate of the last block; it rises linearly with depth from 0.

    Example:
        >>> import torch
        >>> network = ReXNet(stages=((1, 1, False), (2, 2, True)), features=64, classes=10)
        >>> network(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        width: float = 1.0,
        stages: Sequence[tuple[int, int, bool]] = STAGES,
        channels: tuple[int, int] = (16, 180),
        stem: int = 32,
        stem_stride: int = 2,
        features: int = 1280,
        classes: int = 1000,
        dropout: float = 0.2,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        count = sum(repeats for repeats, _, _ in stages)
        first, growth = channels
        inputs = round(width * stem)
        layers: list[nn.Module] = [convolution(3, inputs, 3, stem_stride, activation=nn.SiLU)]
        for number, (repeats, stride, squeezed) in enumerate(stages):
            for place in range(repeats):
                index = len(layers) - 1
                outputs = round(width * (first + growth * index / count))
                expansion, steps = EXPANSION if number else 1, 1 if place else stride
                drop = stochastic_depth * index / max(1, count - 1)
                layers.append(_Block(inputs, outputs, expansion, steps, squeezed, drop))
                inputs = outputs
        wide = math.floor(width * features)
        layers.append(convolution(inputs, wide, activation=nn.SiLU))
        self.layers = nn.ModuleList(layers)
        self.head = head(wide, classes, dropout)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out
