"""SSD: every place of several maps tells, for each of its default boxes, offsets and a class.

VGG's stages go down to 1/16 of the image; two convolutions replace VGG's linear layers, and more
go down to a single place. Six of these maps have heads.

Source: W. Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016; layers, scales and
constants as in torchvision's `ssd300_vgg16`. Here VGG has BatchNorm, as in the AdamP paper.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from experiments.data.boxes import centered, cornered, overlaps
from experiments.networks.detections import detections, suppressed
from experiments.networks.vgg import VGG16, stages

__all__ = [
    "SSD",
    "SSD300",
    "Defaults",
    "decoded",
    "default_boxes",
    "encoded",
    "matched",
    "ssd_detections",
    "ssd_loss",
]

VARIANCES = (0.1, 0.2)
"""The units of the offsets: of centers in sizes of the default box, of sizes in logarithms."""

MATCHED, NEGATIVES = 0.5, 3
"""A default box with this overlap takes on an object; negatives for each that did."""

CANDIDATES, LEAST, SUPPRESSED = 400, 0.01, 0.45
"""Detections of an image before suppression, the least score, and the overlap that suppresses."""


@dataclass(frozen=True)
class Defaults:
    """The default boxes of each map.

    Attributes:
        scales: sides of the square box, as shares of the image; one more than maps.
        ratios: of width to height, of each map's other boxes; each is also turned by 90 degrees.
    """

    scales: tuple[float, ...] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    ratios: tuple[tuple[float, ...], ...] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.ratios) + 1:
            raise ValueError(f"scales must be one more than ratios, got {self}")

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


SSD300 = Defaults()


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
        y, x = ((torch.arange(n, device=device) + 0.5) / n for n in (rows, columns))
        center = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # rows, columns, 2
        size = torch.tensor(defaults.sizes(level), device=device)
        shape = (rows, columns, len(size), 2)
        parts = center[:, :, None].expand(shape), size.expand(shape)
        found.append(torch.cat(parts, dim=-1).flatten(0, 2))
    return torch.cat(found)


class SSD(nn.Module):
    """The detector; 35,650,274 parameters for 90 classes, 8,448 of them BatchNorm's.

    Args:
        classes: of objects; the background is one more.
        widths: of VGG's stages. The last but one gives the first map.
        hidden: channels of the two convolutions after VGG, which give the second map.
        dilation: of the first of them.
        extras: for each further map (channels, outputs, stride): a 1 x 1 convolution and a 3 x 3
            one, with padding if it has a stride.
        defaults: the default boxes of the maps.
        normalized: BatchNorm in VGG.

    Raises:
        ValueError: there are default boxes for another number of maps.

    Example:
        >>> defaults = Defaults((0.2, 0.4, 0.8), ((), (2,)))
        >>> model = SSD(3, ((8,), (16,)), hidden=16, extras=(), defaults=defaults)
        >>> [(tuple(a.shape), tuple(b.shape)) for a, b in model(torch.randn(2, 3, 16, 16))]
        [((2, 8, 16, 16), (2, 8, 16, 16)), ((2, 16, 8, 8), (2, 16, 8, 8))]
    """

    def __init__(
        self,
        classes: int = 80,
        widths: Sequence[Sequence[int]] = VGG16,
        hidden: int = 1024,
        dilation: int = 6,
        extras: Sequence[tuple[int, int, int]] = (
            *((256, 512, 2), (128, 256, 2)),
            *((128, 256, 1), (128, 256, 1)),
        ),
        defaults: Defaults = SSD300,
        normalized: bool = True,
    ) -> None:
        super().__init__()
        if len(defaults.ratios) != 2 + len(extras):
            raise ValueError(f"{2 + len(extras)} maps need as many defaults, got {defaults}")
        self.classes, self.defaults = classes, defaults
        self.stages = nn.ModuleList(stages(widths, normalized=normalized))
        self.scale = nn.Parameter(torch.full((widths[-2][-1],), 20.0))
        last = widths[-1][-1]
        self.hidden = nn.Sequential(
            nn.MaxPool2d(3, 1, padding=1),
            *(nn.Conv2d(last, hidden, 3, padding=dilation, dilation=dilation), nn.ReLU()),
            *(nn.Conv2d(hidden, hidden, 1), nn.ReLU()),
        )
        self.extras = nn.ModuleList()
        channels = [widths[-2][-1], hidden]
        for width, outputs, stride in extras:
            self.extras.append(_extra(channels[-1], width, outputs, stride))
            channels.append(outputs)
        self.offsets, self.scores = (
            nn.ModuleList(
                nn.Conv2d(inputs, len(defaults.sizes(level)) * numbers, 3, padding=1)
                for level, inputs in enumerate(channels)
            )
            for numbers in (4, classes + 1)
        )
        for layer in [*self.hidden, *self.extras.modules(), *self.offsets, *self.scores]:
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The raw maps: for each level the offsets and the logits of its default boxes.

        Args:
            images: shape (images, 3, height, width).

        Returns:
            Shapes (images, 4 boxes, rows, columns) and (images, (classes + 1) boxes, rows,
            columns); the background is the first class.
        """
        heads = zip(self.maps(images), self.offsets, self.scores, strict=True)
        return [(offsets(x), scores(x)) for x, offsets, scores in heads]

    def maps(self, images: Tensor) -> list[Tensor]:
        """The maps that the heads read."""
        x = self.stages[0](images)
        for stage in self.stages[1:-1]:
            x = stage(F.max_pool2d(x, 2, ceil_mode=True))  # 75 rows become 38
        first = self.scale[:, None, None] * F.normalize(x)
        found = [first, self.hidden(self.stages[-1](F.max_pool2d(x, 2, ceil_mode=True)))]
        for extra in self.extras:
            found.append(extra(found[-1]))
        return found


