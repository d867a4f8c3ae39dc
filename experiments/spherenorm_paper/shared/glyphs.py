"""Glyphs of many fonts on real textures and photographs: small images on which optimizers differ.

Fonts of training, validation and test are different, so that a network must learn shapes. Glyphs
are rotated, shifted, scaled, and drawn with one texture over another.

Source: DejaVu, STIX and Computer Modern, the fonts that matplotlib brings along; textures and
photographs of scikit-image (grass, gravel, brick; astronaut, coffee, cat, rocket, ...).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.lookup import require_extra

CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabdefghkmnqrt23456789"
"""Characters that differ in shape, not in size or height alone: no o and O, no 1 and l."""

TRAIN_FONTS = (
    *("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf"),
    *("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSerif-Italic.ttf"),
    *("STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf", "cmr10.ttf"),
)
VALIDATION_FONTS = (
    *("DejaVuSansMono-Oblique.ttf", "DejaVuSans-BoldOblique.ttf"),
    *("cmss10.ttf", "cmti10.ttf"),
)
TEST_FONTS = (
    *("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSerif-BoldItalic.ttf"),
    *("STIXGeneralBolIta.ttf", "cmb10.ttf", "cmtt10.ttf"),
)
"""Validation is drawn as the test is: from fonts that no other set has."""

FONTS = (TRAIN_FONTS, VALIDATION_FONTS, TEST_FONTS)

Image = np.ndarray[Any, np.dtype[Any]]
"""Bytes of shape (height, width, 3), or shares in [0, 1] of shape (height, width)."""


@dataclass(frozen=True)
class Appearance:
    """The ranges that glyphs are drawn from.

    Attributes:
        angle: the largest rotation, in degrees, either way.
        scale: the smallest and largest share of the image that a glyph's longer side takes.
        shift: the largest shift from the centre, as a share of the room that is left.
        contrast: the mean brightness of glyph and ground differ by at least this, of 255.
    """

    angle: float = 25.0
    scale: tuple[float, float] = (0.55, 0.9)
    shift: float = 1.0
    contrast: float = 50.0


def glyph_images(
    count: int,
    seed: int,
    *,
    size: int = 32,
    characters: Sequence[str] = CHARACTERS,
    fonts: Sequence[str] = TRAIN_FONTS,
    grounds: Sequence[Image] | None = None,
    appearance: Appearance = Appearance(),
) -> tuple[Image, Image]:
    """Draw glyphs, one to an image, each filled with one ground and drawn over another.

    Args:
        count: of images.
        seed: of all that is random; the same seed gives the same bytes.
        size: pixels of a side.
        characters: the classes; every class is equally frequent, up to one image.
        fonts: files of matplotlib's fonts.
        grounds: images to fill and to draw over; all textures by default.

    Returns:
        Bytes of shape (count, 3, size, size), and the classes' indices, of shape (count,).

    Example:
        >>> images, labels = glyph_images(4, 0, size=16, characters="AB")
        >>> images.shape, images.dtype, sorted(labels.tolist())
        ((4, 3, 16, 16), dtype('uint8'), [0, 0, 1, 1])
    """
    random = np.random.default_rng(seed)
    grounds = textures() if grounds is None else grounds
    labels = random.permutation(np.arange(count) % len(characters))
    images = np.empty((count, 3, size, size), dtype=np.uint8)
    for i, label in enumerate(labels):
        alpha = _place(characters[label], str(random.choice(fonts)), size, random, appearance)
        fill, ground = _contrasting(grounds, size, random, appearance.contrast)
        images[i] = blend(ground, fill, alpha).transpose(2, 0, 1)
    return images, labels


def by_fonts(
    draw: Callable[..., tuple[Image, Image]], counts: Sequence[int], **how: Any
) -> list[tuple[Tensor, Tensor]]:
    """Images and targets of training, validation and test, each from fonts and a seed of its own.

    Args:
        draw: `glyph_images`, or a function with its count, seed and fonts.
        counts: of each set.
        how: the images are drawn.
    """
    parts = enumerate(zip(counts, FONTS, strict=True))
    drawn = (draw(count, seed, fonts=fonts, **how) for seed, (count, fonts) in parts)
    return [(torch.from_numpy(images), torch.from_numpy(targets)) for images, targets in drawn]


def mask(character: str, font: str, extent: float, *, angle: float = 0.0, margin: int = 0) -> Image:
    """A glyph's coverage, cut to its own box.

    Args:
        extent: pixels of the longer side.
        font: a file of matplotlib's fonts.
        angle: degrees, counter-clockwise.
        margin: empty pixels around it.

    Returns:
        Shares in [0, 1], of shape (height, width).

    Raises:
        ValueError: the font has no such glyph.
    """
    pillow = require_extra("PIL.Image", "drawing glyphs")
    alpha = pillow.fromarray(_outline(character, font)).rotate(
        angle, resample=pillow.Resampling.BILINEAR, expand=True
    )
    alpha = alpha.crop(alpha.getbbox())
    factor = extent / max(alpha.size)
    width, height = (max(1, round(side * factor)) for side in alpha.size)
    drawn = alpha.resize((width, height), pillow.Resampling.BOX if factor < 1 else None)
    padded: Image = np.pad(np.asarray(drawn, dtype=np.float32) / 255, margin)
    return padded


def crop(image: Image, height: int, width: int, random: np.random.Generator) -> Image:
    """A random part of an image, of shape (height, width, 3)."""
    top, x0 = (
        int(random.integers(full - part + 1))
        for full, part in zip(image.shape[:2], (height, width), strict=True)
    )
    part: Image = image[top : top + height, x0 : x0 + width]
    return part


def blend(ground: Image, fill: Image, alpha: Image) -> Image:
    """(1 - alpha) ground + alpha fill, as bytes of shape (height, width, 3)."""
    share = alpha[..., None]
    blended: Image = np.rint((1 - share) * ground + share * fill).astype(np.uint8)
    return blended


@functools.cache
def textures() -> tuple[Image, ...]:
    """Grass, gravel and brick, and coloured ones cut from photographs; each at least 128 x 128."""
    gray = [_picture(name) for name in ("grass.png", "gravel.png", "brick.png")]
    retina = _picture("retina.jpg")[400:1000, 400:1000]
    cells = _picture("ihc.png")
    return (*gray, _shrunk(retina, 4), cells, _picture("coins.png")[:300, :300])


@functools.cache
def photographs() -> tuple[Image, ...]:
    """Photographs of scikit-image, in colour and at most 256 pixels on their shorter side."""
    names = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png",
             "hubble_deep_field.jpg")  # fmt: skip
    pictures = [_picture(name) for name in names]
    return tuple(_shrunk(image, max(1, min(image.shape[:2]) // 200)) for image in pictures)


def _place(
    character: str, font: str, size: int, random: np.random.Generator, appearance: Appearance
) -> Image:
    """A glyph's coverage at a random place of the image."""
    extent = size * random.uniform(*appearance.scale)
    drawn = mask(character, font, extent, angle=random.uniform(-1, 1) * appearance.angle)
    canvas = np.zeros((size, size), dtype=np.float32)
    room = np.array(canvas.shape) - drawn.shape
    shift = random.uniform(-1, 1, 2) * appearance.shift
    top, x0 = np.rint(room * (1 + shift) / 2).astype(int)
    canvas[top : top + drawn.shape[0], x0 : x0 + drawn.shape[1]] = drawn
    return canvas


