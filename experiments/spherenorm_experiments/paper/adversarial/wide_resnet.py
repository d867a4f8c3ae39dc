"""Wide residual networks: BatchNorm and ReLU come before each convolution.

Source: S. Zagoruyko and N. Komodakis, *Wide Residual Networks*, 2016.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class WideResNet(nn.Module):
    """WRN-depth-width: a stem, three groups of residual blocks, mean over pixels, a linear layer.

    Group k = 0, 1, 2 has (depth - 4) / 6 blocks of 2^k `stem` `width` channels; the second and the
    third halve the image. Depth counts both convolutions of each block, the stem, two shortcuts and
    the classifier. Takes images of shape (n, 3, height, width), returns logits.

    Args:
        depth: 4 more than a multiple of 6; WRN-34-10 has 34.
        width: the widening factor.
        classes: of the logits.
        stem: channels of the first convolution.

    Raises:
        ValueError: a depth that no number of blocks has.

    Example:
        >>> sum(weight.numel() for weight in WideResNet(16, 4).parameters())
        2748890
    """

    def __init__(self, depth: int = 34, width: int = 10, classes: int = 10, stem: int = 16) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 10, 16, 22, 28, 34, ..., got {depth}")
        self.stem = _conv3(3, stem)
        layers, channels = [], stem
        for group in range(3):
            for block in range(blocks):
                outputs, stride = stem * width * 2**group, 2 if group and not block else 1
                layers.append(_Block(channels, outputs, stride))
                channels = outputs
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm(self.blocks(self.stem(images))))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """s(x) + conv(relu(bn(conv(a)))), a = relu(bn(x)).

    s is the identity, or a 1 x 1 convolution of a where the number of channels changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv3(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        return kept + self.conv2(F.relu(self.norm2(self.conv1(active))))  # type: ignore[no-any-return]


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
