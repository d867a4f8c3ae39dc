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
KINDS = len(COLOURS)
"""Of grounds, one for each class."""

UNBIASED, BIASED = 0, 1
"""The parts of an evaluation split: the ground has nothing to do with the class, or all."""


def draw_grounds(labels: Tensor, rho: float, seed: int) -> Tensor:
    """The kind of each image's ground: its class, or another one.

    Of the n images of a class floor(rho n) have its ground; the others are divided evenly among
    the other kinds, up to one image.

    Args:
        labels: shape (n,), from 0 to 9.
        rho: in [0, 1].
        seed: of the images that have another ground.

    Raises:
        ValueError: rho is out of range.
    """
    if not 0 <= rho <= 1:
        raise ValueError(f"rho must be in [0, 1], got {rho!r}")
    random = torch.Generator().manual_seed(seed)
    grounds = labels.clone()
    for label in range(KINDS):
        items = torch.nonzero(labels == label).flatten()
        items = items[torch.randperm(len(items), generator=random)][int(rho * len(items)) :]
        others = torch.randperm(KINDS - 1, generator=random)
        others = others + (others >= label)  # all kinds but the class's own
        grounds[items] = others[torch.arange(len(items)) % (KINDS - 1)]
    return grounds


Painter = Callable[[Tensor, Tensor, int], Tensor]
"""Of strokes, of shape (n, height, width) with 0 where the ground is, of the kinds of the grounds,
of shape (n,), and of a seed: images, bytes of shape (n, 3, height, width)."""


def colour_strokes(strokes: Tensor, grounds: Tensor, seed: int = 0) -> Tensor:
    """White strokes on the ten colours; a `Painter` without randomness."""
    colours = torch.tensor(COLOURS, dtype=torch.uint8)[grounds][:, :, None, None]
    return torch.where(strokes[:, None] != 0, torch.full_like(colours, 255), colours)


def stripe_strokes(strokes: Tensor, grounds: Tensor, seed: int) -> Tensor:
    """Strokes in one gray over stripes of five directions and of 3 or 6 pixels; a `Painter`.

    A patch of a few pixels tells the stripes, but not the shape of the strokes. Phase, brightness
    and contrast are random.
    """
    random = torch.Generator().manual_seed(seed)
    n, height, width = strokes.shape
    phase, level, contrast, stroke = torch.rand(4, n, 1, 1, generator=random)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angle = (math.pi / 5) * (grounds % 5)[:, None, None]
    length = torch.tensor((3.0, 6.0))[grounds // 5][:, None, None]
    across = x * torch.cos(angle) + y * torch.sin(angle)
    wave = torch.sin(2 * math.pi * (across / length + phase))
    ground = 128 + 40 * (level - 0.5) + (40 + 40 * contrast) * wave
    image = torch.where(strokes != 0, 255 * (stroke > 0.5), ground.clamp(0, 255))
    return image.round().to(torch.uint8)[:, None].repeat(1, 3, 1, 1)


def _splits(rho: float, parts: Sequence[tuple[Tensor, Tensor]], paint: Painter) -> Splits:
    """Training images and classes; of the other parts images, classes, `UNBIASED` or `BIASED`.

    Each image of validation and test is there twice, without bias and with nothing else.
    """
    (strokes, labels), *evaluated = parts
    splits: list[Split] = [(paint(strokes, draw_grounds(labels, rho, 0), 0), labels)]
    for seed, (strokes, labels) in enumerate(evaluated, start=1):
        unbiased = paint(strokes, draw_grounds(labels, 1 / KINDS, seed), seed)
        both = torch.cat([unbiased, paint(strokes, labels, seed)])
        part = torch.tensor([UNBIASED, BIASED]).repeat_interleave(len(labels))
        splits.append((both, labels.repeat(2), part))
    return Splits(*splits)


PARTS = (slice(0, 1100), slice(1157, 1415), slice(1415, None))
"""The embedded digits of training, validation and test.

A writer's digits lie together, and those of one begin at 1029, 1157, 1287 and 1415: the last two
parts have writers that are in no other. 57 digits of a writer of training are left out, so that
batches of 50 are full.
"""


@functools.lru_cache(maxsize=8)
def handwritten(rho: float, size: int, paint: Painter) -> Splits:
    """The splits of scikit-learn's digits on grounds."""
    strokes, labels = handwritten_digits(size)
    return _splits(rho, [(strokes[part], labels[part]) for part in PARTS], paint)


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


def read_mnist(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Images of a part as bytes of shape (n, 28, 28), and labels of shape (n,)."""
    part = "train" if train else "t10k"
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte")
    return _read_idx(folder / f"{part}-images-idx3-ubyte"), labels.long()


def _read_idx(path: Path) -> Tensor:
    """The bytes of an IDX file, plain or gzipped.

    It has 0, 0, the code 8 of bytes, the number of dimensions, their sizes as 32-bit integers,
    highest byte first, and the data.
    """
    zipped = path.with_name(f"{path.name}.gz")
    content = path.read_bytes() if path.is_file() else gzip.decompress(zipped.read_bytes())
    sizes = np.frombuffer(content, ">u4", content[3], offset=4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes))
    return torch.from_numpy(data.reshape(sizes).copy())


MNIST = layout("mnist", of_labels(read_mnist))

HELD_OUT = 1000
"""Training images of MNIST, at most half, on which hyper-parameters are chosen."""


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
