"""Windows: parts of a photograph that are cut out with their boxes, at random in training.

A window may reach beyond the picture; what is uncovered there has the mean colour of ImageNet. All
draw from Python's global random state, which the engine seeds for each item. Pictures are
Pillow's, of mode RGB.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.paper.detection.boxes import centered, overlaps
from spherenorm_experiments.paper.shared.augmentation import MEAN

Picture = Any

SCALES = tuple(k / 10 for k in range(6, 14))
"""Sides of a random window of CenterNet, in the picture's longer side."""

BORDER = 128
"""Pixels of the margin, in large pictures, in which the center of such a window does not lie."""

OVERLAPS = (None, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Least overlaps of a random window of SSD with an object; None leaves the picture whole."""

TRIES, EXPANDED = 40, 4.0
"""Random windows of SSD that are tried; the largest side of one in the picture's."""

STRENGTH = 0.4
"""The largest relative change of brightness, contrast and saturation."""


@dataclass(frozen=True)
class Window:
    """A rectangle of a picture, in its pixels."""

    left: float
    top: float
    width: float
    height: float
    flipped: bool = False

    def cut(self, picture: Picture, side: int) -> Picture:
        """The window's content as a square picture, bilinearly interpolated.

        Args:
            side: pixels of the result's side.
        """
        pillow = require_extra("PIL.Image", "cutting pictures")
        corners = (self.left, self.top, self.left + self.width, self.top + self.height)
        fill = tuple(round(255 * share) for share in MEAN)
        way, bilinear = pillow.Transform.EXTENT, pillow.Resampling.BILINEAR
        cut = picture.transform((side, side), way, corners, bilinear, fillcolor=fill)
        return cut.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if self.flipped else cut

    def moved(self, objects: Tensor, side: int) -> Tensor:
        """Objects of the picture in pixels of the square, cut at nothing.

        Args:
            objects: shape (n, 4 or more); the first four entries are boxes.
        """
        shift = objects.new_tensor([self.left, self.top] * 2)
        scale = objects.new_tensor([side / self.width, side / self.height] * 2)
        left, top, right, bottom = ((objects[:, :4] - shift) * scale).unbind(1)
        if self.flipped:
            left, right = side - right, side - left
        return torch.cat([torch.stack([left, top, right, bottom], 1), objects[:, 4:]], dim=1)


def letterbox(size: tuple[int, int]) -> Window:
    """The smallest square around the picture, of (width, height) pixels."""
    side = max(size)
    return Window((size[0] - side) / 2, (size[1] - side) / 2, side, side)


def scaled_window(size: tuple[int, int]) -> Window:
    """A square of random size around a random point, flipped with probability 1/2.

    Source: the released code of CenterNet.
    """
    side = max(size) * random.choice(SCALES)
    x, y = (random.randint(_margin(n), n - _margin(n)) for n in size)
    return Window(x - side / 2, y - side / 2, side, side, random.random() < 0.5)


def _margin(length: int) -> int:
    """`BORDER`, halved until twice as much is less than the length."""
    margin = BORDER
    while length <= 2 * margin and margin > 1:
        margin //= 2
    return margin if length > 2 * margin else 0


def overlapping_window(size: tuple[int, int], boxes: Tensor) -> Window:
    """A random part of the picture in a larger ground, flipped with probability 1/2.

    With probability 1/2 the picture is laid on a ground of up to four times its sides. The part
    has 0.3 to 1 times the sides of that, a ratio from 1/2 to 2, the center of an object inside, and
    a random least overlap with an object.

    Args:
        size: (width, height) of the picture in pixels.
        boxes: shape (n, 4).

    Source: Liu et al., *SSD*, Section 2.2.
    """
    flipped = random.random() < 0.5
    ratio = random.uniform(1, EXPANDED) if random.random() < 0.5 else 1.0
    wide, high = (ratio * side for side in size)
    left, top = (-random.uniform(0, (ratio - 1) * side) for side in size)
    everything = Window(left, top, wide, high, flipped)
    least = random.choice(OVERLAPS)
    if least is None or not len(boxes):
        return everything
    for _ in range(TRIES):
        width, height = (random.uniform(0.3, 1) * side for side in (wide, high))
        if not 0.5 < width / height < 2:
            continue
        x = left + random.uniform(0, wide - width)
        y = top + random.uniform(0, high - height)
        part = boxes.new_tensor([[x, y, x + width, y + height]])
        inside = within(boxes, part[0])
        if inside.any() and overlaps(boxes[inside], part).max() >= least:
            return Window(x, y, width, height, flipped)
    return everything


def within(boxes: Tensor, part: Tensor) -> Tensor:
    """Which boxes, the first four entries, have their center in a part of the picture, (4,)."""
    center = centered(boxes[:, :4])[:, :2]
    return ((center > part[:2]) & (center < part[2:])).all(1)


def recolored(picture: Picture) -> Picture:
    """The picture with random brightness, contrast and saturation, changed in random order."""
    enhance = require_extra("PIL.ImageEnhance", "changing colours")
    for name in random.sample(["Brightness", "Contrast", "Color"], 3):
        picture = getattr(enhance, name)(picture).enhance(1 + random.uniform(-STRENGTH, STRENGTH))
    return picture
