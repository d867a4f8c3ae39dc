"""Digits with a shortcut: the ground tells the class in nearly all training images.

The ground is a colour (Biased MNIST) or stripes. With probability rho it is the one of the
image's class, else one of the others: rho = 1 / classes has no bias.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
Y. LeCun et al., *Gradient-Based Learning Applied to Document Recognition*, 1998 (MNIST).
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.shared.facts import layout, of_labels
from spherenorm_experiments.task import Split, Splits

COLOURS = (
    *((255, 0, 0), (0, 255, 0), (0, 0, 255), (225, 225, 0), (225, 0, 225)),
    *((0, 255, 255), (255, 128, 0), (255, 0, 128), (128, 0, 255), (128, 128, 128)),
)
"""Red, green and blue of the ten classes' grounds, as released with ReBias."""

DIRECTIONS, WAVELENGTHS = 5, (3.0, 6.0)
"""Of the stripes: directions, and pixels from one to the next."""

PARTS = (slice(0, 1100), slice(1157, 1415), slice(1415, None))
"""The embedded digits of training, validation and test.

A writer's digits lie together, and those of one begin at 1029, 1157, 1287 and 1415: the last two
parts have writers that are in no other. 57 digits of a writer of training are left out, so that
batches of 50 are full.
"""

HELD_OUT = 1000
"""Training images of MNIST on which hyper-parameters are chosen."""

UNBIASED, BIASED = 0, 1
"""The parts of an evaluation split: the ground has nothing to do with the class, or all."""


@functools.lru_cache(maxsize=8)
def digits(rho: float) -> Splits:
    """Handwritten digits of 8 x 8 pixels on colours, see `_splits`."""
    return _splits(rho, _by_writers(8), colour_strokes)


@functools.lru_cache(maxsize=8)
def stripes(rho: float) -> Splits:
    """Those of 12 x 12 pixels on stripes."""
    return _splits(rho, _by_writers(12), stripe_strokes)


def _by_writers(size: int) -> list[tuple[Tensor, Tensor]]:
    strokes, labels = handwritten_digits(size)
    return [(strokes[part], labels[part]) for part in PARTS]


def handwritten_digits(size: int = 8) -> tuple[Tensor, Tensor]:
    """Scikit-learn's 1,797 digits, writer after writer.

    Args:
        size: pixels of a side; other sizes than 8 are interpolated.

    Returns:
        Strokes of shape (n, size, size), pixels of at least half the largest value; and classes.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    gray = torch.from_numpy(images).reshape(-1, 1, 8, 8)
    gray = F.interpolate(gray, size=(size, size), mode="bilinear", antialias=False)
    return gray[:, 0] >= images.max() / 2, torch.from_numpy(labels)


def _splits(
    rho: float,
    parts: Sequence[tuple[Tensor, Tensor]],
    paint: Callable[[Tensor, Tensor, int], Tensor],
) -> Splits:
    """Training images and classes; of the other parts images, classes, `UNBIASED` or `BIASED`.

    Each image of validation and test is there twice, without bias and with nothing else.
    """
    kinds, splits = len(COLOURS), list[Split]()
    for seed, (strokes, labels) in enumerate(parts):
        share = 1 / kinds if splits else rho
        image = paint(strokes, draw_grounds(labels, share, kinds, seed), seed)
        if not splits:
            splits.append((image, labels))
            continue
        part = torch.tensor([UNBIASED, BIASED]).repeat_interleave(len(labels))
        both = torch.cat([image, paint(strokes, labels, seed)])
        splits.append((both, labels.repeat(2), part))
    return Splits(*splits)


def draw_grounds(labels: Tensor, rho: float, kinds: int, seed: int) -> Tensor:
    """The kind of each image's ground: its class, or another one.

    Of the n images of a class floor(rho n) have its ground; the others are divided evenly among
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


def colour_strokes(strokes: Tensor, grounds: Tensor, seed: int = 0) -> Tensor:
    """White strokes on grounds of the ten colours; bytes of shape (n, 3, height, width).

    Args:
        strokes: shape (n, height, width); 0 is ground, any other value is stroke.
        grounds: shape (n,).
        seed: of nothing here.
    """
    colours = torch.tensor(COLOURS, dtype=torch.uint8)[grounds][:, :, None, None]
    return torch.where(strokes[:, None] != 0, torch.full_like(colours, 255), colours)


def stripe_strokes(strokes: Tensor, grounds: Tensor, seed: int) -> Tensor:
    """Strokes in one gray over stripes of ten kinds: five directions, two widths.

    A patch of a few pixels tells the stripes, but not the shape of the strokes. Phase, brightness
    and contrast are random, by the seed. Else as `colour_strokes`.
    """
    random = torch.Generator().manual_seed(seed)
    n, height, width = strokes.shape
    phase, level, contrast, stroke = torch.rand(4, n, 1, 1, generator=random)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angle = (math.pi / DIRECTIONS) * (grounds % DIRECTIONS)[:, None, None]
    length = torch.tensor(WAVELENGTHS)[grounds // DIRECTIONS][:, None, None]
    across = x * torch.cos(angle) + y * torch.sin(angle)
    wave = torch.sin(2 * math.pi * (across / length + phase))
    ground = 128 + 40 * (level - 0.5) + (40 + 40 * contrast) * wave
    image = torch.where(strokes != 0, 255 * (stroke > 0.5), ground.clamp(0, 255))
    return image.round().to(torch.uint8)[:, None].repeat(1, 3, 1, 1)


def read_mnist(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Images of a part as bytes of shape (n, 28, 28), and labels of shape (n,).

    Raises:
        ValueError: a file has another format.
    """
    images, labels = FILES[:2] if train else FILES[2:]
    return _read_idx(folder / images), _read_idx(folder / labels).long()


def _read_idx(path: Path) -> Tensor:
    """The bytes of an IDX file, plain or gzipped.

    It has 0, 0, the code 8 of bytes, the number of dimensions, their sizes as 32-bit integers,
    highest byte first, and the data.
    """
    zipped = path.with_name(f"{path.name}.gz")
    content = path.read_bytes() if path.is_file() else gzip.decompress(zipped.read_bytes())
    if content[:3] != bytes((0, 0, 8)):
        raise ValueError(f"{path} is no IDX file of bytes; it starts with {content[:4].hex()!r}")
    sizes = np.frombuffer(content, ">u4", content[3], offset=4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes))
    return torch.from_numpy(data.reshape(sizes).copy())


FILES = tuple(
    f"{part}-{name}"
    for part in ("train", "t10k")
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
MNIST = layout("mnist", of_labels(read_mnist))


@MNIST.reader
def biased_mnist(folder: Path, rho: float) -> Splits:
    """MNIST on colours.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    strokes, labels = read_mnist(folder, train=True)
    held = min(HELD_OUT, len(labels) // 2)
    parts = (strokes[:-held], labels[:-held]), (strokes[-held:], labels[-held:])
    return _splits(rho, (*parts, read_mnist(folder, train=False)), colour_strokes)
