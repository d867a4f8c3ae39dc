"""ImageNet-1k: a folder of JPEG files for each of 1,000 synsets, in training and validation.

The official archive has all validation files in one folder; they are sorted into folders first, as
for torchvision's `ImageFolder`.

Source: O. Russakovsky et al., *ImageNet Large Scale Visual Recognition Challenge*, 2015.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from spherenorm_experiments.core import Splits, require_extra
from spherenorm_experiments.paper.shared.augmentation import (
    centre,
    normalized,
    random_crop,
    random_flip,
)
from spherenorm_experiments.paper.shared.layout import Layout

CLASSES, HELD_OUT = 1000, 10
"""Synsets; and training files of each, at most half, on which hyper-parameters are chosen."""

FINGERPRINTED = 16
"""Files of a split whose bytes are part of its fingerprint; of the others the names are."""

TREE = """
imagenet/
  train/n01440764/n01440764_10026.JPEG ...      1,000 folders, one for each synset
  val/n01440764/ILSVRC2012_val_00000293.JPEG    the same 1,000 folders
"""


class Pictures:
    """JPEG files with their classes; a map-style data set of (image, class, more...).

    Args:
        folder: of the data set.
        labeled: paths relative to the folder, with their classes.
        transform: a tensor of a Pillow picture of mode RGB.
        columns: more of each picture, such as the part of an evaluation that it belongs to.
    """

    def __init__(
        self,
        folder: Path,
        labeled: Sequence[tuple[str, int]],
        transform: Callable[[Any], Tensor],
        *columns: Any,
    ) -> None:
        self.folder, self.transform = folder, transform
        # One array each: a million Python strings would be copied into every worker.
        self.files = np.array([name for name, _ in labeled], dtype=np.bytes_)
        self.labels = np.array([label for _, label in labeled])
        self.columns = tuple(np.asarray(column) for column in columns)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        pillow = require_extra("PIL.Image", "reading pictures")
        with pillow.open(self._path(index)) as picture:
            image = self.transform(picture.convert("RGB"))
        return image, int(self.labels[index]), *(column[index] for column in self.columns)

    def fingerprint(self) -> str:
        """A hash of names, labels, columns, and the bytes of a few files."""
        parts = (self.files, self.labels, *self.columns)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts))
        last = len(self) - 1
        for index in sorted({k * last // (FINGERPRINTED - 1) for k in range(FINGERPRINTED)}):
            digest.update(self._path(index).read_bytes())
        return digest.hexdigest()

    def _path(self, index: int) -> Path:
        return self.folder / str(self.files[index], "ascii")


def imagenet(side: int = 224, augment: Callable[[Any], Any] | None = None) -> Splits:
    """Training, validation and test set; the test set is the official validation set.

    Training images are random crops, flipped with probability 1/2, then augmented. The others are
    central crops. A part of the training set is held out for validation: ten files of each synset.

    Args:
        side: pixels of an image's side.
        augment: of a picture that is cropped and flipped.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    return _splits(LAYOUT.folder(), side, augment)


@functools.lru_cache(maxsize=4)
def _splits(folder: Path, side: int, augment: Callable[[Any], Any] | None) -> Splits:
    """Those of a folder, once for a process."""

    def augmented(picture: Any) -> Tensor:
        flipped = random_flip(random_crop(picture, side))
        return normalized(augment(flipped) if augment else flipped)

    def central(picture: Any) -> Tensor:
        return normalized(centre(picture, side))

    synsets = _synsets(folder, "train")
    if _synsets(folder, "val") != synsets:
        raise LAYOUT.error(folder, "has other synsets in val than in train")
    train: list[tuple[str, int]] = []
    held: list[tuple[str, int]] = []
    for label, synset in enumerate(synsets):
        names = _files(folder, Path("train") / synset)
        chosen = min(HELD_OUT, len(names) // 2)
        out = {k * len(names) // chosen for k in range(chosen)}  # evenly spread
        for place, name in enumerate(names):
            (held if place in out else train).append((name, label))
    test = [(n, k) for k, s in enumerate(synsets) for n in _files(folder, Path("val") / s)]
    return Splits(
        Pictures(folder, train, augmented),
        Pictures(folder, held, central),
        Pictures(folder, test, central),
    )


def _synsets(folder: Path, part: str) -> list[str]:
    """The names of the synset folders, in alphabetical order: the classes."""
    names = sorted(entry.name for entry in os.scandir(folder / part) if entry.is_dir())
    if len(names) != CLASSES:
        raise LAYOUT.error(folder, f"has {len(names):,} folders in {part}, not {CLASSES:,}")
    return names


def _files(folder: Path, part: Path) -> list[str]:
    """The JPEG files of a part of the data set, relative to its folder."""
    endings = (".jpeg", ".jpg")
    names = sorted(entry.name for entry in os.scandir(folder / part))
    found = [str(part / name) for name in names if name.lower().endswith(endings)]
    if not found:
        raise LAYOUT.error(folder, f"has no JPEG files in {part}")
    return found


def _count(folder: Path) -> Mapping[str, int]:
    def files(part: str) -> int:
        return sum(len(names) for _, _, names in os.walk(folder / part))

    synsets = sum(entry.is_dir() for entry in os.scandir(folder / "train"))
    return {
        "classes": synsets,
        "training images": files("train"),
        "validation images": files("val"),
    }


LAYOUT = Layout(
    "imagenet",
    "ImageNet-1k",
    TREE,
    ("train", "val"),
    {"classes": CLASSES, "training images": 1_281_167, "validation images": 50_000},
    _count,
    "https://www.image-net.org, ILSVRC2012, training and validation images of task 1 and 2",
)
