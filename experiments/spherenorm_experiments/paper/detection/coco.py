"""MS-COCO 2017 as it is unpacked: JPEG files, and the boxes of their objects in JSON.

Source: T.-Y. Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.paper.detection.windows import (
    Window,
    letterbox,
    overlapping_window,
    recolored,
    scaled_window,
    within,
)
from spherenorm_experiments.paper.shared.augmentation import normalized
from spherenorm_experiments.paper.shared.layout import Layout, count_files, sampled_digest
from spherenorm_experiments.task import Splits

CLASSES, HELD_OUT = 80, 1000
"""Categories; training pictures, at most a tenth, on which hyper-parameters are chosen."""

PARTS = ("train2017", "val2017")
ANNOTATIONS = "annotations/instances_{}.json"

LAYOUT = Layout(
    name="coco",
    title="MS-COCO",
    tree="""
coco/
  annotations/instances_train2017.json
  annotations/instances_val2017.json
  train2017/000000000009.jpg ...    118,287 files
  val2017/000000000139.jpg ...      5,000 files
""",
    paths=(*map(ANNOTATIONS.format, PARTS), *PARTS),
    # Table E.1 has 80 classes and about 123k images; the other two are the data set's own.
    statistics={
        "classes": (CLASSES, lambda folder: len(_read(folder, PARTS[1])["categories"])),
        "images": (123_287, lambda folder: count_files(folder, PARTS, "*.jpg")),
        "training images": (118_287, "train2017/*.jpg"),
        "validation images": (5_000, "val2017/*.jpg"),
    },
    source="https://cocodataset.org: 2017 train and val images, 2017 train/val annotations",
)

Way = Literal["centernet", "ssd"]


class _Annotations(NamedTuple):
    """The pictures of an annotation file and their objects; arrays, which workers share.

    Attributes:
        files: names, in the order of the pictures' numbers.
        first: the first object of each picture, and the number of all objects.
        objects: rows of left, top, right, bottom, class, and 1 for a crowd. Classes are 0 to 79,
            the categories in the order of their numbers.
    """

    files: np.ndarray[Any, Any]
    first: np.ndarray[Any, Any]
    objects: np.ndarray[Any, Any]


class Scenes:
    """Pictures with their objects; a map-style data set of (image, rows of objects).

    Images are square, boxes are in their pixels. Training images are random windows of the
    detector, in changed colours, without crowds; of others nothing is cut, so that overlaps, and
    the average precision, are those of the original pictures.

    Args:
        folder: of the JPEG files.
        annotations: of these files and others.
        chosen: numbers of the pictures.
        side: pixels of the images' side.
        way: centernet (keeps the picture's ratio) or ssd (stretches it).
        training: windows at random.
    """

    def __init__(
        self,
        folder: Path,
        annotations: _Annotations,
        chosen: np.ndarray[Any, Any],
        side: int,
        way: Way,
        training: bool,
    ) -> None:
        self.folder, self.annotations, self.chosen = folder, annotations, chosen
        self.side, self.way, self.training = side, way, training

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pillow = require_extra("PIL.Image", "reading pictures")
        objects = self.truth(index)
        with pillow.open(self._path(index)) as opened:
            picture = opened.convert("RGB")
        if not self.training:
            size = picture.size
            window = letterbox(size) if self.way == "centernet" else Window(0, 0, *size)
            return normalized(window.cut(picture, self.side)), window.moved(objects, self.side)
        objects = _cleaned(objects[objects[:, 5] == 0], picture.size)
        if self.way == "centernet":
            window = scaled_window(picture.size)
        else:
            window = overlapping_window(picture.size, objects[:, :4])
        image = normalized(recolored(window.cut(picture, self.side)))
        objects = window.moved(objects, self.side)
        if self.way == "ssd":
            objects = objects[within(objects, torch.tensor([0.0, 0.0, self.side, self.side]))]
        return image, _cleaned(objects, (self.side, self.side))

    def truth(self, index: int) -> Tensor:
        """Rows of objects, in the picture's pixels."""
        first, last = self.annotations.first[self.chosen[index] :][:2]
        return torch.from_numpy(self.annotations.objects[first:last].copy())

    def fingerprint(self) -> str:
        """A hash of names, objects, and the bytes of a few files."""
        parts = (self.chosen, *self.annotations)
        form = str((self.side, self.way, self.training)).encode()
        header = b"".join([form, *(part.tobytes() for part in parts)])
        return sampled_digest(header, len(self), self._path)

    def _path(self, index: int) -> Path:
        return self.folder / str(self.annotations.files[self.chosen[index]], "ascii")


def _cleaned(objects: Tensor, size: tuple[int, int]) -> Tensor:
    """Objects cut at the edges of (width, height) pixels, without those of less than a pixel."""
    boxes = torch.minimum(objects[:, :4].clamp(min=0), objects.new_tensor([*size, *size]))
    seen = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
    return torch.cat([boxes, objects[:, 4:]], dim=1)[seen]


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
    folder, (known, other) = LAYOUT.folder(), map(_annotations, PARTS)
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


@LAYOUT.reader
def _annotations(folder: Path, part: str) -> _Annotations:
    """The pictures and objects of a part of the data set.

    Raises:
        ValueError: the annotations are no such JSON, or a picture is not there.
    """
    file, content = ANNOTATIONS.format(part), _read(folder, part)
    categories = sorted(each["id"] for each in content["categories"])
    if len(categories) != CLASSES:
        raise LAYOUT.error(folder, f"has {len(categories)} categories in {file}, not {CLASSES}")
    images = sorted(content["images"], key=lambda each: int(each["id"]))
    there = {entry.name for entry in os.scandir(folder / part)}
    missing = next((each["file_name"] for each in images if each["file_name"] not in there), None)
    if missing is not None:
        raise LAYOUT.error(folder, f"lacks {part}/{missing}, which {file} has")
    if not images:
        raise LAYOUT.error(folder, f"has no images in {file}")
    label = {number: place for place, number in enumerate(categories)}
    place = {each["id"]: k for k, each in enumerate(images)}
    boxed = sorted(content["annotations"], key=lambda each: place[each["image_id"]])
    rows = [(*each["bbox"], label[each["category_id"]], each.get("iscrowd", 0)) for each in boxed]
    objects = np.array(rows, dtype=np.float32).reshape(-1, 6)
    objects[:, 2:4] += objects[:, :2]
    of_image = [place[each["image_id"]] for each in boxed]
    return _Annotations(
        np.array([each["file_name"] for each in images], dtype=np.bytes_),
        np.searchsorted(of_image, np.arange(len(images) + 1)),
        objects,
    )


def _read(folder: Path, part: str) -> Mapping[str, Any]:
    """The content of an annotation file."""
    file = ANNOTATIONS.format(part)
    try:
        content = json.loads((folder / file).read_bytes())
    except ValueError as error:
        raise LAYOUT.error(folder, f"has no JSON in {file} ({error})") from error
    wanted = ("images", "annotations", "categories")
    lacking = [name for name in wanted if not isinstance(content, dict) or name not in content]
    if lacking:
        raise LAYOUT.error(folder, f"has no {lacking[0]!r} in {file}")
    return content  # type: ignore[no-any-return]
