"""CenterNet: an object is the center of its box, a peak in the map of its class.

A residual trunk goes down to 1/32 of the image, and three steps of a deformable convolution and a
transposed one go up again to 1/4. There three heads tell, at each place: for each class the logit
that an object's center is there, the object's size, and the part of the center's coordinates that
the maps' stride rounds off.

Source: X. Zhou, D. Wang and P. Krähenbühl, *Objects as Points*, 2019, and the released code
(`resnet_dcn.py`, `losses.py`, `decode.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.detection.boxes import DETECTED, centered, cornered, detections
from spherenorm_experiments.paper.detection.deformable import DeformableConv2d
from spherenorm_experiments.paper.shared.resnet import ResNet

RARE = -2.19
"""The bias of the heat map's logits at the start: an object at a share of 0.1 of the places."""

OVERLAP = 0.7
"""The intersection over union that decides how far off a center may be."""

SIZE_WEIGHT = 0.1
"""The weight of the sizes' error in the loss; the other two have 1."""

Maps = tuple[Tensor, Tensor, Tensor]
"""Logits of the classes, (width, height) and (x, y) in places of the maps."""


class CenterNet(nn.Module):
    """The detector; 14,437,349 parameters with ResNet-18 and 80 classes.

    Args:
        classes: of objects.
        trunk: a residual network; its classifier is dropped.
        widths: channels of the steps up, each of which doubles the maps.
        head: channels of each head's hidden layer.

    Example:
        >>> trunk = ResNet("basic", (1, 1, 1), 8, stem="small")
        >>> model = CenterNet(3, trunk, widths=(16,), head=8)
        >>> [tuple(maps.shape) for maps in model(torch.randn(2, 3, 16, 16))]
        [(2, 3, 8, 8), (2, 2, 8, 8), (2, 2, 8, 8)]
    """

    def __init__(
        self,
        classes: int = 80,
        trunk: ResNet | None = None,
        widths: Sequence[int] = (256, 128, 64),
        head: int = 64,
    ) -> None:
        super().__init__()
        self.trunk = ResNet("basic", (2, 2, 2, 2)) if trunk is None else trunk
        self.trunk.head = nn.Sequential()
        channels, steps = self.trunk.features, []
        for width in widths:
            steps.append(_step_up(channels, width))
            channels = width
        self.up = nn.Sequential(*steps)
        self.heat, self.size, self.shift = (
            _head(channels, head, outputs) for outputs in (classes, 2, 2)
        )
        nn.init.constant_(self.heat[-1].bias, RARE)  # type: ignore[arg-type]
        for module in (*self.size, *self.shift):  # as released; the heat map's keeps torch's start
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.001)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Maps:
        """Shapes (images, classes, rows, columns) and twice (images, 2, rows, columns).

        Args:
            images: shape (images, 3, height, width).
        """
        x = self.up(self.trunk.trunk(images))
        return self.heat(x), self.size(x), self.shift(x)


def _step_up(inputs: int, outputs: int) -> nn.Sequential:
    """A deformable convolution, and a transposed one that starts as bilinear interpolation."""
    up = nn.ConvTranspose2d(outputs, outputs, 4, stride=2, padding=1, bias=False)
    line = torch.tensor([0.25, 0.75, 0.75, 0.25])
    with torch.no_grad():  # as released: from each channel to the first; the others stay random
        up.weight[:, 0] = torch.outer(line, line)
    deformable = [DeformableConv2d(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*deformable, up, nn.BatchNorm2d(outputs), nn.ReLU())


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, outputs, 1)
    )


def radius(size: Tensor) -> Tensor:
    """The reach of the bump around a center, from the overlap o = `OVERLAP`.

        r = (sqrt(4 o^2 (w + h)^2 + 16 o (1 - o) w h) - 2 o (w + h)) / 2

    A box that is larger by r' on each side overlaps an object by o where o (w + 2 r') (h + 2 r') =
    w h. The released code divides by 2 where the root of that needs 8 o, so r = 4 o r'; its other
    two radii are never smaller.

    Args:
        size: (width, height) along the last dimension.

    Returns:
        Whole numbers, rounded down, in the unit of the size.

    Source: H. Law and J. Deng, *CornerNet*, ECCV 2018.
    """
    total, area = size.sum(-1), size.prod(-1)
    root = (4 * OVERLAP**2 * total**2 + 16 * OVERLAP * (1 - OVERLAP) * area).sqrt()
    return ((root - 2 * OVERLAP * total) / 2).floor().clamp(min=0)


