"""VGG's trunk: stages of 3 x 3 convolutions, each followed by BatchNorm and ReLU.

Source: K. Simonyan and A. Zisserman, *Very Deep Convolutional Networks for Large-Scale Image
Recognition*, ICLR 2015; with BatchNorm as in the models of torchvision (`vgg16_bn`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

__all__ = ["VGG16", "stages"]

VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The widths of VGG-16's convolutions, by stage."""


def stages(
    widths: Sequence[Sequence[int]] = VGG16, inputs: int = 3, normalized: bool = True
) -> list[nn.Sequential]:
    """The stages of convolutions, without their pools.

    Args:
        widths: of each stage, the channels of its convolutions.
        inputs: channels of the images.
        normalized: a BatchNorm after each convolution. The convolutions keep their biases, which
            then do nothing, as in the published weights.

    Raises:
        ValueError: a stage without convolutions.
    """
    found = []
    for stage in widths:
        if not stage:
            raise ValueError(f"widths: each stage needs a convolution, got {widths}")
        layers: list[nn.Module] = []
        for outputs in stage:
            conv = nn.Conv2d(inputs, outputs, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers.append(conv)
            layers += [nn.BatchNorm2d(outputs)] if normalized else []
            layers.append(nn.ReLU())
            inputs = outputs
        found.append(nn.Sequential(*layers))
    return found
