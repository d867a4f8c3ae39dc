"""Pieces that the convolutional networks share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "InvertedResidual",
    "SqueezeExcitation",
    "StochasticDepth",
    "convolution",
    "divisible",
    "head",
    "initialize",
]

Activation = Callable[[], nn.Module]


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: Activation | None = None,
) -> nn.Sequential:
    """A convolution without bias, BatchNorm, and the activation if there is one.

    BatchNorm follows directly, so each of the convolution's channels is scale-invariant.
    """
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


def divisible(channels: float, by: int = 8) -> int:
    """The multiple of `by` nearest to a number of channels, at least 9 / 10 of it.

    The rule of Sandler et al. and of Tan and Le for networks of other widths.

    Example:
        >>> divisible(32 * 1.1), divisible(11)
        (32, 16)
    """
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded if rounded >= 0.9 * channels else rounded + by


class StochasticDepth(nn.Module):
    """In training, b x / (1 - rate) for each item, with b ~ Bernoulli(1 - rate).

    On the residual branch of a block it drops the block (Huang et al. 2016).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        kept = torch.rand(len(x), *(1 for _ in x.shape[1:]), device=x.device) >= self.rate
        return x * kept / (1 - self.rate)


class SqueezeExcitation(nn.Module):
    """x times a gate in (0, 1) for each channel, a small network's of the channels' means.

    Args:
        squeezed: channels of its hidden layer.
        normalized: BatchNorm before the hidden layer's activation, as ReXNet has it.

    Source: J. Hu et al., *Squeeze-and-Excitation Networks*, 2018.
    """

    def __init__(
        self, channels: int, squeezed: int, activation: Activation, normalized: bool = False
    ) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            *([nn.BatchNorm2d(squeezed)] if normalized else []),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x)
        return x * gate


class InvertedResidual(nn.Module):
    """1 x 1 to `expansion` times the channels, depthwise k x k, 1 x 1 back without activation.

    The input is added if the shape stays.

    Args:
        squeeze: channels in the squeeze-and-excitation after the depthwise convolution; 0 for none.
        drop: the rate of stochastic depth.

    Source: M. Sandler et al., *MobileNetV2: Inverted Residuals and Linear Bottlenecks*, 2018.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        expansion: int,
        stride: int,
        activation: Activation,
        kernel: int = 3,
        squeeze: int = 0,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = expansion * inputs
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(convolution(inputs, hidden, activation=activation))
        layers.append(convolution(hidden, hidden, kernel, stride, hidden, activation))
        if squeeze:
            layers.append(SqueezeExcitation(hidden, squeeze, activation))
        self.body = nn.Sequential(*layers, convolution(hidden, outputs))
        self.drop = StochasticDepth(drop)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + self.drop(out) if self.is_residual else out


def head(features: int, classes: int, dropout: float = 0.0) -> nn.Sequential:
    """The means over the image, dropout, and a linear classifier."""
    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*pool, nn.Dropout(dropout), nn.Linear(features, classes))


def initialize(network: nn.Module) -> None:
    """Convolutions with He's variance by fan-out, linear layers N(0, 0.01), biases 0.

    Source: K. He et al., *Delving Deep into Rectifiers*, 2015.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
