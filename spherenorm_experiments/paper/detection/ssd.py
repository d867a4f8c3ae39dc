"""SSD: every place of several maps tells, for each of its default boxes, offsets and a class.

VGG's stages go down to 1/16 of the image; two convolutions replace VGG's linear layers, and more
go down to a single place. Six of these maps have heads.

Source: W. Liu et al., *SSD: Single Shot MultiBox Detector*, ECCV 2016; layers, scales and
constants as in torchvision's `ssd300_vgg16`. Here VGG has BatchNorm, as in the AdamP paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.detection.boxes import centered, cornered
from spherenorm_experiments.paper.detection.default_boxes import (
    SSD300,
    Defaults,
    decoded,
    default_boxes,
    encoded,
    matched,
)
from spherenorm_experiments.paper.detection.detections import detections, suppressed
from spherenorm_experiments.paper.detection.vgg import VGG16, stages

__all__ = ["SSD", "ssd_detections", "ssd_loss"]

NEGATIVES = 3
"""Default boxes without an object that count in the loss, for each that has one."""

CANDIDATES, LEAST, SUPPRESSED = 400, 0.01, 0.45
"""Detections of a class in an image before suppression, the least score, and the overlap that
suppresses."""


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
        candidates: detections of each class in an image before suppression, those with the best
            scores. One number for all classes would let the copies of one object, of which there
            are dozens before suppression, keep out other classes.

    Returns:
        For each image a tensor of shape (K, 6); see `detections`.
    """
    offsets, logits, places = _joined(maps, defaults)
    shares = logits.softmax(-1)[..., 1:].transpose(1, 2)
    found = cornered(decoded(offsets, places)).clamp(0, 1) * offsets.new_tensor([*sides, *sides])
    pairs = zip(found, shares, strict=True)
    return [row for boxes, own in pairs for row in _of_image(boxes, own, candidates)]


def _of_image(boxes: Tensor, shares: Tensor, candidates: int) -> list[Tensor]:
    """The detections of one image, of boxes (n, 4) and shares (classes, n); a list of one."""
    scores, index = shares.topk(min(candidates, shares.shape[1]))
    used = int((scores >= LEAST).sum(1).max())
    scores, index = scores[:, :used], index[:, :used]
    label = torch.arange(len(shares), device=index.device)[:, None].expand_as(index)
    found = boxes[index]
    keep = (scores >= LEAST) & ~suppressed(found, label, SUPPRESSED)
    ranked, order = scores.flatten().sort(descending=True, stable=True)
    found, label, keep = (x.flatten(0, 1)[order][None] for x in (found, label, keep))
    return detections(found, ranked[None], label, keep)
