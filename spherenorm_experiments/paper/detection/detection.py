"""Object detection: CenterNet and SSD on MS-COCO, small ones of both families on glyph scenes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import Batch, Budget, Collected, Split, Splits, Statistic, Task
from spherenorm_experiments.paper.detection._average_precision import average_precision
from spherenorm_experiments.paper.detection._pretraining import pretrained_trunk
from spherenorm_experiments.paper.detection.centernet import (
    CenterNet,
    centernet_detections,
    centernet_loss,
)
from spherenorm_experiments.paper.detection.coco import CLASSES, coco
from spherenorm_experiments.paper.detection.default_boxes import SSD300, Defaults
from spherenorm_experiments.paper.detection.scenes import OBJECTS, glyph_scenes
from spherenorm_experiments.paper.detection.ssd import SSD, ssd_detections, ssd_loss
from spherenorm_experiments.paper.shared.augmentation import MEAN, STD
from spherenorm_experiments.paper.shared.glyphs import TEST_FONTS, TRAIN_FONTS
from spherenorm_experiments.paper.shared.layout import data_folder
from spherenorm_experiments.paper.shared.published import load_published
from spherenorm_experiments.paper.shared.resnet import ResNet

__all__ = ["Detection"]

SIDE = 32
TRAIN, VALIDATION, TEST = 1024, 128, 384
"""Scenes of glyphs; the fonts of the test are not those of training and validation."""

PUBLISHED = {"centernet": "resnet18.pth", "ssd": "vgg16_bn.pth"}
"""Files of torchvision's models in the folder "pretrained" of that of `--data`."""

SMALL = Defaults((0.25, 0.4, 0.6), ((1.5,), (1.5,)))
STAGES = ((8,), (16, 16), (32, 32), (64,))
CANDIDATES = 60
"""Of the small SSD: default boxes, widths, and detections of a class before suppression."""

AUDITED = 8
"""Images of the audit's batch: it takes a dozen passes in float64."""


@dataclass(frozen=True)
class Detection(Task):
    """Find objects of 80 categories on photographs, or glyphs of three characters.

    The score is COCO's average precision.

    Attributes:
        detector: centernet (ResNet-18 with deformable convolutions) or ssd (VGG-16 with BatchNorm).
        data_set: glyphs (drawn here, on photographs) or coco (official layout, in the folder of
            `--data`).
        start: of the trunk: random, or pretrained on classification. On glyphs that is a short
            training on other characters; on coco the trunk is read from pretrained/resnet18.pth or
            pretrained/vgg16_bn.pth in the folder of `--data`, as torchvision publishes them.
        side: pixels of an image's side; None for 32 on glyphs, and on coco for 512 (centernet) or
            300 (ssd).
    """

    detector: Literal["centernet", "ssd"] = "centernet"
    data_set: Literal["glyphs", "coco"] = "glyphs"
    start: Literal["random", "pretrained"] = "random"
    side: int | None = None

    name = "detection"
    metric = "AP (%)"
    is_mean = False  # divided by the number of objects
    evaluation_batch = 64
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 512),
        "small": Budget(4, 16),
        "full": Budget(140, 64),
    }

    def data(self) -> Splits:
        if self.data_set == "coco":
            return coco(self.detector, self._side)
        return _scenes(self._side)

    def model(self) -> nn.Module:
        if self.data_set == "coco":
            model = CenterNet(CLASSES) if self.detector == "centernet" else SSD(CLASSES)
            if self.start == "pretrained":
                load_published(_trunk(model), self._published)
            return model
        model = _SMALL[self.detector][0]()
        if self.start == "pretrained":
            make, pool = _SMALL[self.detector]
            state = pretrained_trunk(self.detector, lambda: _trunk(make()), pool)
            nn.ModuleList(_trunk(model)).load_state_dict(state)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, boxes, labels, _ = batch
        maps = model(images)
        if self.detector == "centernet":
            return centernet_loss(maps, boxes, labels, _stride(self._side, maps[0]))
        return ssd_loss(maps, boxes, labels, (self._side, self._side), self._defaults)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, boxes, labels, crowds = batch
        maps = model(images)
        if self.detector == "centernet":
            found = centernet_detections(maps, _stride(self._side, maps[0]))
        elif self.data_set == "coco":
            found = ssd_detections(maps, (self._side, self._side))
        else:
            found = ssd_detections(maps, (self._side, self._side), SMALL, CANDIDATES)
        rows = torch.cat([boxes, labels[..., None], crowds[..., None]], dim=-1).cpu()
        truth = [row[row[:, 4] >= 0] for row in rows]
        return {"AP": Collected(average_precision, found, truth)}

    def collate(self, items: list[Any]) -> Batch:
        """Objects are padded to those of the image that has most; labels are -1 there."""
        images, *objects = zip(*items, strict=True)
        padded = (
            nn.utils.rnn.pad_sequence(list(column), batch_first=True, padding_value=value)
            for column, value in zip(objects, (0.0, -1, 0), strict=True)
        )
        boxes, labels, crowds = padded
        if not labels.shape[1]:
            count = len(images)
            boxes, labels = boxes.new_zeros(count, 1, 4), labels.new_full((count, 1), -1)
            crowds = crowds.new_zeros(count, 1)
        return torch.stack(images), boxes, labels, crowds

    def audit_inputs(self) -> tuple[Any, ...]:
        return (self.first_batch(self.data().train, AUDITED)[0],)

    def shards(self, model: nn.Module) -> Sequence[nn.Module]:
        if isinstance(model, CenterNet):  # the trunk is not called as a whole
            return [*_trunk(model), *model.up, model.heat, model.size, model.shift]
        return super().shards(model)

    def fingerprint(self) -> str:
        found = super().fingerprint()
        if self.data_set == "coco" and self.start == "pretrained":
            found += hashlib.sha256(self._published.read_bytes()).hexdigest()
        return found

    @property
    def _published(self) -> Path:
        return data_folder("the pretrained start") / "pretrained" / PUBLISHED[self.detector]

    @property
    def _defaults(self) -> Defaults:
        return SSD300 if self.data_set == "coco" else SMALL

    @property
    def _side(self) -> int:
        if self.side is not None:
            return self.side
        if self.data_set == "glyphs":
            return SIDE
        return 512 if self.detector == "centernet" else 300


