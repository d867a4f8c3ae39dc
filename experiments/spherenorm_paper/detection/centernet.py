"""CenterNet: an object is the center of its box, a peak in the map of its class.

A residual trunk goes down to 1/32 of the image, and three steps of a deformable convolution and a
transposed one go up again to 1/4. There three heads tell, at each place: for each class the logit
that an object's center is there, the object's size, and the part of the center's coordinates that
the maps' stride rounds off.

Source: X. Zhou, D. Wang and P. Krähenbühl, *Objects as Points*, 2019, and the released code
(`resnet_dcn.py`, `losses.py`, `decode.py`); X. Zhu et al., *Deformable ConvNets v2: More
Deformable, Better Results*, CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_paper.detection.boxes import DETECTED, centered, cornered, detections
from spherenorm_paper.shared.resnet import ResNet

OVERLAP = 0.7
"""The intersection over union that decides how far off a center may be."""

Maps = tuple[Tensor, Tensor, Tensor]
"""Logits of the classes, (width, height) and (x, y) in places of the maps."""


class CenterNet(nn.Module):
    """The detector; 14,437,349 parameters with ResNet-18 and 80 classes.

    Args:
        trunk: its classifier is dropped.
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
        trunk = ResNet("basic", (2, 2, 2, 2)) if trunk is None else trunk
        self.trunk = nn.Sequential(trunk.stem, *trunk.stages)
        self.up = nn.Sequential(*map(_step_up, (trunk.features, *widths), widths))
        self.heat, self.size, self.shift = (
            nn.Sequential(
                nn.Conv2d(widths[-1], head, 3, padding=1), nn.ReLU(), nn.Conv2d(head, outputs, 1)
            )
            for outputs in (classes, 2, 2)
        )
        # As released: an object at a share of 0.1 of the places; the others start near 0.
        nn.init.constant_(self.heat[-1].bias, -2.19)  # type: ignore[arg-type]
        for module in (*self.size, *self.shift):
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.001)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Maps:
        """Shapes (images, classes, rows, columns) and twice (images, 2, rows, columns)."""
        x = self.up(self.trunk(images))
        return self.heat(x), self.size(x), self.shift(x)


