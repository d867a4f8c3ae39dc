"""Glyphs for retrieval: characters of training, validation and test are different ones."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.glyphs import CHARACTERS, Appearance, glyph_images
from spherenorm_experiments.task import Splits

QUERY, GALLERY, BOTH = 0, 1, 2
"""The role of a test image: it asks, it is searched, or both; then it does not find itself."""

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

UPRIGHT = Appearance(angle=5.0, scale=(0.8, 0.95), contrast=120.0)
TURNED = Appearance(angle=20.0, scale=(0.7, 0.95), contrast=120.0)

PLAIN = (np.full((32, 32, 3), 128, dtype=np.uint8),)
"""Grounds of one colour: on textures no network learns enough in seconds."""


class Protocol(NamedTuple):
    """The division of glyphs into sets.

    Attributes:
        classes: characters of the training, validation and test set.
        images: of each character.
        queries: images of each test character that are queries, the others being the gallery; 0:
            every image is both.
        appearance: of the glyphs.
    """

    classes: tuple[int, int, int]
    images: int
    queries: int = 0
    appearance: Appearance = UPRIGHT


PROTOCOLS = {
    "few-classes": Protocol((24, 12, 24), 25),  # as CUB
    "turned": Protocol((24, 12, 24), 25, appearance=TURNED),  # as Cars-196
    "queries": Protocol((40, 20, 40), 12, queries=5),  # as In-Shop
    "few-images": Protocol((60, 20, 32), 8),  # as SOP
}


@functools.cache
def glyph_classes(name: str, size: int) -> Splits:
    """Images of shape (3, size, size), standardized, classes and roles.

    Args:
        name: of a protocol.
        size: pixels of a side.
    """
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
        splits.append((pixels, classes, _roles(classes, protocol.queries)))
    return Splits(*splits)


def _roles(labels: Tensor, queries: int) -> Tensor:
    """The first images of a class are its queries."""
    if not queries:
        return torch.full((len(labels),), BOTH)
    before = (labels[:, None] == labels).tril(-1).sum(1)
    return torch.where(before < queries, QUERY, GALLERY)
