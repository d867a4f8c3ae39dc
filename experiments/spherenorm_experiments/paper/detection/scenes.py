"""Scenes: several glyphs with their boxes on a photograph; embedded data of object detection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spherenorm_experiments.paper.shared import glyphs
from spherenorm_experiments.paper.shared.glyphs import Image

OBJECTS = "AKS"
"""The characters that are objects, the classes."""

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
        scene, placed = _part_of_one(glyphs.photographs(), size, size, random).copy(), 0
        for _ in range(int(random.integers(1, MOST + 1))):
            label = int(random.integers(len(OBJECTS)))
            font, extent = str(random.choice(fonts)), size * random.uniform(*EXTENT)
            alpha = glyphs.mask(OBJECTS[label], font, extent, angle=random.uniform(-ANGLE, ANGLE))
            for _ in range(TRIES):
                box = _box(alpha, size, random)
                if all((box[:2] >= other[2:4]).any() or (box[2:] <= other[:2]).any()
                       for other in rows[:placed]):  # fmt: skip
                    _draw(scene, alpha, box, random)
                    rows[placed] = (*box, label, 0)
                    placed += 1
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
    left, top = (int(random.integers(size - side + 1)) for side in (width, height))
    return np.array([left, top, left + width, top + height])


def _draw(scene: Image, alpha: Image, box: Image, random: np.random.Generator) -> None:
    """Draw a glyph in the box, whose texture is brighter or darker than the ground."""
    left, top, right, bottom = box
    part = scene[top:bottom, left:right]
    ground = part.astype(np.float32)
    fill = _part_of_one(glyphs.textures(), *alpha.shape, random)
    level = ground.mean()
    below, above = level - CONTRAST, 255 - level - CONTRAST  # the room for a shift
    up = bool(above > 0 and (below <= 0 or random.random() < 0.5))
    shift = CONTRAST + random.uniform(0, max(0.0, above if up else below))
    tint = random.uniform(-30, 30, 3)
    filled = level + (shift if up else -shift) + tint + 0.5 * (fill - fill.mean())
    part[:] = glyphs.blend(ground, np.clip(filled, 0, 255), alpha)
