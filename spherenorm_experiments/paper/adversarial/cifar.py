"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels, in ten classes.

Both official forms are read: `cifar-10-batches-bin`, and `cifar-10-batches-py`, whose pickles may
hold arrays, lists, bytes and numbers but no code.

Source: A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherenorm_experiments.paper.shared.layout import Layout

__all__ = ["LAYOUT", "CifarImages", "read_cifar10"]

BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
TRAIN, TEST = tuple(f"data_batch_{k}" for k in range(1, 6)), ("test_batch",)
SHAPE, PADDING = (3, 32, 32), 4

Bytes = NDArray[np.uint8]


def _count(folder: Path) -> dict[str, int]:
    parts = {name: read_cifar10(folder, name == "training")[1] for name in ("training", "test")}
    numbers = {f"{name} images": len(labels) for name, labels in parts.items()}
    return {**numbers, "classes": len(set(torch.cat(list(parts.values())).tolist()))}


LAYOUT = Layout(
    "cifar10",
    "CIFAR-10",
    """
cifar10/
  cifar-10-batches-bin/      or cifar-10-batches-py/, where files have no suffix
    data_batch_1.bin ... data_batch_5.bin
    test_batch.bin
""",
    tuple(f"{BINARY}/{name}.bin or {PYTHON}/{name}" for name in (*TRAIN, *TEST)),
    {"training images": 50_000, "test images": 10_000, "classes": 10},
    _count,
    "https://www.cs.toronto.edu/~kriz/cifar.html",
)


class CifarImages:
    """Images and labels as a map-style data set: (float image in [0, 1], label).

    Args:
        images: bytes of shape (n, 3, 32, 32).
        labels: of shape (n,).
        augment: pad by 4 black pixels and crop at a random place; flip with probability 1/2.

    Raises:
        ValueError: the numbers of images and labels differ.
    """

    def __init__(self, images: Tensor, labels: Tensor, augment: bool = False) -> None:
        if len(images) != len(labels):
            raise ValueError(f"images and labels must be as many, got {len(images)}, {len(labels)}")
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            image = _shifted(image)
            image = image.flip(2) if torch.rand(()) < 0.5 else image
        return image.float() / 255, self.labels[index]

    def fingerprint(self) -> str:
        """A hash of all bytes."""
        digest = hashlib.sha256(self.images.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        digest.update(str(self.augment).encode())
        return digest.hexdigest()


def _shifted(image: Tensor) -> Tensor:
    """A crop at a random place of the image with a black margin."""
    padded = torch.nn.functional.pad(image, (PADDING,) * 4)
    top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
    return padded[:, top : top + SHAPE[1], left : left + SHAPE[2]]


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Read one part, from the binary form if it is there, else from the pickles.

    Args:
        folder: of `cifar-10-batches-bin` or `cifar-10-batches-py`.

    Returns:
        Images as bytes of shape (n, 3, 32, 32), and labels of shape (n,).

    Raises:
        ValueError: a file is missing or cut off, a label is none of 0 to 9, or a pickle holds more
            than data.
    """
    LAYOUT.require(folder)
    form, read = (BINARY, _read_binary) if (folder / BINARY).is_dir() else (PYTHON, _read_pickle)
    parts = [read(folder / form / name) for name in (TRAIN if train else TEST)]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return torch.from_numpy(images.reshape(-1, *SHAPE)), torch.from_numpy(labels)


def _read_binary(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """Records of one byte for the label and 3,072 for the red, the green and the blue plane."""
    path = path.with_suffix(".bin")
    length = 1 + int(np.prod(SHAPE))
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % length:
        raise ValueError(f"{path} must have records of {length} bytes, got {len(content)} bytes")
    records = content.reshape(-1, length)
    return records[:, 1:], _checked(records[:, 0], path)


def _read_pickle(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    with path.open("rb") as file:
        content = _DataOnly(file, path).load()
    images = content.get(b"data") if isinstance(content, dict) else None
    if not isinstance(images, np.ndarray) or images.shape[1:] != (int(np.prod(SHAPE)),):
        raise ValueError(f"{path} must hold b'data' of shape (n, 3072)")
    labels = _checked(np.asarray(content.get(b"labels", ())), path)
    if len(labels) != len(images):
        raise ValueError(f"{path} has {len(images)} images but {len(labels)} labels")
    return images.astype(np.uint8), labels


def _checked(labels: NDArray[Any], path: Path) -> NDArray[np.int64]:
    if len(labels) and not 0 <= labels.min() <= labels.max() < 10:
        wrong = f"labels from {labels.min()} to {labels.max()}"
        raise ValueError(f"{path} must have labels from 0 to 9, got {wrong}")
    return labels.astype(np.int64)


class _DataOnly(pickle.Unpickler):
    """Loads arrays and plain values; a pickle that names any other object is refused."""

    ALLOWED = {  # noqa: RUF012
        "_reconstruct": np.empty(0).__reduce__()[0],
        "ndarray": np.ndarray,
        "dtype": np.dtype,
    }
    """Names in the pickle of an array; their module has changed between versions of NumPy."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.ALLOWED:
            return self.ALLOWED[name]
        if (module, name) == ("_codecs", "encode"):  # bytes, as Python 3 writes them
            return lambda text, encoding: text.encode(encoding)
        raise ValueError(f"{self._path} names {module}.{name}, which is no data; it is not loaded")
