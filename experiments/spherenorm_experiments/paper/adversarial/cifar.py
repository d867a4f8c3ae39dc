"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels, in ten classes.

Source: A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.shared.items import Items
from spherenorm_experiments.paper.shared.layout import Layout, labeled
from spherenorm_experiments.task import Splits

FOLDER = "cifar-10-batches-bin"
TRAIN, TEST = tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)
PADDING = 4

HELD_OUT = 1000
"""Training images on which hyper-parameters are chosen."""


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Read one part: images as bytes of shape (n, 3, 32, 32), and labels of shape (n,).

    A record has one byte for the label and 3,072 for the red, the green and the blue plane.

    Raises:
        ValueError: a file is cut off.
    """
    parts = []
    for name in TRAIN if train else TEST:
        content = np.fromfile(folder / FOLDER / name, dtype=np.uint8)
        if not len(content) or len(content) % 3073:
            wrong = f"must have records of 3073 bytes, got {len(content)} bytes"
            raise ValueError(f"{folder / FOLDER / name} {wrong}")
        parts.append(content.reshape(-1, 3073))
    records = torch.from_numpy(np.concatenate(parts))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


LAYOUT = Layout(
    name="cifar10",
    title="CIFAR-10",
    tree="""
cifar10/
  cifar-10-batches-bin/      the binary version
    data_batch_1.bin ... data_batch_5.bin
    test_batch.bin
""",
    paths=tuple(f"{FOLDER}/{name}" for name in (*TRAIN, *TEST)),
    statistics=labeled(read_cifar10, 50_000, 10_000),
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
)


@LAYOUT.reader
def cifar10(folder: Path) -> Splits:
    """Images in [0, 1] with labels; those of training are shifted and flipped."""
    images, labels = read_cifar10(folder, train=True)
    held = min(HELD_OUT, len(labels) // 2)
    tested, classes = read_cifar10(folder, train=False)
    return Splits(
        Items(shifted, images[:-held], labels[:-held], form="shifted"),
        (images[-held:].float() / 255, labels[-held:]),
        (tested.float() / 255, classes),
    )


def shifted(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The image padded by 4 black pixels, cropped at a random place, flipped with probability 1/2.

    Args:
        image: bytes of shape (3, 32, 32).
        label: of the image.
    """
    top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
    image = F.pad(image, (PADDING,) * 4)[:, top : top + 32, left : left + 32]
    return (image.flip(2) if torch.rand(()) < 0.5 else image).float() / 255, label
