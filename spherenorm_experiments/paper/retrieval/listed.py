"""Retrieval: pictures of classes, of which those of the test are not seen in training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from spherenorm_experiments.core import Splits
from spherenorm_experiments.paper.shared.augmentation import (
    centre,
    normalized,
    random_crop,
    random_flip,
)
from spherenorm_experiments.paper.shared.imagenet import Pictures

__all__ = ["BOTH", "GALLERY", "QUERY", "Listed", "Photos", "class_counts", "splits_of"]

QUERY, GALLERY, BOTH = 0, 1, 2
"""The role of a test image: it asks, it is searched, or both; then it does not find itself."""

CENTRAL = 224 / 256
"""The share of the shorter side that a central crop keeps."""

SHOWN = 5_000
"""Training images that are the validation set if no classes are held out."""


class Listed(NamedTuple):
    """The images of a data set.

    Attributes:
        train: paths and classes, which are numbered from 0.
        test: paths, classes and roles.
    """

    train: Sequence[tuple[str, int]]
    test: Sequence[tuple[str, int, int]]


def class_counts(listed: Listed) -> dict[str, int]:
    """Classes and images of training and test set."""
    return {
        "train classes": len({label for _, label in listed.train}),
        "test classes": len({label for _, label, _ in listed.test}),
        "train images": len(listed.train),
        "test images": len(listed.test),
    }


class Photos(Pictures):
    """Image files with their classes and roles; items are (image, class, role)."""

    def __init__(
        self, folder: Path, listed: Sequence[tuple[str, int, int]], transform: Any
    ) -> None:
        super().__init__(folder, [(path, label) for path, label, _ in listed], transform)
        self.roles = np.array([role for *_, role in listed])

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:  # type: ignore[override]
        image, label = super().__getitem__(index)
        return image, label, int(self.roles[index])

    def fingerprint(self) -> str:
        return hashlib.sha256(super().fingerprint().encode() + self.roles.tobytes()).hexdigest()


def splits_of(folder: Path, listed: Listed, side: int, held_out: int) -> Splits:
    """Random crops of the training images, flipped or not; central crops of the others.

    Args:
        folder: that paths are relative to.
        side: pixels of an image's side.
        held_out: the last so many training classes are the validation set. With 0, it is a part of
            the training set, and shows no more than that the loss works.

    Raises:
        ValueError: fewer than two classes would be left.
    """
    count = 1 + max(label for _, label in listed.train)
    if not 0 <= held_out <= count - 2:
        raise ValueError(f"held_out must be from 0 to {count - 2} classes, got {held_out}")
    kept = count - held_out
    train = [(path, label, BOTH) for path, label in listed.train if label < kept]
    held = [(path, label, BOTH) for path, label in listed.train if label >= kept]

    def varied(picture: Any) -> Tensor:
        return normalized(random_flip(random_crop(picture, side)))

    def central(picture: Any) -> Tensor:
        return normalized(centre(picture, side, CENTRAL))

    return Splits(
        Photos(folder, train, varied),
        Photos(folder, held or train[:SHOWN], central),
        Photos(folder, listed.test, central),
    )
