"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels, in ten classes.

Source: A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.layout import Layout, labeled

FOLDER = "cifar-10-batches-bin"
TRAIN, TEST = tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)
SHAPE, PADDING = (3, 32, 32), 4


class CifarImages:
    """Images and labels as a map-style data set: (float image in [0, 1], label).

    Args:
        images: bytes of shape (n, 3, 32, 32).
        labels: of shape (n,).
        augment: pad by 4 black pixels and crop at a random place; flip with probability 1/2.
    """

    def __init__(self, images: Tensor, labels: Tensor, augment: bool = False) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            padded = torch.nn.functional.pad(image, (PADDING,) * 4)
            top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
            image = padded[:, top : top + SHAPE[1], left : left + SHAPE[2]]
            image = image.flip(2) if torch.rand(()) < 0.5 else image
        return image.float() / 255, self.labels[index]

    def fingerprint(self) -> str:
        """A hash of all bytes."""
        digest = hashlib.sha256(self.images.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        digest.update(str(self.augment).encode())
        return digest.hexdigest()


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Read one part: images as bytes of shape (n, 3, 32, 32), and labels of shape (n,).

    A record has one byte for the label and 3,072 for the red, the green and the blue plane.

    Raises:
        ValueError: a file is cut off, or a label is none of 0 to 9.
    """
    length, parts = 1 + math.prod(SHAPE), []
    for name in TRAIN if train else TEST:
        content = np.fromfile(folder / FOLDER / name, dtype=np.uint8)
        if not len(content) or len(content) % length:
            wrong = f"must have records of {length} bytes, got {len(content)} bytes"
            raise ValueError(f"{folder / FOLDER / name} {wrong}")
        parts.append(content.reshape(-1, length))
        if (largest := parts[-1][:, 0].max()) > 9:
            wrong = f"must have labels from 0 to 9, got {largest}"
            raise ValueError(f"{folder / FOLDER / name} {wrong}")
    records = torch.from_numpy(np.concatenate(parts))
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].long()


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
