"""VGG: stages of 3 x 3 convolutions, each followed by BatchNorm and ReLU, with pools between.

Source: K. Simonyan and A. Zisserman, *Very Deep Convolutional Networks for Large-Scale Image
Recognition*, ICLR 2015; with BatchNorm as in the models of torchvision (`vgg16_bn`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["VGG", "VGG16", "stages"]

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


class VGG(nn.Module):
    """The classifier: stages with a pool of stride 2 after each, then three linear layers.

    Args:
        classes: of the classification.
        widths: of the stages.
        hidden: units of the two hidden linear layers.
        side: the images' last maps are averaged to side x side (7 in VGG-16).
        normalized: BatchNorm after each convolution.

    Example:
        >>> import torch
        >>> sum(p.numel() for p in VGG(10, ((8,), (16,)), hidden=32, side=1).parameters())
        3370
        >>> VGG(10, ((8,), (16,)), hidden=32, side=1)(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 1000,
        widths: Sequence[Sequence[int]] = VGG16,
        hidden: int = 4096,
        side: int = 7,
        normalized: bool = True,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages(widths, normalized=normalized))
        self.pool, self.average = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Linear(widths[-1][-1] * side**2, hidden),
            *(nn.ReLU(), nn.Dropout(), nn.Linear(hidden, hidden)),
            *(nn.ReLU(), nn.Dropout(), nn.Linear(hidden, classes)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits, shape (images, classes), of images of shape (images, 3, height, width)."""
        x = images
        for stage in self.stages:
            x = self.pool(stage(x))
        return self.classifier(self.average(x).flatten(1))  # type: ignore[no-any-return]
