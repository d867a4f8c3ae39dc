"""Scenes: several glyphs with their boxes on a photograph; embedded data of object detection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spherenorm_experiments.paper.shared.glyphs import (
    TRAIN_FONTS,
    blend,
    crop,
    mask,
    photographs,
    textures,
)

OBJECTS = "AKS"
"""The characters that are objects, the classes."""

MOST, EXTENT = 2, (0.3, 0.6)
"""Objects of an image; the least and largest share of it that a glyph's longer side takes."""

ANGLE, CONTRAST, TRIES = 15.0, 60.0, 20
"""The largest rotation; the least difference in brightness; places that are tried."""

Array = np.ndarray[Any, np.dtype[Any]]


def glyph_scenes(
    count: int,
    seed: int,
    *,
    size: int = 32,
    fonts: Sequence[str] = TRAIN_FONTS,
) -> tuple[Array, Array]:
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
    for i in range(count):
        scene = crop(_one_of(photographs(), random), size, size, random)
        placed = 0
        for _ in range(int(random.integers(1, MOST + 1))):
            label = int(random.integers(len(OBJECTS)))
            alpha = mask(
                OBJECTS[label],
                str(random.choice(fonts)),
                size * random.uniform(*EXTENT),
                angle=random.uniform(-ANGLE, ANGLE),
            )
            box = _free_place(alpha, size, objects[i, :placed], random)
            if box is None:
                continue
            scene = _drawn(scene, alpha, box, random)
            objects[i, placed] = (*box, label, 0)
            placed += 1
        images[i] = scene.transpose(2, 0, 1)
    return images, objects


def _one_of(images: Sequence[Array], random: np.random.Generator) -> Array:
    chosen: Array = images[int(random.integers(len(images)))]
    return chosen


def _free_place(
    alpha: Array, size: int, taken: Array, random: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """A box of the glyph's size that overlaps none that is taken; None if none was found."""
    height, width = alpha.shape
    for _ in range(TRIES):
        left = int(random.integers(size - width + 1))
        top = int(random.integers(size - height + 1))
        right, bottom = left + width, top + height
        apart = (
            (taken[:, 0] >= right)
            | (taken[:, 2] <= left)
            | (taken[:, 1] >= bottom)
            | (taken[:, 3] <= top)
        )
        if apart.all():
            return left, top, right, bottom
    return None


def _drawn(
    scene: Array, alpha: Array, box: tuple[int, int, int, int], random: np.random.Generator
) -> Array:
    """The scene with a glyph in the box, whose texture is brighter or darker than the ground."""
    left, top, right, bottom = box
    ground = scene[top:bottom, left:right].astype(np.float32)
    fill = crop(_one_of(textures(), random), bottom - top, right - left, random)
    level = ground.mean()
    room = np.array([level, 255 - level]) - CONTRAST  # below, above
    above = bool(room[1] > 0 and (room[0] <= 0 or random.random() < 0.5))
    shift = CONTRAST + random.uniform(0, max(0.0, room[int(above)]))
    tint = random.uniform(-30, 30, 3)
    filled = level + (shift if above else -shift) + tint + 0.5 * (fill - fill.mean())
    drawn: Array = scene.copy()
    drawn[top:bottom, left:right] = blend(ground, np.clip(filled, 0, 255), alpha)
    return drawn