def _step_up(inputs: int, outputs: int) -> nn.Sequential:
    """A deformable convolution, and a transposed one that starts as bilinear interpolation."""
    up = nn.ConvTranspose2d(outputs, outputs, 4, stride=2, padding=1, bias=False)
    line = torch.tensor([0.25, 0.75, 0.75, 0.25])
    with torch.no_grad():  # as released: from each channel to the first; the others stay random
        up.weight[:, 0] = torch.outer(line, line)
    deformable = [DeformableConv2d(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*deformable, up, nn.BatchNorm2d(outputs), nn.ReLU())


class DeformableConv2d(nn.Module):
    """A deformable 3 x 3 convolution that decides its own offsets and mask.

    An ordinary convolution gives 27 channels: 18 offsets, and 9 logits of the mask. It starts at
    zero, so that the layer starts as a convolution with half of its weight.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        template = nn.Conv2d(inputs, outputs, 3)  # for its initialization
        self.weight, self.bias = template.weight, nn.Parameter(torch.zeros(outputs))
        self.offset = nn.Conv2d(inputs, 27, 3, padding=1)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        offsets, logits = self.offset(x).split([18, 9], dim=1)
        return deformable_convolution(x, offsets, logits.sigmoid(), self.weight, self.bias)


def deformable_convolution(
    x: Tensor, offsets: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    r"""A 3 x 3 convolution of stride 1 that keeps the size, with moved and weighted taps.

        y(p) = b + sum_k w_k m_k(p) x(p + p_k + \Delta p_k(p)),

    with x interpolated bilinearly between pixels and 0 outside.

    Args:
        x: shape (images, inputs, height, width).
        offsets: \Delta p, shape (images, 18, height, width): the vertical offset of tap k in
            channel 2 k, the horizontal one in 2 k + 1; pixels.
        mask: m, shape (images, 9, height, width).
        weight: shape (outputs, inputs, 3, 3).
        bias: shape (outputs,).

    Returns:
        Shape (images, outputs, height, width).
    """
    images, _, height, width = x.shape
    pixel, tap = _grid(height, width, x)[:, None], _grid(3, 3, x).flatten(1)[..., None, None] - 1
    moves = offsets.view(images, 9, 2, height, width).transpose(1, 2)
    place = pixel + tap + moves  # images, 2, 9, height, width
    size = torch.tensor([height, width], dtype=x.dtype, device=x.device).view(2, 1, 1, 1)
    grid = ((2 * place + 1) / size - 1).flip(1)  # grid_sample takes (horizontal, vertical)
    grid = grid.flatten(3).permute(0, 2, 3, 1)  # images, 9, height width, 2
    sampled = F.grid_sample(x, grid, align_corners=False) * mask.flatten(2)[:, None]
    y = weight.flatten(1) @ sampled.flatten(1, 2) + bias[:, None]
    return y.view(images, -1, height, width)


def _grid(height: int, width: int, like: Tensor) -> Tensor:
    """The coordinates (vertical, horizontal) of each pixel, shape (2, height, width)."""
    axes = (torch.arange(n, dtype=like.dtype, device=like.device) for n in (height, width))
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


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

    Boxes are in places of the map; the result has the shape (images, classes, rows, columns).
    """
    target = boxes.new_zeros(len(boxes), classes, rows, columns)
    reach = radius((boxes[..., 2:] - boxes[..., :2]).ceil())[..., None, None]
    column, row = (x[..., None, None] for x in _places(boxes, rows, columns).unbind(-1))
    y = torch.arange(rows, device=boxes.device)[:, None] - row
    x = torch.arange(columns, device=boxes.device) - column
    is_near = (y.abs() <= reach) & (x.abs() <= reach) & (labels >= 0)[..., None, None]
    indices = torch.arange(len(boxes), device=boxes.device)
    for k in range(labels.shape[1]):  # one after the other: all at once take too much memory
        spread = (2 * reach[:, k] + 1) / 6
        bump = torch.exp(-(y[:, k] ** 2 + x[:, k] ** 2) / (2 * spread**2)) * is_near[:, k]
        of_class = labels[:, k].clamp(min=0)
        target[indices, of_class] = torch.maximum(target[indices, of_class], bump)
    return target


def _places(boxes: Tensor, rows: int, columns: int) -> Tensor:
    """The place (column, row) that each box's center falls in; boxes in places of the map."""
    last = boxes.new_tensor([columns - 1, rows - 1])
    return torch.minimum(centered(boxes)[..., :2].floor().clamp(min=0), last).long()


def _at(maps: Tensor, index: Tensor) -> Tensor:
    """The two channels of maps at places, whose index has shape (images, n); (images, n, 2)."""
    return maps.flatten(2).gather(2, index[:, None].expand(-1, 2, -1)).transpose(1, 2)


def _stride(maps: Maps, side: int) -> float:
    """Pixels to a place of the maps."""
    places = maps[0].shape[-1]
    if side % places:  # a side was rounded up on the way down: maps reach beyond the image
        wrong = f"{side} pixels, which the {places} places of its maps do not divide"
        raise ValueError(f"side must be a multiple of the trunk's stride, got {wrong}")
    return side / places


def centernet_loss(maps: Maps, boxes: Tensor, labels: Tensor, side: int) -> Tensor:
    """The focal loss of the heat map + 0.1 L1 of the sizes + L1 of the shifts.

    With p = sigmoid(logits), Y the target and N objects in the batch:

        -1/N sum of (1 - p)^2 log p where Y = 1, of (1 - Y)^4 p^2 log(1 - p) elsewhere.

    Both L1 are means over objects and coordinates, as released. Boxes are in pixels.

    Raises:
        ValueError: a side that the places of the maps do not divide.
    """
    logits, sizes, shifts = (x.float() for x in maps)
    rows, columns = logits.shape[2:]
    boxes = boxes / _stride(maps, side)
    target = heat(boxes, labels, logits.shape[1], rows, columns)
    share = logits.sigmoid()
    hit = (1 - share) ** 2 * F.logsigmoid(logits)
    miss = (1 - target) ** 4 * share**2 * F.logsigmoid(-logits)
    objects = labels >= 0
    count = objects.sum().clamp(min=1)
    place, true = _places(boxes, rows, columns), centered(boxes)
    index = place[..., 1] * columns + place[..., 0]
    size, shift = _at(sizes, index), _at(shifts, index)
    off_size = (size - true[..., 2:])[objects].abs().sum() / (2 * count)
    off_shift = (shift - (true[..., :2] - place))[objects].abs().sum() / (2 * count)
    return -torch.where(target == 1, hit, miss).sum() / count + 0.1 * off_size + off_shift


def centernet_detections(maps: Maps, side: int) -> list[Tensor]:
    """The peaks of the heat map, no lower than their eight neighbours; see `detections`."""
    logits, sizes, shifts = (x.float() for x in maps)
    share = logits.sigmoid()
    peaks = torch.where(F.max_pool2d(share, 3, 1, 1) == share, share, 0.0)
    scores, index = peaks.flatten(1).topk(min(DETECTED, peaks[0].numel()))
    rows, columns = logits.shape[2:]
    label, place = index // (rows * columns), index % (rows * columns)
    corner = torch.stack([place % columns, place // columns], dim=-1)
    center, size = corner + _at(shifts, place), _at(sizes, place).clamp(min=0)
    boxes = cornered(torch.cat([center, size], dim=-1)) * _stride(maps, side)
    return detections(boxes, scores, label, scores > 0)
