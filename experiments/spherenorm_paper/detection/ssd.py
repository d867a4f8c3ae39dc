"""SSD: every place of several maps tells, for each of its default boxes, offsets and a class.

VGG's stages go down to 1/16 of the image; two convolutions replace VGG's linear layers, and more
go down to a single place. Six of these maps have heads.

Source: W. Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016; layers, scales and
constants as in torchvision's `ssd300_vgg16`. Here VGG has BatchNorm, as in the AdamP paper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_paper.detection.boxes import (
    centered,
    cornered,
    detections,
    overlaps,
    suppressed,
)

VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The widths of VGG-16's convolutions, by stage."""

EXTRAS = ((256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))
"""Channels, outputs and stride of each further map: a 1 x 1 convolution and a 3 x 3 one, with
padding if it has a stride."""

VARIANCES = (0.1, 0.2)
"""The units of the offsets: of centers in sizes of the default box, of sizes in logarithms."""

MATCHED = 0.5
"""A default box with this overlap takes on an object."""

NEGATIVES = 3
"""Default boxes without an object that count in the loss, for each that has one."""

CANDIDATES, LEAST, SUPPRESSED = 400, 0.01, 0.45
"""Detections of a class in an image before suppression, the least score, and the overlap that
suppresses. One number for all classes would let the copies of one object, of which there are
dozens before suppression, keep out other classes."""

Maps = tuple[Tensor, Tensor, Tensor]
"""Offsets (images, n, 4) and logits (images, n, classes + 1) of default boxes, and these, (n, 4):
x, y, width and height as shares of the image, in the order of maps, rows, columns and sizes."""


@dataclass(frozen=True)
class Defaults:
    """The default boxes of each map.

    Attributes:
        scales: sides of the square box, as shares of the image; one more than maps.
        ratios: of width to height, of each map's other boxes; each is also turned by 90 degrees.
        steps: from one place of a map to the next, as a share of the image, by the number of
            places; else 1 / places. A stride that does not divide the image's side has a map that
            reaches beyond it.
    """

    scales: tuple[float, ...] = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
    ratios: tuple[tuple[float, ...], ...] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
    steps: Mapping[int, float] = field(default_factory=dict)

    def sizes(self, level: int) -> list[tuple[float, float]]:
        """(width, height) of a map's boxes, as shares of the image.

        Example:
            >>> Defaults((0.1, 0.4), ((4,),)).sizes(0)
            [(0.1, 0.1), (0.2, 0.2), (0.2, 0.05), (0.05, 0.2)]
        """
        scale, following = self.scales[level : level + 2]
        between = math.sqrt(scale * following)
        sizes = [(scale, scale), (between, between)]
        for ratio in self.ratios[level]:
            long, short = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
            sizes += [(long, short), (short, long)]
        return sizes


SSD300 = Defaults(steps={38: 8 / 300, 19: 16 / 300, 10: 32 / 300, 5: 64 / 300, 3: 100 / 300})
"""Scales, ratios and steps of the released code and of torchvision's `ssd300_vgg16`."""


class SSD(nn.Module):
    """The detector; 35,650,274 parameters for 90 classes, 8,448 of them BatchNorm's.

    Args:
        classes: of objects; the background is one more.
        widths: of VGG's stages. The last but one gives the first map.
        hidden: channels of the two convolutions after VGG, which give the second map.
        dilation: of the first of them.

    Example:
        >>> defaults = Defaults((0.2, 0.4, 0.8), ((), (2,)))
        >>> model = SSD(3, ((8,), (16,)), width=16, extras=(), defaults=defaults)
        >>> [tuple(x.shape) for x in model(torch.randn(2, 3, 16, 16))]
        [(2, 768, 4), (2, 768, 4), (768, 4)]
    """

    def __init__(
        self,
        classes: int = 80,
        widths: Sequence[Sequence[int]] = VGG16,
        width: int = 1024,
        dilation: int = 6,
        extras: Sequence[tuple[int, int, int]] = EXTRAS,
        defaults: Defaults = SSD300,
    ) -> None:
        super().__init__()
        self.defaults = defaults
        inputs = (3, *(stage[-1] for stage in widths))
        self.trunk = nn.ModuleList(map(_vgg_stage, inputs, widths))
        self.scale = nn.Parameter(torch.full((widths[-2][-1],), 20.0))
        self.hidden = nn.Sequential(
            nn.MaxPool2d(3, 1, padding=1),
            *(nn.Conv2d(widths[-1][-1], width, 3, 1, dilation, dilation), nn.ReLU()),
            *(nn.Conv2d(width, width, 1), nn.ReLU()),
        )
        channels = [widths[-2][-1], width, *(outputs for _, outputs, _ in extras)]
        self.extras = nn.ModuleList(map(_extra, channels[1:], extras))
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

    def forward(self, images: Tensor) -> Maps:
        """Return the predictions for images of shape (images, 3, height, width).

        The background is the first class.
        """
        x = self.trunk[0](images)
        for stage in self.trunk[1:-1]:
            x = stage(F.max_pool2d(x, 2, ceil_mode=True))  # 75 rows become 38
        scaled = self.scale[:, None, None] * F.normalize(x)
        maps = [scaled, self.hidden(self.trunk[-1](F.max_pool2d(x, 2, ceil_mode=True)))]
        for extra in self.extras:
            maps.append(extra(maps[-1]))

        def joined(heads: nn.ModuleList) -> Tensor:
            rows = []
            for level, (x, head) in enumerate(zip(maps, heads, strict=True)):
                places = head(x).unflatten(1, (len(self.defaults.sizes(level)), -1))
                rows.append(places.permute(0, 3, 4, 1, 2).flatten(1, 3))
            return torch.cat(rows, dim=1).float()

        places = default_boxes([(x.shape[2], x.shape[3]) for x in maps], self.defaults)
        return joined(self.offsets), joined(self.scores), places.to(images.device)


