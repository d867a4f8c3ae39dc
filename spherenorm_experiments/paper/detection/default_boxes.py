"""SSD's default boxes: where they are, which objects they take on, and offsets from them.

Source: W. Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm_experiments.paper.detection.boxes import cornered, overlaps

__all__ = ["SSD300", "Defaults", "decoded", "default_boxes", "encoded", "matched"]

VARIANCES = (0.1, 0.2)
"""The units of the offsets: of centers in sizes of the default box, of sizes in logarithms."""

MATCHED = 0.5
"""A default box with this overlap takes on an object."""


@dataclass(frozen=True)
class Defaults:
    """The default boxes of each map.

    Attributes:
        scales: sides of the square box, as shares of the image; one more than maps.
        ratios: of width to height, of each map's other boxes; each is also turned by 90 degrees.
        steps: from one place of each map to the next, as shares of the image; () where the places
            of all maps divide it. A stride that does not divide the image's side has a map that
            reaches beyond it: its places are not 1 / places apart.
    """

    scales: tuple[float, ...] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    ratios: tuple[tuple[float, ...], ...] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
    steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.ratios) + 1:
            raise ValueError(f"scales must be one more than ratios, got {self}")
        if self.steps and len(self.steps) != len(self.ratios):
            raise ValueError(f"steps must be as many as ratios, got {self}")

    def step(self, level: int, places: int) -> float:
        """From one place of a map to the next, as a share of the image.

        Example:
            >>> SSD300.step(0, 38) * 300, SSD300.step(0, 64) * 512  # of another side's: divided
            (8.0, 8.0)
        """
        own = self.steps[level] if self.steps else 1 / places
        return own if math.ceil(round(1 / own, 6)) == places else 1 / places

    def sizes(self, level: int) -> list[tuple[float, float]]:
        """(width, height) of a map's boxes, as shares of the image.

        Example:
            >>> Defaults((0.1, 0.4), ((4,),)).sizes(0)
            [(0.1, 0.1), (0.2, 0.2), (0.2, 0.05), (0.05, 0.2)]
        """
        scale, following = self.scales[level : level + 2]
        between = math.sqrt(scale * following)
        found = [(scale, scale), (between, between)]
        for ratio in self.ratios[level]:
            long, short = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
            found += [(long, short), (short, long)]
        return found


SSD300 = Defaults(steps=(8 / 300, 16 / 300, 32 / 300, 64 / 300, 100 / 300, 1.0))
"""Scales, ratios and steps of the released code and of torchvision's `ssd300_vgg16`."""


@functools.lru_cache(maxsize=8)
def default_boxes(shapes: tuple[tuple[int, int], ...], defaults: Defaults, device: str) -> Tensor:
    """(x, y, width, height) of all default boxes, as shares of the image.

    Args:
        shapes: (rows, columns) of each map.

    Returns:
        Shape (n, 4), in the order of maps, rows, columns and sizes.
    """
    found = []
    for level, (rows, columns) in enumerate(shapes):
        y, x = (
            (torch.arange(n, device=device) + 0.5) * defaults.step(level, n)
            for n in (rows, columns)
        )
        center = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # rows, columns, 2
        size = torch.tensor(defaults.sizes(level), device=device)
        shape = (rows, columns, len(size), 2)
        parts = center[:, :, None].expand(shape), size.expand(shape)
        found.append(torch.cat(parts, dim=-1).flatten(0, 2))
    return torch.cat(found)


def encoded(boxes: Tensor, defaults: Tensor) -> Tensor:
    """The offsets ((x - x0) / w0 / 0.1, ..., log(w / w0) / 0.2, ...) of boxes from default ones.

    Args:
        boxes, defaults: (x, y, width, height), of one shape.
    """
    shift = (boxes[..., :2] - defaults[..., :2]) / defaults[..., 2:] / VARIANCES[0]
    return torch.cat([shift, (boxes[..., 2:] / defaults[..., 2:]).log() / VARIANCES[1]], dim=-1)


def decoded(offsets: Tensor, defaults: Tensor) -> Tensor:
    """The inverse of `encoded`."""
    center = defaults[..., :2] + VARIANCES[0] * offsets[..., :2] * defaults[..., 2:]
    return torch.cat([center, defaults[..., 2:] * (VARIANCES[1] * offsets[..., 2:]).exp()], dim=-1)


def matched(boxes: Tensor, labels: Tensor, defaults: Tensor) -> Tensor:
    """The object that each default box takes on.

    It is the object that the default box overlaps most, if by at least `MATCHED`. Moreover each
    object has the default box that overlaps it most; if two objects have the same, the later one.

    Args:
        boxes: shape (images, n, 4), cornered, as shares of the image.
        labels: shape (images, n), below 0 where there is no object.
        defaults: shape (m, 4), centered.

    Returns:
        The index of the object, -1 for none; shape (images, m).
    """
    overlap = overlaps(boxes, cornered(defaults))  # images, n, m
    overlap = torch.where(labels[..., None] >= 0, overlap, -1.0)
    most, found = overlap.max(dim=1)
    found = torch.where(most >= MATCHED, found, -1)
    every = torch.arange(len(boxes), device=boxes.device)
    best = overlap.argmax(dim=2)
    for k in range(labels.shape[1]):
        taken = torch.where(labels[:, k] >= 0, k, found[every, best[:, k]])
        found[every, best[:, k]] = taken
    return found