def _contrasting(
    grounds: Sequence[Image], size: int, random: np.random.Generator, contrast: float
) -> tuple[Image, Image]:
    """Two random parts in random colours, whose brightness differs by at least the contrast."""
    parts = [
        crop(grounds[int(random.integers(len(grounds)))], size, size, random).astype(np.float32)
        for _ in range(2)
    ]
    low = random.uniform(0, 255 - contrast)
    high = random.uniform(low + contrast, 255)
    levels = random.permutation([low, high])
    colored = []
    for part, level in zip(parts, levels, strict=True):
        tint = random.uniform(-30, 30, 3)
        centered = 0.5 * (part - part.mean())
        colored.append(np.clip(level + tint + centered, 0, 255).astype(np.float32))
    return colored[0], colored[1]


@functools.lru_cache(maxsize=4096)
def _outline(character: str, font: str, extent: int = 96) -> Image:
    """The glyph's coverage at a large size, as bytes."""
    pillow, fonts = (
        require_extra(f"PIL.{part}", "drawing glyphs") for part in ("Image", "ImageFont")
    )
    draw = require_extra("PIL.ImageDraw", "drawing glyphs")
    face = fonts.truetype(str(_font_folder() / font), extent)
    canvas = pillow.new("L", (3 * extent, 3 * extent))
    draw.Draw(canvas).text((extent, extent // 2), character, fill=255, font=face)
    box = canvas.getbbox()
    if box is None:
        raise ValueError(f"font {font!r} has no glyph for {character!r}")
    return np.asarray(canvas.crop(box))


@functools.cache
def _font_folder() -> Path:
    matplotlib = require_extra("matplotlib", "drawing glyphs")
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@functools.cache
def _picture(name: str) -> Image:
    """A picture of scikit-image's package, in colour."""
    skimage = require_extra("skimage", "textures and photographs")
    pillow = require_extra("PIL.Image", "textures and photographs")
    with pillow.open(Path(skimage.__file__).parent / "data" / name) as image:
        return np.asarray(image.convert("RGB"))


def _shrunk(image: Image, factor: int) -> Image:
    """The image with both sides divided by a whole number: means over squares of pixels."""
    height, width = (side // factor * factor for side in image.shape[:2])
    squares = image[:height, :width].reshape(height // factor, factor, width // factor, factor, 3)
    means: Image = np.rint(squares.mean(axis=(1, 3))).astype(np.uint8)
    return means
