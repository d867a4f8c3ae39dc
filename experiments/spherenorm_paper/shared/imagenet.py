"""ImageNet-1k: a folder of JPEG files for each of 1,000 synsets, in training and validation.

The official archive has all validation files in one folder; they are sorted into folders first, as
for torchvision's `ImageFolder`.

Source: O. Russakovsky et al., *ImageNet Large Scale Visual Recognition Challenge*, 2015.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.task import Splits
from spherenorm_paper.shared.augmentation import View, central, varied
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.items import Items

CLASSES, HELD_OUT = 1000, 10
"""Synsets; and training files of each, at most half, on which hyper-parameters are chosen."""

JPEG = (".jpeg", ".jpg")

LAYOUT = layout("imagenet")


class Pictures(Items):
    """JPEG files with their classes; a map-style data set of (image, class, more...).

    Args:
        folder: of the data set.
        labeled: paths relative to the folder, with their classes.
        view: a tensor of a Pillow picture of mode RGB.
        columns: more of each picture, such as the part of an evaluation that it belongs to.
    """

    def __init__(
        self, folder: Path, labeled: Sequence[tuple[str, int]], view: View, *columns: Any
    ) -> None:
        def load(path: Path, label: int, *more: Any) -> tuple[Any, ...]:
            with require_extra("PIL.Image", "reading pictures").open(path) as picture:
                return view(picture.convert("RGB")), int(label), *more

        names, labels = zip(*labeled, strict=True)
        super().__init__(load, names, *map(np.asarray, (labels, *columns)), folder=folder)
        self.files, self.labels = self.columns[:2]


@LAYOUT.reader
def imagenet(folder: Path, side: int = 224, augment: Callable[[Any], Any] | None = None) -> Splits:
    """Training, validation and test set; the test set is the official validation set.

    Training images are random crops, flipped with probability 1/2, then augmented. The others are
    central crops. A part of the training set is held out for validation: ten files of each synset.

    Args:
        side: pixels of an image's side.
        augment: of a picture that is cropped and flipped.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    synsets, tested = (
        sorted(entry.name for entry in os.scandir(folder / part) if entry.is_dir())
        for part in ("train", "val")
    )
    if tested != synsets or len(synsets) != CLASSES:
        requirement = f"must have {CLASSES:,} folders in train, and the same in val"
        raise LAYOUT.error(folder, f"{requirement}, has {len(synsets):,} and {len(tested):,}")
    train: list[tuple[str, int]] = []
    validation: list[tuple[str, int]] = []
    for label, synset in enumerate(synsets):
        names = jpeg_files(folder, f"train/{synset}")
        chosen = min(HELD_OUT, len(names) // 2)
        out = {k * len(names) // chosen for k in range(chosen)}  # evenly spread
        for place, name in enumerate(names):
            (validation if place in out else train).append((name, label))
    test = [(n, k) for k, s in enumerate(synsets) for n in jpeg_files(folder, f"val/{s}")]
    return Splits(
        Pictures(folder, train, varied(side, augment)),
        Pictures(folder, validation, central(side)),
        Pictures(folder, test, central(side)),
    )


def jpeg_files(folder: Path, part: str) -> list[str]:
    """The JPEG files of a part of a data set, relative to its folder.

    Raises:
        ValueError: there are none.
    """
    place = folder / part
    names = sorted(entry.name for entry in os.scandir(place)) if place.is_dir() else []
    files = [f"{part}/{name}" for name in names if name.lower().endswith(JPEG)]
    if not files:
        raise LAYOUT.error(folder, f"has no JPEG files in {part}")
    return files
