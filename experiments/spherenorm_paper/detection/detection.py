"""Object detection: CenterNet and SSD on MS-COCO, small ones of both families on glyph scenes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.lookup import data_folder
from spherenorm_experiments.task import (
    Batch,
    Budget,
    Collected,
    Splits,
    Statistic,
    Task,
    preserved_randomness,
    seed_everything,
)
from spherenorm_paper.detection import centernet, ssd
from spherenorm_paper.detection.boxes import average_precision
from spherenorm_paper.detection.centernet import CenterNet
from spherenorm_paper.detection.coco import CLASSES, coco
from spherenorm_paper.detection.ssd import SSD, Defaults
from spherenorm_paper.shared import glyphs
from spherenorm_paper.shared.augmentation import standardized
from spherenorm_paper.shared.glyphs import Image
from spherenorm_paper.shared.layers import load_published
from spherenorm_paper.shared.resnet import ResNet

MODELS: dict[str, type[CenterNet] | type[SSD]] = {"centernet": CenterNet, "ssd": SSD}
LOSSES = {"centernet": centernet.centernet_loss, "ssd": ssd.ssd_loss}
DETECTIONS = {"centernet": centernet.centernet_detections, "ssd": ssd.ssd_detections}
SIDES = {"centernet": 512, "ssd": 300}
"""Pixels of an image's side, on coco."""

PUBLISHED = {"centernet": "resnet18.pth", "ssd": "vgg16_bn.pth"}
"""Files of torchvision's models in the folder "pretrained" of that of `--data`."""


@dataclass(frozen=True)
class Detection(Task):
    """Find objects of 80 categories on photographs, or glyphs of three characters.

    The score is COCO's average precision. A batch has images, and rows of objects: left, top,
    right, bottom, class, and 1 for a crowd; -1 throughout for none.

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
    better = "higher"
    is_mean = False  # divided by the number of objects
    evaluation_batch = 64
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 512),
        "small": Budget(4, 16),
        "full": Budget(140, 64),
    }

    def data(self) -> Splits:
        if self.data_set == "coco":
            return coco(self.detector, self.side or SIDES[self.detector])
        return _scenes(self.side or 32)

    def model(self) -> nn.Module:
        small, pretrained = self.data_set == "glyphs", self.start == "pretrained"
        model = _small(self.detector) if small else MODELS[self.detector](CLASSES)
        if pretrained and small:
            nn.ModuleList(model.trunk).load_state_dict(_pretrained(self.detector))
        elif pretrained:
            load_published(model.trunk, self._published)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, objects = batch
        boxes, labels = objects[..., :4], objects[..., 4].long()
        return LOSSES[self.detector](model(images), boxes, labels, images.shape[-1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, objects = batch
        detected = DETECTIONS[self.detector](model(images), images.shape[-1])
        truth = [rows[rows[:, 4] >= 0] for rows in objects.cpu()]
        return {"AP": Collected(average_precision, detected, truth)}

    def collate(self, items: list[Any]) -> Batch:
        """Objects are padded with -1 to those of the image that has most, at least to one."""
        images, objects = zip(*items, strict=True)
        none = torch.full((1, 6), -1.0)
        rows = [boxes if len(boxes) else none for boxes in objects]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)
        return torch.stack(images), padded

    def audit_inputs(self) -> tuple[Any, ...]:
        return (self.first_batch(self.data().train, 8)[0],)

    def fingerprint(self) -> str:
        fingerprint = super().fingerprint()
        if self.data_set == "coco" and self.start == "pretrained":
            fingerprint += hashlib.sha256(self._published.read_bytes()).hexdigest()
        return fingerprint

    @property
    def _published(self) -> Path:
        return data_folder("the pretrained start") / "pretrained" / PUBLISHED[self.detector]


def _small(detector: str) -> CenterNet | SSD:
    if detector == "ssd":
        stages, defaults = SMALL_VGG, Defaults((0.25, 0.4, 0.6), ((1.5,), (1.5,)))
        return SSD(len(OBJECTS), stages, width=64, dilation=2, extras=(), defaults=defaults)
    trunk = ResNet("basic", (1, 1, 1), 16, stem="halving")
    return CenterNet(len(OBJECTS), trunk, widths=(32,), head=32)


SMALL_VGG = ((8,), (16, 16), (32, 32), (64,))

CHARACTERS, COUNT, BATCH, EPOCHS = "BDHMPTZ4", 1600, 32, 4
"""The glyphs of the embedded pretrained start, of which none is an object, and its training."""


@functools.cache
def _pretrained(detector: str) -> dict[str, Tensor]:
    """The state of a small trunk, as a `ModuleList`, after a short training; always the same.

    The means over the last maps are classified.
    """
    with preserved_randomness(), torch.enable_grad():
        seed_everything(0)
        trunk = nn.ModuleList(_small(detector).trunk)
        how = {"characters": CHARACTERS, "fonts": glyphs.TRAIN_FONTS, "size": 24}
        drawn = glyphs.glyph_images(COUNT, 7, **how, grounds=glyphs.photographs())  # type: ignore[arg-type]
        images, labels = map(torch.from_numpy, drawn)
        images, head = standardized(images), nn.LazyLinear(len(CHARACTERS))
        pool = nn.MaxPool2d(2) if detector == "ssd" else nn.Identity()
        parts = [module for part in trunk for module in (part, pool)]
        network = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        network(images[:2])  # the head's number of inputs
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        steps = EPOCHS * (COUNT // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(EPOCHS):
            for part in torch.split(torch.randperm(COUNT), BATCH):
                loss = F.cross_entropy(network(images[part]), labels[part])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    return trunk.state_dict()


OBJECTS = "AKS"
"""The characters that are objects, the classes."""

SCENES = (1024, 128, 384)
"""Counts of training, validation and test scenes; each set has fonts of its own."""

MOST, EXTENT = 2, (0.3, 0.6)
"""Objects of an image; the least and largest share of it that a glyph's longer side takes."""

