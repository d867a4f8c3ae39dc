"""MS-COCO 2017 as it is unpacked: JPEG files, and the boxes of their objects in JSON.

A window is a part of a photograph that is cut out with its boxes, at random in training. It may
reach beyond the picture; there it has the mean colour of ImageNet. Windows draw from Python's
global random state, which each item seeds. Pictures are Pillow's, of mode RGB.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.task import Splits
from spherenorm_paper.detection.boxes import centered, overlaps
from spherenorm_paper.shared.augmentation import MEAN, normalized
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.items import Items

CLASSES, HELD_OUT = 80, 1000
"""Categories; training pictures, at most a tenth, on which hyper-parameters are chosen."""

PARTS = ("train2017", "val2017")
ANNOTATIONS = "annotations/instances_{}.json"

LAYOUT = layout("coco")

Way = Literal["centernet", "ssd"]


def coco(way: Way, side: int) -> Splits:
    """Training, validation and test set of (image, rows of objects), boxes in pixels of the image.

    Images are square. Training images are random windows of the detector, in changed colours,
    without crowds; of others nothing is cut, so that overlaps, and the average precision, are those
    of the original pictures. The test set is the official validation set. Of the training set 1,000
    pictures, evenly spread, are held out for validation.

    Args:
        way: centernet (keeps the picture's ratio) or ssd (stretches it).
        side: pixels of the images' side.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    folder, annotations = LAYOUT.folder(), {part: annotated(part) for part in PARTS}
    count, tested = (len(files) for files, _ in annotations.values())
    n_validation = min(HELD_OUT, max(1, count // 10))
    out = np.arange(n_validation) * count // n_validation

    def items(part: str, chosen: np.ndarray[Any, Any], training: bool) -> Items:
        files, objects = annotations[part]

        def load(path: Path, picture: int) -> tuple[Tensor, Tensor]:
            rows = torch.from_numpy(objects[picture].copy())
            with require_extra("PIL.Image", "reading pictures").open(path) as opened:
                return _cut(opened.convert("RGB"), rows, way, side, training)

        starts = np.cumsum([0, *map(len, objects)])
        boxes = hashlib.sha256(np.concatenate(objects).tobytes() + starts.tobytes()).hexdigest()
        form = way, side, training, boxes
        return Items(load, files[chosen], chosen, folder=folder / part, form=form)

    return Splits(
        items(PARTS[0], np.setdiff1d(np.arange(count), out), training=True),
        items(PARTS[0], out, training=False),
        items(PARTS[1], np.arange(tested), training=False),
    )


@LAYOUT.reader
def annotated(folder: Path, part: str) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """The files of a part of the data set, and the objects of each, views of one array.

    Files are in the order of the pictures' numbers. An object is left, top, right, bottom in
    pixels, class, and 1 for a crowd; classes are 0 to 79, in the order of the categories' numbers.

    Raises:
        ValueError: a picture is not there.
    """
    content = _read_annotations(folder, part)
    label = {
        k: n for n, k in enumerate(sorted(category["id"] for category in content["categories"]))
    }
    images = sorted(content["images"], key=lambda image: int(image["id"]))
    files, present = [image["file_name"] for image in images], {*os.listdir(folder / part)}
    if missing := [name for name in files if name not in present]:
        problem = f"lacks {part}/{missing[0]}, which {ANNOTATIONS.format(part)} has"
        raise LAYOUT.error(folder, problem)
    place = {image["id"]: k for k, image in enumerate(images)}
    boxed = sorted(content["annotations"], key=lambda box: place[box["image_id"]])
    rows = [(*box["bbox"], label[box["category_id"]], box.get("iscrowd", 0)) for box in boxed]
    objects = np.array(rows, dtype=np.float32).reshape(-1, 6)
    objects[:, 2:4] += objects[:, :2]
    of_image = [place[box["image_id"]] for box in boxed]
    borders = np.searchsorted(of_image, np.arange(1, len(images)))
    return np.array(files), np.split(objects, borders)


def _read_annotations(folder: Path, part: str) -> dict[str, Any]:
    return json.loads((folder / ANNOTATIONS.format(part)).read_bytes())  # type: ignore[no-any-return]


def _cut(
    picture: Any, objects: Tensor, way: Way, side: int, training: bool
) -> tuple[Tensor, Tensor]:
    """A square of `side` pixels of a picture, and the objects in it."""
    size = picture.size
    if not training:  # for CenterNet the smallest square around the picture
        wide, high = size if way == "ssd" else (max(size), max(size))
        window = Window((size[0] - wide) / 2, (size[1] - high) / 2, wide, high)
        return normalized(window.cut(picture, side)), window.transform(objects, side)
    objects = _cleaned(objects[objects[:, 5] == 0], size)
    ssd = way == "ssd"
    window = overlapping_window(size, objects[:, :4]) if ssd else scaled_window(size)
    image = normalized(_recolored(window.cut(picture, side)))
    objects = window.transform(objects, side)
    if ssd:
        objects = objects[within(objects, torch.tensor([0.0, 0.0, side, side]))]
    return image, _cleaned(objects, (side, side))


def _cleaned(objects: Tensor, size: tuple[int, int]) -> Tensor:
    """Objects cut at the edges of (width, height) pixels, without those of less than a pixel."""
    boxes = torch.minimum(objects[:, :4].clamp(min=0), objects.new_tensor([*size, *size]))
    is_visible = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
    return torch.cat([boxes, objects[:, 4:]], dim=1)[is_visible]


@dataclass(frozen=True)
class Window:
    """A rectangle of a picture, in its pixels."""

    x0: float
    top: float
    width: float
    height: float
    flipped: bool = False

    def cut(self, picture: Any, side: int) -> Any:
        """The window's content as a square picture of `side` pixels, bilinearly interpolated."""
        pillow = require_extra("PIL.Image", "cutting pictures")
        corners = (self.x0, self.top, self.x0 + self.width, self.top + self.height)
        fill = tuple(round(255 * share) for share in MEAN)
        way, bilinear = pillow.Transform.EXTENT, pillow.Resampling.BILINEAR
        cut = picture.transform((side, side), way, corners, bilinear, fillcolor=fill)
        return cut.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if self.flipped else cut

    def transform(self, objects: Tensor, side: int) -> Tensor:
        """Objects of the picture, whose first four entries are boxes, in pixels of the square."""
        shift = objects.new_tensor([self.x0, self.top] * 2)
        scale = objects.new_tensor([side / self.width, side / self.height] * 2)
        x0, top, right, bottom = ((objects[:, :4] - shift) * scale).unbind(1)
        if self.flipped:
            x0, right = side - right, side - x0
        return torch.cat([torch.stack([x0, top, right, bottom], 1), objects[:, 4:]], dim=1)


def scaled_window(size: tuple[int, int]) -> Window:
    """A square of 0.6 to 1.3 longer sides around a random point, flipped with probability 1/2.

    The point keeps 128 pixels from the edges, in small pictures a half, a quarter, ... of that.

    Source: the released code of CenterNet.
    """
    side = max(size) * random.choice([k / 10 for k in range(6, 14)])
    margins = [next((m for m in (128 >> k for k in range(8)) if n > 2 * m), 0) for n in size]
    x, y = (random.randint(m, n - m) for m, n in zip(margins, size, strict=True))
    return Window(x - side / 2, y - side / 2, side, side, random.random() < 0.5)


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
    ratio = random.uniform(1, 4) if random.random() < 0.5 else 1.0
    wide, high = (ratio * side for side in size)
    x0, top = (-random.uniform(0, (ratio - 1) * side) for side in size)
    everything = Window(x0, top, wide, high, flipped)
    min_overlap = random.choice(
        (None, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    )  # None leaves the picture whole
    if min_overlap is None or not len(boxes):
        return everything
    for _ in range(40):
        width, height = (random.uniform(0.3, 1) * side for side in (wide, high))
        if not 0.5 < width / height < 2:
            continue
        x = x0 + random.uniform(0, wide - width)
        y = top + random.uniform(0, high - height)
        part = boxes.new_tensor([[x, y, x + width, y + height]])
        inside = within(boxes, part[0])
        if inside.any() and overlaps(boxes[inside], part).max() >= min_overlap:
            return Window(x, y, width, height, flipped)
    return everything


def within(boxes: Tensor, part: Tensor) -> Tensor:
    """Which boxes, the first four entries, have their center in a part of the picture, (4,)."""
    center = centered(boxes[:, :4])[:, :2]
    return ((center > part[:2]) & (center < part[2:])).all(1)


def _recolored(picture: Any) -> Any:
    """Brightness, contrast and saturation changed by up to 40 %, in random order."""
    enhance = require_extra("PIL.ImageEnhance", "changing colours")
    for name in random.sample(["Brightness", "Contrast", "Color"], 3):
        picture = getattr(enhance, name)(picture).enhance(1 + random.uniform(-0.4, 0.4))
    return picture
