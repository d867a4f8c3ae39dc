"""Images for retrieval, of glyphs and of CUB, Cars-196, In-Shop and SOP.

Classes of the test are not in training; of glyphs, those of validation neither.

Source: C. Wah et al., *The Caltech-UCSD Birds-200-2011 Dataset*, 2011; J. Krause et al., *3D Object
Representations for Fine-Grained Categorization*, 2013; Z. Liu et al., *DeepFashion*, 2016; H. Song
et al., *Deep Metric Learning via Lifted Structured Feature Embedding*, 2016.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from spherenorm_experiments.task import Splits
from spherenorm_paper.shared.augmentation import central, varied
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.glyphs import CHARACTERS, Appearance, glyph_images
from spherenorm_paper.shared.imagenet import Pictures

TRAIN, QUERY, GALLERY, BOTH = -1, 0, 1, 2
"""The role of an image; one of the test asks, is searched, or both: then it does not find
itself."""

ALPHABET = (
    *CHARACTERS,
    *"ΓΔΘΞΠΣΦΨΩαβγδζηθλμξπρσφψω",
    *"БДЖИЛЦЧШЪЫЭЮЯбджцшыэюя",
    *"&@#%§¶?$€£¥+~*ßæÆøþðŋ",
)
"""Characters that differ in shape in every one of the fonts."""

FONTS = (
    *("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf"),
    *("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSerif-Italic.ttf"),
    *("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSerif-BoldItalic.ttf"),
)
"""Fonts with the whole alphabet."""

PLAIN = (np.full((32, 32, 3), 128, dtype=np.uint8),)
"""Grounds of one colour: on textures no network learns enough in seconds."""


class Protocol(NamedTuple):
    """The division of glyphs into sets.

    Attributes:
        classes: characters of the training, validation and test set.
        images: of each character.
        queries: the first images of each character, the others being the gallery; 0: every image
            is both.
        appearance: of the glyphs.
    """

    classes: tuple[int, int, int]
    images: int
    queries: int = 0
    appearance: Appearance = Appearance(angle=5.0, scale=(0.8, 0.95), contrast=120.0)


TURNED = Appearance(angle=20.0, scale=(0.7, 0.95), contrast=120.0)
PROTOCOLS = {
    "few-classes": Protocol((24, 12, 24), 25),  # as CUB
    "turned": Protocol((24, 12, 24), 25, appearance=TURNED),  # as Cars-196
    "queries": Protocol((40, 20, 40), 12, queries=5),  # as In-Shop
    "few-images": Protocol((60, 20, 32), 8),  # as SOP
}


@functools.cache
def glyph_classes(name: str, size: int = 16) -> Splits:
    """Images of shape (3, size, size), standardized, classes and roles, by a protocol's name."""
    protocol, seed = PROTOCOLS[name], list(PROTOCOLS).index(name)
    order = np.random.default_rng(seed).permutation(len(ALPHABET))
    splits = []
    for part, end in enumerate(accumulate(protocol.classes)):
        count = protocol.classes[part]
        images, labels = glyph_images(
            count * protocol.images,
            10 * seed + part,
            size=size,
            characters=[ALPHABET[place] for place in order[end - count : end]],
            fonts=FONTS,
            grounds=PLAIN,
            appearance=protocol.appearance,
        )
        pixels, classes = (torch.from_numpy(images).float() - 127.5) / 70, torch.from_numpy(labels)
        roles = torch.full((len(classes),), BOTH)
        if protocol.queries:
            before = (classes[:, None] == classes).tril(-1).sum(1)
            roles = torch.where(before < protocol.queries, QUERY, GALLERY)
        splits.append((pixels, classes, roles))
    return Splits(*splits)


N_SHOWN = 5_000
"""Training images that are the validation set: they show no more than that the loss works."""

Row = tuple[str, int, int]
"""The path of an image in the data set's folder, its class, which counts from 0, and its role."""


def photos(data_set: str, side: int) -> Splits:
    """Random crops of the training images, flipped or not; central crops of the others.

    Args:
        data_set: a key of `SOURCES`.
        side: pixels of an image's side.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    return _splits(SOURCES[data_set][0].folder(), data_set, side)


@functools.lru_cache(maxsize=8)
def _splits(folder: Path, data_set: str, side: int) -> Splits:
    rows = list(SOURCES[data_set][1](folder))
    train = [(path, label, BOTH) for path, label, role in rows if role == TRAIN]
    test, crop = [row for row in rows if row[2] != TRAIN], central(side, 224 / 256)
    parts = (train, varied(side)), (train[:N_SHOWN], crop), (test, crop)
    return Splits(*(
        Pictures(folder, [row[:2] for row in part], view, [row[2] for row in part])
        for part, view in parts
    ))  # fmt: skip


def _fields(file: Path) -> list[list[str]]:
    """The words of each line that has some."""
    return [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _divided(images: Iterable[tuple[str, int]], trained: int) -> Iterator[Row]:
    """The first `trained` classes are for training; of the others every image is both."""
    return ((path, label, TRAIN if label < trained else BOTH) for path, label in images)


def _cub(folder: Path) -> Iterator[Row]:
    labels = dict(_fields(folder / "image_class_labels.txt"))
    images = _fields(folder / "images.txt")
    return _divided([(f"images/{path}", int(labels[n]) - 1) for n, path in images], 100)


def _cars(folder: Path) -> Iterator[Row]:
    from scipy.io import loadmat

    rows = loadmat(folder / "cars_annos.mat", squeeze_me=True)["annotations"]
    columns = zip(rows["relative_im_path"], rows["class"], strict=True)
    return _divided([(str(path), int(label) - 1) for path, label in columns], 98)


PARTITION = "Eval/list_eval_partition.txt"
ROLES = {"train": TRAIN, "query": QUERY, "gallery": GALLERY}


def _in_shop(folder: Path) -> Iterator[Row]:
    """The classes are the items, in the order of the list; those of training come first."""
    items: dict[str, int] = {}
    rows = _fields(folder / PARTITION)[2:]
    for path, item, status in sorted(rows, key=lambda row: row[2] != "train"):
        yield f"Img/{path}", items.setdefault(item, len(items)), ROLES[status]


def _products(folder: Path) -> Iterator[Row]:
    for name, role in (("Ebay_train.txt", TRAIN), ("Ebay_test.txt", BOTH)):
        for _, label, _, path in _fields(folder / name)[1:]:
            yield path, int(label) - 1, role


CUB, CARS = layout("cub"), layout("cars-196")
IN_SHOP, PRODUCTS = layout("in-shop"), layout("sop")
SOURCES = {
    "cub": (CUB, _cub),
    "cars-196": (CARS, _cars),
    "in-shop": (IN_SHOP, _in_shop),
    "sop": (PRODUCTS, _products),
}
"""The layout of each data set, and the reader of its lists."""