ANGLE, CONTRAST, TRIES = 15.0, 60.0, 20
"""The largest rotation; the least difference in brightness; places that are tried."""


def glyph_scenes(
    count: int, seed: int, *, size: int = 32, fonts: Sequence[str] = glyphs.TRAIN_FONTS
) -> tuple[Image, Image]:
    """Draw scenes: one or two glyphs whose boxes don't overlap, filled with textures.

    Args:
        count: of images.
        seed: of all that is random; the same seed gives the same bytes.
        size: pixels of a side.
        fonts: files of matplotlib's fonts.

    Returns:
        Bytes of shape (count, 3, size, size); and objects of shape (count, 2, 6): left, top, right,
        bottom in pixels, class, and 0; -1 throughout where there is none.

    Example:
        >>> images, objects = glyph_scenes(4, 0)
        >>> images.shape, objects.shape
        ((4, 3, 32, 32), (4, 2, 6))
    """
    random = np.random.default_rng(seed)
    images = np.empty((count, 3, size, size), dtype=np.uint8)
    objects = np.full((count, MOST, 6), -1, dtype=np.float32)
    for image, rows in zip(images, objects, strict=True):
        scene, n_placed = _part_of_one(glyphs.photographs(), size, size, random).copy(), 0
        for _ in range(int(random.integers(1, MOST + 1))):
            label = int(random.integers(len(OBJECTS)))
            font, extent = str(random.choice(fonts)), size * random.uniform(*EXTENT)
            alpha = glyphs.mask(OBJECTS[label], font, extent, angle=random.uniform(-ANGLE, ANGLE))
            for _ in range(TRIES):
                box = _box(alpha, size, random)
                if all((box[:2] >= row[2:4]).any() or (box[2:] <= row[:2]).any()
                       for row in rows[:n_placed]):  # fmt: skip
                    _draw(scene, alpha, box, random)
                    rows[n_placed] = (*box, label, 0)
                    n_placed += 1
                    break
        image[:] = scene.transpose(2, 0, 1)
    return images, objects


def _part_of_one(
    images: Sequence[Image], height: int, width: int, random: np.random.Generator
) -> Image:
    return glyphs.crop(images[int(random.integers(len(images)))], height, width, random)


def _box(alpha: Image, size: int, random: np.random.Generator) -> Image:
    """A random box of the glyph's size."""
    height, width = alpha.shape
    x0, top = (int(random.integers(size - side + 1)) for side in (width, height))
    return np.array([x0, top, x0 + width, top + height])


def _draw(scene: Image, alpha: Image, box: Image, random: np.random.Generator) -> None:
    """Draw a glyph in the box, whose texture is brighter or darker than the ground."""
    x0, top, right, bottom = box
    part = scene[top:bottom, x0:right]
    ground = part.astype(np.float32)
    fill = _part_of_one(glyphs.textures(), bottom - top, right - x0, random)
    level = ground.mean()
    below, above = level - CONTRAST, 255 - level - CONTRAST  # the room for a shift
    up = bool(above > 0 and (below <= 0 or random.random() < 0.5))
    shift = CONTRAST + random.uniform(0, max(0.0, above if up else below))
    tint = random.uniform(-30, 30, 3)
    filled = level + (shift if up else -shift) + tint + 0.5 * (fill - fill.mean())
    part[:] = glyphs.blend(ground, np.clip(filled, 0, 255), alpha)


@functools.lru_cache(maxsize=2)
def _scenes(side: int) -> Splits:
    drawn = glyphs.by_fonts(glyph_scenes, SCENES, size=side)
    return Splits(*((standardized(pixels), objects) for pixels, objects in drawn))