def _stride(side: int, maps: Tensor) -> float:
    """Pixels to a place of the maps.

    Raises:
        ValueError: the trunk has rounded a side up on its way down, so that on its way up the maps
            reach beyond the image: a place is no longer where its pixels are.
    """
    places = maps.shape[-1]
    if side % places:
        wrong = f"{side} pixels, which the {places} places of its maps do not divide"
        raise ValueError(f"side must be a multiple of the trunk's stride, got {wrong}")
    return side / places


def _trunk(model: nn.Module) -> list[nn.Module]:
    """The modules of a detector that are a classifier's, in order."""
    if isinstance(model, CenterNet):
        return [model.trunk.stem, *model.trunk.stages]
    assert isinstance(model, SSD)
    return list(model.stages)


def _small_centernet() -> CenterNet:
    trunk = ResNet("basic", (1, 1, 1), 16, stem="halving")
    return CenterNet(len(OBJECTS), trunk, widths=(32,), head=32)


def _small_ssd() -> SSD:
    return SSD(len(OBJECTS), STAGES, hidden=64, dilation=2, extras=(), defaults=SMALL)


_SMALL: dict[str, tuple[Callable[[], CenterNet | SSD], nn.Module]] = {
    "centernet": (_small_centernet, nn.Identity()),
    "ssd": (_small_ssd, nn.MaxPool2d(2)),
}
"""The small detectors, and what follows a module of their trunks in a classifier."""


@functools.lru_cache(maxsize=2)
def _scenes(side: int) -> Splits:
    parts = ((TRAIN, TRAIN_FONTS), (VALIDATION, TRAIN_FONTS), (TEST, TEST_FONTS))
    return Splits(*(_drawn(*part, seed, side) for seed, part in enumerate(parts)))


def _drawn(count: int, fonts: Sequence[str], seed: int, side: int) -> Split:
    """(images, boxes, labels, crowds) of scenes; none is a crowd."""
    images, boxes, labels = map(torch.from_numpy, glyph_scenes(count, seed, size=side, fonts=fonts))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (images.float() / 255 - mean) / std, boxes, labels, torch.zeros_like(labels)