def _extra(inputs: int, width: int, outputs: int, stride: int) -> nn.Sequential:
    padding = 1 if stride > 1 else 0
    last = nn.Conv2d(width, outputs, 3, stride, padding)
    return nn.Sequential(nn.Conv2d(inputs, width, 1), nn.ReLU(), last, nn.ReLU())


def _joined(
    maps: Sequence[tuple[Tensor, Tensor]], defaults: Defaults
) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets (images, n, 4), logits (images, n, classes + 1) and the n default boxes."""
    shapes = tuple((x.shape[2], x.shape[3]) for x, _ in maps)
    boxes = default_boxes(shapes, defaults, str(maps[0][0].device))
    counts = [len(defaults.sizes(level)) for level in range(len(maps))]

    def rows(x: Tensor, count: int) -> Tensor:
        places = x.view(len(x), count, -1, *x.shape[2:]).permute(0, 3, 4, 1, 2)
        return places.flatten(1, 3).float()

    offsets, logits = (
        torch.cat([rows(pair[part], count) for pair, count in zip(maps, counts, strict=True)], 1)
        for part in (0, 1)
    )
    return offsets, logits, boxes


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


def ssd_loss(
    maps: Sequence[tuple[Tensor, Tensor]],
    boxes: Tensor,
    labels: Tensor,
    sides: tuple[int, int],
    defaults: Defaults = SSD300,
) -> Tensor:
    """Smooth L1 of the offsets + cross-entropy of the classes, over the N matched default boxes.

    The cross-entropy counts those N, and of the others in each image the three for each matched
    one that it is largest for.

    Args:
        maps: of the model.
        boxes: shape (images, n, 4), in pixels of the images.
        labels: shape (images, n), below 0 where there is no object.
        sides: (width, height) of the images in pixels.
    """
    offsets, logits, places = _joined(maps, defaults)
    boxes = boxes / boxes.new_tensor([*sides, *sides])
    found = matched(boxes, labels, places)
    taken = found >= 0
    index = found.clamp(min=0)
    truth = boxes.gather(1, index[..., None].expand(-1, -1, 4))
    wanted = encoded(centered(truth)[taken], places.expand_as(truth)[taken])
    off = F.smooth_l1_loss(offsets[taken], wanted, reduction="sum")
    target = torch.where(taken, labels.gather(1, index) + 1, 0)
    entropy = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    entropy = entropy.view_as(target)
    rank = torch.where(taken, -1.0, entropy.detach()).argsort(1, descending=True).argsort(1)
    hard = ~taken & (rank < NEGATIVES * taken.sum(1, keepdim=True))
    return (off + entropy[taken | hard].sum()) / taken.sum().clamp(min=1)


def ssd_detections(
    maps: Sequence[tuple[Tensor, Tensor]],
    sides: tuple[int, int],
    defaults: Defaults = SSD300,
    candidates: int = CANDIDATES,
) -> list[Tensor]:
    """The detections: the default boxes' classes with the best scores, without suppressed ones.

    Args:
        maps: of the model.
        sides: (width, height) of the images in pixels; boxes are cut at the images' edges.
        candidates: detections of an image before suppression, those with the best scores.

    Returns:
        For each image a tensor of shape (K, 6); see `detections`.
    """
    offsets, logits, places = _joined(maps, defaults)
    shares = logits.softmax(-1)[..., 1:]
    classes = shares.shape[-1]
    scores, index = shares.flatten(1).topk(min(candidates, shares[0].numel()))
    place = (index // classes)[..., None].expand(-1, -1, 4)
    found = cornered(decoded(offsets.gather(1, place), places.expand_as(offsets).gather(1, place)))
    found = found.clamp(0, 1) * found.new_tensor([*sides, *sides])
    label = index % classes
    keep = (scores >= LEAST) & ~suppressed(found, label, SUPPRESSED)
    return detections(found, scores, label, keep)
