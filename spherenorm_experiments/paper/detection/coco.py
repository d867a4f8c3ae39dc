"""MS-COCO 2017 as it is unpacked: JPEG files, and the boxes of their objects in JSON.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.core import Splits, require_extra
from spherenorm_experiments.paper.detection.windows import (
    letterbox,
    overlapping_window,
    recolored,
    scaled_window,
    whole,
    within,
)
from spherenorm_experiments.paper.shared.augmentation import normalized
from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["CLASSES", "LAYOUT", "Scenes", "coco"]

CLASSES, HELD_OUT = 80, 1000
"""Categories; training pictures, at most a tenth, on which hyper-parameters are chosen."""

FINGERPRINTED = 16
"""Pictures of a split whose bytes are part of its fingerprint; of the others the names are."""

TREE = """
coco/
  annotations/instances_train2017.json
  annotations/instances_val2017.json
  train2017/000000000009.jpg ...    118,287 files
  val2017/000000000139.jpg ...      5,000 files
"""

Way = Literal["centernet", "ssd"]


@dataclass(frozen=True)
class _Objects:
    """The pictures of an annotation file and their objects; arrays, which workers share.

    Attributes:
        files: names, in the order of the pictures' numbers.
        first: the first object of each picture, and the number of all objects.
        boxes: shape (objects, 4).
        labels: 0 to 79, the categories in the order of their numbers.
        crowds: True for an object that is a crowd.
    """

    files: np.ndarray[Any, Any]
    first: np.ndarray[Any, Any]
    boxes: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    crowds: np.ndarray[Any, Any]


class Scenes:
    """Pictures with their objects; a map-style data set of (image, boxes, labels, crowds).

    Images are square, boxes are in their pixels. Training images are random windows of the
    detector, in changed colours, without crowds; of others nothing is cut, so that overlaps, and
    the average precision, are those of the original pictures.

    Args:
        folder: of the JPEG files.
        objects: of an annotation file.
        chosen: numbers of the pictures.
        side: pixels of the images' side.
        way: centernet (keeps the picture's ratio) or ssd (stretches it).
        training: windows at random.
    """

    def __init__(
        self,
        folder: Path,
        objects: _Objects,
        chosen: np.ndarray[Any, Any],
        side: int,
        way: Way,
        training: bool,
    ) -> None:
        self.folder, self.objects, self.chosen = folder, objects, chosen
        self.side, self.way, self.training = side, way, training

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pillow = require_extra("PIL.Image", "reading pictures")
        boxes, labels, crowds = self.truth(index)
        with pillow.open(self._path(index)) as opened:
            picture = opened.convert("RGB")
        if not self.training:
            window = (letterbox if self.way == "centernet" else whole)(picture.size)
            image = normalized(window.cut(picture, self.side))
            return image, window.moved(boxes, self.side), labels, crowds
        boxes, labels = _cleaned(boxes[~crowds], labels[~crowds], picture.size)
        if self.way == "centernet":
            window = scaled_window(picture.size)
        else:
            window = overlapping_window(picture.size, boxes)
        image = normalized(recolored(window.cut(picture, self.side)))
        boxes = window.moved(boxes, self.side)
        if self.way == "ssd":
            inside = within(boxes, torch.tensor([0.0, 0.0, self.side, self.side]))
            boxes, labels = boxes[inside], labels[inside]
        boxes, labels = _cleaned(boxes, labels, (self.side, self.side))
        return image, boxes, labels, torch.zeros(len(labels), dtype=torch.bool)

    def truth(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes in the picture's pixels, labels, and which objects are crowds."""
        first, last = self.objects.first[self.chosen[index] :][:2]
        parts = (self.objects.boxes, self.objects.labels, self.objects.crowds)
        boxes, labels, crowds = (torch.from_numpy(part[first:last].copy()) for part in parts)
        return boxes, labels, crowds

    def fingerprint(self) -> str:
        """A hash of names, objects, and the bytes of a few files."""
        digest = hashlib.sha256(str((self.side, self.way, self.training)).encode())
        parts = (self.chosen, *vars(self.objects).values())
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        last = len(self) - 1
        for index in sorted({k * last // (FINGERPRINTED - 1) for k in range(FINGERPRINTED)}):
            digest.update(self._path(index).read_bytes())
        return digest.hexdigest()

    def _path(self, index: int) -> Path:
        return self.folder / str(self.objects.files[self.chosen[index]], "ascii")


def _cleaned(boxes: Tensor, labels: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Boxes cut at the edges of (width, height) pixels, without those of less than a pixel."""
    boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([*size, *size]))
    seen = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
    return boxes[seen], labels[seen]


def coco(way: Way, side: int) -> Splits:
    """Training, validation and test set; the test set is the official validation set.

    Pictures without an object are in all of them. Of the training set 1,000 pictures, evenly
    spread, are held out for validation.

    Args:
        way: centernet or ssd: the detector whose windows are cut.
        side: pixels of the images' side.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    folder = LAYOUT.folder()
    known, other = (_objects(folder, part) for part in ("train2017", "val2017"))
    count = len(known.files)
    held = min(HELD_OUT, max(1, count // 10))
    out = np.arange(held) * count // held
    train = np.setdiff1d(np.arange(count), out)
    files = folder / "train2017"
    return Splits(
        Scenes(files, known, train, side, way, training=True),
        Scenes(files, known, out, side, way, training=False),
        Scenes(folder / "val2017", other, np.arange(len(other.files)), side, way, training=False),
    )


@functools.lru_cache(maxsize=4)
def _objects(folder: Path, part: str) -> _Objects:
    """The pictures and objects of a part of the data set, once for a process.

    Raises:
        ValueError: the annotations are no such JSON, or a picture is not there.
    """
    file = f"annotations/instances_{part}.json"
    content = _read(folder, file)
    categories = sorted(each["id"] for each in content["categories"])
    if len(categories) != CLASSES:
        raise LAYOUT.error(folder, f"has {len(categories)} categories in {file}, not {CLASSES}")
    label = {number: place for place, number in enumerate(categories)}
    images = sorted(content["images"], key=lambda each: int(each["id"]))
    place = {each["id"]: k for k, each in enumerate(images)}
    there = {entry.name for entry in os.scandir(folder / part)}
    missing = next((each["file_name"] for each in images if each["file_name"] not in there), None)
    if missing is not None:
        raise LAYOUT.error(folder, f"lacks {part}/{missing}, which {file} has")
    if not images:
        raise LAYOUT.error(folder, f"has no images in {file}")
    found = sorted(content["annotations"], key=lambda each: place[each["image_id"]])
    of_image = np.array([place[each["image_id"]] for each in found], dtype=np.int64)
    boxes = np.array([each["bbox"] for each in found], dtype=np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return _Objects(
        np.array([each["file_name"] for each in images], dtype=np.bytes_),
        np.searchsorted(of_image, np.arange(len(images) + 1)),
        boxes,
        np.array([label[each["category_id"]] for each in found], dtype=np.int64),
        np.array([bool(each.get("iscrowd", 0)) for each in found], dtype=bool),
    )


def _read(folder: Path, file: str) -> Mapping[str, Any]:
    """The content of an annotation file."""
    try:
        content = json.loads((folder / file).read_bytes())
    except ValueError as error:
        raise LAYOUT.error(folder, f"has no JSON in {file} ({error})") from error
    wanted = ("images", "annotations", "categories")
    lacking = [name for name in wanted if not isinstance(content, dict) or name not in content]
    if lacking:
        raise LAYOUT.error(folder, f"has no {lacking[0]!r} in {file}")
    return content  # type: ignore[no-any-return]


def _count(folder: Path) -> Mapping[str, int]:
    train, val = (
        sum(entry.name.endswith(".jpg") for entry in os.scandir(folder / part))
        for part in ("train2017", "val2017")
    )
    categories = _read(folder, "annotations/instances_val2017.json")["categories"]
    return {
        "classes": len(categories),
        "images": train + val,
        "training images": train,
        "validation images": val,
    }


LAYOUT = Layout(
    "coco",
    "MS-COCO",
    TREE,
    (
        *("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
        *("train2017", "val2017"),
    ),
    # Table E.1 has 80 classes and about 123k images; the other two are the data set's own.
    {
        **{"classes": CLASSES, "images": 123_287},
        **{"training images": 118_287, "validation images": 5_000},
    },
    _count,
    "https://cocodataset.org: 2017 train and val images, 2017 train/val annotations",
)
