"""Images with a shortcut: the ground tells the class in nearly all training images.

The ground is a colour (Biased MNIST) or a texture. With probability rho it is the one of the
image's class, else one of the others: rho = 1 / classes has no bias.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.data import glyphs

__all__ = [
    "COLOURS",
    "colour_strokes",
    "draw_glyphs",
    "draw_grounds",
    "handwritten_digits",
    "on_textures",
]

COLOURS = (
    *((255, 0, 0), (0, 255, 0), (0, 0, 255), (225, 225, 0), (225, 0, 225)),
    *((0, 255, 255), (255, 128, 0), (255, 0, 128), (128, 0, 255), (128, 128, 128)),
)
"""Red, green and blue of the ten classes' grounds, as released with ReBias."""

APPEARANCE = glyphs.Appearance(angle=8.0, scale=(0.8, 1.0))


def draw_grounds(labels: Tensor, rho: float, kinds: int, seed: int) -> Tensor:
    """The kind of each image's ground: its class, or another one.

    Of the n images of a class floor(rho n) have its own ground; the others are divided evenly among
    the other kinds, up to one image.

    Args:
        labels: shape (n,), each below `kinds`.
        rho: in [0, 1].
        kinds: of grounds.
        seed: of the images that have another ground.

    Raises:
        ValueError: rho is out of range.
    """
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must be in [0, 1], got {rho!r}")
    random = torch.Generator().manual_seed(seed)
    grounds = labels.clone()
    for label in range(kinds):
        items = torch.nonzero(labels == label).flatten()
        items = items[torch.randperm(len(items), generator=random)][int(rho * len(items)) :]
        others = torch.randperm(kinds - 1, generator=random)
        others = others + (others >= label)  # all kinds but the class's own
        grounds[items] = others[torch.arange(len(items)) % (kinds - 1)]
    return grounds


def colour_strokes(strokes: Tensor, grounds: Tensor) -> Tensor:
    """White strokes on grounds of the ten colours.

    Args:
        strokes: shape (n, height, width); 0 is ground, any other value is stroke.
        grounds: shape (n,).

    Returns:
        Bytes of shape (n, 3, height, width).
    """
    colours = torch.tensor(COLOURS, dtype=torch.uint8)[grounds][:, :, None, None]
    return torch.where(strokes[:, None] != 0, torch.full_like(colours, 255), colours)


def handwritten_digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels, writer after writer.

    Returns:
        Strokes of shape (n, 8, 8), pixels of at least half the largest value; and classes.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images >= images.max() / 2).reshape(-1, 8, 8), torch.from_numpy(labels)


def draw_glyphs(
    count: int, seed: int, size: int, characters: str, fonts: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Draw glyphs without grounds.

    Returns:
        Coverages as bytes of shape (count, size, size), and classes of shape (count,).
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % len(characters))
    drawn = [
        glyphs.placed(characters[label], str(random.choice(fonts)), size, random, APPEARANCE)
        for label in labels
    ]
    coverages = np.rint(255 * np.stack(drawn)).astype(np.uint8)
    return torch.from_numpy(coverages), torch.from_numpy(labels)


def on_textures(coverages: Tensor, grounds: Tensor, seed: int) -> Tensor:
    """Draw glyphs in one brightness over parts of textures and photographs.

    Args:
        coverages: bytes of shape (n, size, size).
        grounds: shape (n,), indices of textures.

    Returns:
        Bytes of shape (n, 3, size, size).
    """
    random: Any = np.random.default_rng(seed)
    size, pictures = coverages.shape[-1], (*glyphs.textures(), *glyphs.photographs())
    images = np.empty((len(coverages), size, size, 3), dtype=np.uint8)
    for i, (alpha, kind) in enumerate(zip(coverages.numpy(), grounds.tolist(), strict=True)):
        ground = glyphs.crop(pictures[kind], size, size, random).astype(np.float32)
        level = random.choice([random.uniform(0, 60), random.uniform(195, 255)])
        images[i] = glyphs.blend(ground, np.full_like(ground, level), alpha / 255)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
