"""The networks of ReBias: f with a large receptive field, and g that is biased by a small one.

g sees colour (1 x 1 kernels) or texture (5 x 5 pixels) but no shape. Each network returns its
logits and, for the independence of f and g, the features that its classifier reads.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
W. Brendel and M. Bethge, *Approximating CNNs with Bag-of-local-Features Models*, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from spherenorm_experiments.paper.shared.resnet import ResNet


class Featured(nn.Module):
    """The means of a body's maps over the image, and a linear classifier of them.

    Args:
        body: of images of shape (n, 3, height, width).
        channels: of its maps.
        classes: of the logits.
    """

    def __init__(self, body: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of shape (n, classes), and features of shape (n, channels)."""
        features = self.body(images).mean((2, 3))
        return self.head(features), features


class ConvStack(Featured):
    """Convolutions with BatchNorm and ReLU, the mean over pixels, a linear classifier.

    Args:
        kernel: the odd side of every kernel; Biased MNIST has 7 for f and 1 for g.
        widths: channels of the convolutions.
        classes: of the logits.

    Example:
        >>> sum(weight.numel() for weight in ConvStack(1).parameters())
        12810
    """

    def __init__(
        self, kernel: int, widths: Sequence[int] = (16, 32, 64, 128), classes: int = 10
    ) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, *widths)):
            conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), widths[-1], classes)


class BagNet18(Featured):
    """ResNet-18 in which nearly every 3 x 3 kernel is 1 x 1 and nothing is padded.

    The stem is a 1 x 1 and a 3 x 3 convolution; of the blocks only the first has a 3 x 3 kernel. So
    a feature sees 5 x 5 pixels. (The released code has a parameter `rf=43` that it does not use.)

    Args:
        classes: of the logits.
        widths: channels of the four groups of two blocks; the stem has as many as the first.
    """

    def __init__(self, classes: int = 9, widths: Sequence[int] = (64, 128, 256, 512)) -> None:
        stem = widths[0]
        layers = [_conv(3, stem, 1), _conv(stem, stem, 3)]
        layers += [nn.BatchNorm2d(stem, momentum=0.001), nn.ReLU()]
        groups = zip(pairwise((stem, *widths)), (3, 1, 1, 1), (2, 2, 2, 1), strict=True)
        for (inputs, outputs), kernel, stride in groups:
            layers += [_Block(inputs, outputs, kernel, stride), _Block(outputs, outputs)]
        super().__init__(nn.Sequential(*layers), widths[-1], classes)


class _Block(nn.Module):
    """relu(s(x) + bn(conv(relu(bn(conv(x)))))), with x cropped to the size of the sum's rest.

    s is the identity, or a 1 x 1 convolution with BatchNorm where the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_conv(inputs, outputs, kernel, stride), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(_conv(outputs, outputs, 1), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride > 1:
            changed = _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            self.shortcut = nn.Sequential(*changed)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.body(x)
        height, width = inner.shape[2:]
        return (inner + self.shortcut(x)[:, :, :height, :width]).relu()  # type: ignore[no-any-return]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, bias=False)
    nn.init.normal_(conv.weight, std=math.sqrt(2 / (kernel**2 * outputs)))
    return conv


class FeaturedResNet(nn.Module):
    """A ResNet that returns its features too: the means over the image."""

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.network.trunk(images)
        return self.network.head(maps), maps.mean((2, 3))


class Rivals(nn.Module):
    """f and g on the same images: f's logits and features, then g's.

    Args:
        f, g: networks that return logits and features.
    """

    def __init__(self, f: nn.Module, g: nn.Module) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (*self.f(images), *self.g(images))