def heat(boxes: Tensor, labels: Tensor, classes: int, rows: int, columns: int) -> Tensor:
    """The target of the heat map: a bump around each center, the largest of those of its class.

        Y = exp(-(x^2 + y^2) / (2 s^2)),   s = (2 r + 1) / 6,   |x|, |y| <= r

    around the place of the map that the center falls in, with r the `radius` of the object's sides,
    rounded up.

    Args:
        boxes: shape (images, n, 4), in places of the map.
        labels: shape (images, n); those below 0 are no objects.

    Returns:
        Shape (images, classes, rows, columns).
    """
    target = boxes.new_zeros(len(boxes), classes, rows, columns)
    reach = radius((boxes[..., 2:] - boxes[..., :2]).ceil())[..., None, None]
    column, row = (x[..., None, None] for x in _places(boxes, rows, columns).unbind(-1))
    y = torch.arange(rows, device=boxes.device)[:, None] - row
    x = torch.arange(columns, device=boxes.device) - column
    near = (y.abs() <= reach) & (x.abs() <= reach) & (labels >= 0)[..., None, None]
    every = torch.arange(len(boxes), device=boxes.device)
    for k in range(labels.shape[1]):  # one after the other: all at once take too much memory
        spread = (2 * reach[:, k] + 1) / 6
        bump = torch.exp(-(y[:, k] ** 2 + x[:, k] ** 2) / (2 * spread**2)) * near[:, k]
        of_class = labels[:, k].clamp(min=0)
        target[every, of_class] = torch.maximum(target[every, of_class], bump)
    return target


def _places(boxes: Tensor, rows: int, columns: int) -> Tensor:
    """The place (column, row) that each box's center falls in; boxes in places of the map."""
    center = centered(boxes)[..., :2].floor()
    return torch.stack(
        [center[..., 0].clamp(0, columns - 1), center[..., 1].clamp(0, rows - 1)], dim=-1
    ).long()


def centernet_loss(maps: Maps, boxes: Tensor, labels: Tensor, stride: float) -> Tensor:
    """The focal loss of the heat map + 0.1 L1 of the sizes + L1 of the shifts.

    With p = sigmoid(logits), Y the target and N objects in the batch:

        -1/N sum of (1 - p)^2 log p where Y = 1, of (1 - Y)^4 p^2 log(1 - p) elsewhere.

    Both L1 are means over objects and coordinates, as released.

    Args:
        maps: of the model.
        boxes: shape (images, n, 4), in pixels of the images.
        labels: shape (images, n), below 0 where there is no object.
        stride: pixels to a place of the maps.
    """
    logits, sizes, shifts = (x.float() for x in maps)
    rows, columns = logits.shape[2:]
    boxes = boxes / stride
    target = heat(boxes, labels, logits.shape[1], rows, columns)
    share, here = logits.sigmoid(), target == 1
    hit = (1 - share) ** 2 * F.logsigmoid(logits)
    miss = (1 - target) ** 4 * share**2 * F.logsigmoid(-logits)
    objects = labels >= 0
    count = objects.sum().clamp(min=1)
    place = _places(boxes, rows, columns)
    index = (place[..., 1] * columns + place[..., 0])[:, None].expand(-1, 2, -1)
    true = centered(boxes)
    size, shift = (x.flatten(2).gather(2, index).transpose(1, 2)[objects] for x in (sizes, shifts))
    off_size = (size - true[..., 2:][objects]).abs().sum() / (2 * count)
    off_shift = (shift - (true[..., :2] - place)[objects]).abs().sum() / (2 * count)
    return -torch.where(here, hit, miss).sum() / count + SIZE_WEIGHT * off_size + off_shift


def centernet_detections(maps: Maps, stride: float, count: int = DETECTED) -> list[Tensor]:
    """The detections: peaks of the heat map, no lower than their eight neighbours.

    Args:
        maps: of the model.
        stride: pixels to a place of the maps.
        count: the highest peaks of an image that are kept.

    Returns:
        For each image a tensor of shape (K, 6); see `detections`.
    """
    logits, sizes, shifts = (x.float() for x in maps)
    share = logits.sigmoid()
    peaks = torch.where(F.max_pool2d(share, 3, 1, 1) == share, share, 0.0)
    scores, index = peaks.flatten(1).topk(min(count, peaks[0].numel()))
    rows, columns = logits.shape[2:]
    label, place = index // (rows * columns), index % (rows * columns)
    size, shift = (
        x.flatten(2).gather(2, place[:, None].expand(-1, 2, -1)).transpose(1, 2)
        for x in (sizes, shifts)
    )
    corner = torch.stack([place % columns, place // columns], dim=-1)
    boxes = cornered(torch.cat([corner + shift, size.clamp(min=0)], dim=-1)) * stride
    return detections(boxes, scores, label, scores > 0)