def _extra(inputs: int, row: tuple[int, int, int]) -> nn.Sequential:
    width, outputs, stride = row
    wide = nn.Conv2d(width, outputs, 3, stride, padding=1 if stride > 1 else 0)
    return nn.Sequential(nn.Conv2d(inputs, width, 1), nn.ReLU(), wide, nn.ReLU())


def _vgg_stage(inputs: int, widths: Sequence[int]) -> nn.Sequential:
    """3 x 3 convolutions, each with BatchNorm and ReLU.

    The convolutions keep their biases, which then do nothing, as in the published weights.

    Source: K. Simonyan and A. Zisserman, *Very Deep Convolutional Networks for Large-Scale Image
    Recognition*, ICLR 2015; with BatchNorm as in torchvision's `vgg16_bn`.
    """
    layers: list[nn.Module] = []
    for before, outputs in itertools.pairwise((inputs, *widths)):
        conv = nn.Conv2d(before, outputs, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def default_boxes(shapes: Sequence[tuple[int, int]], defaults: Defaults) -> Tensor:
    """(x, y, width, height) of all default boxes, as shares of the image; shape (n, 4).

    Args:
        shapes: (rows, columns) of each map.
    """
    boxes = []
    for level, shape in enumerate(shapes):
        y, x = ((torch.arange(n) + 0.5) * defaults.steps.get(n, 1 / n) for n in shape)
        center = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[:, :, None]
        size = torch.tensor(defaults.sizes(level))
        centers_and_sizes = center.expand(*shape, len(size), 2), size.expand(*shape, len(size), 2)
        boxes.append(torch.cat(centers_and_sizes, dim=-1).flatten(0, 2))
    return torch.cat(boxes)


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
        boxes: cornered, as shares of the image.
        defaults: shape (m, 4), centered.

    Returns:
        The index of the object, -1 for none; shape (images, m).
    """
    overlap = overlaps(boxes, cornered(defaults))  # images, n, m
    overlap = torch.where(labels[..., None] >= 0, overlap, -1.0)
    largest, matches = overlap.max(dim=1)
    matches = torch.where(largest >= MATCHED, matches, -1)
    indices, best = torch.arange(len(boxes), device=boxes.device), overlap.argmax(dim=2)
    for k in range(labels.shape[1]):
        place = indices, best[:, k]
        matches[place] = torch.where(labels[:, k] >= 0, k, matches[place])
    return matches


def ssd_loss(maps: Maps, boxes: Tensor, labels: Tensor, side: int) -> Tensor:
    """Smooth L1 of the offsets + cross-entropy of the classes, over the N matched default boxes.

    The cross-entropy counts those N, and of the others in each image the three for each matched
    one that it is largest for. Boxes are in pixels.
    """
    offsets, logits, places = maps
    boxes = boxes / side
    matches = matched(boxes, labels, places)
    is_matched, index = matches >= 0, matches.clamp(min=0)
    truth = boxes.gather(1, index[..., None].expand(-1, -1, 4))
    wanted = encoded(centered(truth)[is_matched], places.expand_as(truth)[is_matched])
    off = F.smooth_l1_loss(offsets[is_matched], wanted, reduction="sum")
    target = torch.where(is_matched, labels.gather(1, index) + 1, 0)
    entropy = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    rank = torch.where(is_matched, -1.0, entropy.detach()).argsort(1, descending=True).argsort(1)
    hard = ~is_matched & (rank < NEGATIVES * is_matched.sum(1, keepdim=True))
    return (off + entropy[is_matched | hard].sum()) / is_matched.sum().clamp(min=1)


def ssd_detections(maps: Maps, side: int, candidates: int = CANDIDATES) -> list[Tensor]:
    """The default boxes' classes with the best scores, without suppressed ones; see `detections`.

    Boxes are cut at the images' edges; `candidates` of a class are there before suppression.
    """
    offsets, logits, places = maps
    shares = logits.softmax(-1)[..., 1:].transpose(1, 2)
    corners = cornered(decoded(offsets, places)).clamp(0, 1) * side
    by_label = []
    for image, of_class in zip(corners, shares, strict=True):
        scores, index = of_class.topk(min(candidates, of_class.shape[1]))
        used = int((scores >= LEAST).sum(1).max())
        scores, boxes = scores[:, :used], image[index[:, :used]]
        label = torch.arange(len(scores), device=scores.device)[:, None].expand_as(scores)
        keep = (scores >= LEAST) & ~suppressed(boxes, SUPPRESSED)
        ranked, order = scores.flatten().sort(descending=True, stable=True)
        boxes, label, keep = (x.flatten(0, 1)[order][None] for x in (boxes, label, keep))
        by_label += detections(boxes, ranked[None], label, keep)
    return by_label
