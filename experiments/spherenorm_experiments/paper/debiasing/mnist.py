"""MNIST: 60,000 training and 10,000 test digits of 28 x 28 pixels, in the IDX format.

Source: Y. LeCun et al., *Gradient-Based Learning Applied to Document Recognition*, 1998.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.layout import Layout, labeled

UNSIGNED_BYTE = 8
"""The code of the only type of entries that MNIST has."""

FILES = tuple(
    f"{part}-{name}"
    for part in ("train", "t10k")
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
)


def read_mnist(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Read one part, from plain or gzipped files.

    Returns:
        Images as bytes of shape (n, 28, 28), and labels of shape (n,).

    Raises:
        ValueError: a file is damaged, or the numbers of images and labels differ.
    """
    part = "train" if train else "t10k"
    images = _read_idx(folder / f"{part}-images-idx3-ubyte")
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte").long()
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        wrong = f"{tuple(images.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"{folder}: {part} must have a label for each image, got shapes {wrong}")
    return images, labels


def _read_idx(path: Path) -> Tensor:
    """The bytes of an IDX file: 0, 0, the type's code, the number of dimensions, the sizes, data.

    Sizes are 32-bit integers, highest byte first.

    Raises:
        ValueError: another type or a wrong length.
    """
    path = path if path.is_file() else path.with_name(f"{path.name}.gz")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read()
    if len(content) < 4 or content[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise ValueError(f"{path} is no IDX file of bytes; it starts with {content[:4].hex()!r}")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist()
    if len(shape) != content[3] or len(content) - start != math.prod(shape):
        got = len(content) - start
        raise ValueError(f"{path} must have {math.prod(shape)} bytes of shape {shape}, got {got}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


LAYOUT = Layout(
    name="mnist",
    title="MNIST",
    tree="""
mnist/
  train-images-idx3-ubyte    or train-images-idx3-ubyte.gz, and so on
  train-labels-idx1-ubyte
  t10k-images-idx3-ubyte
  t10k-labels-idx1-ubyte
""",
    paths=tuple(f"{name} or {name}.gz" for name in FILES),
    statistics=labeled(read_mnist, 60_000, 10_000),
    source="http://yann.lecun.com/exdb/mnist",
)
