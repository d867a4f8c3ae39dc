"""Images with a shortcut: digits whose ground tells the class, and the 9-Class ImageNet.

The ground is a colour (Biased MNIST) or stripes. With probability rho it is the one of the
image's class, else one of the others: rho = 1 / classes has no bias.

The 9-Class ImageNet has 42 synsets of ImageNet in nine animals, and the same of ImageNet-A. Its
unbiased accuracy needs to know which validation images have similar textures: the clusters that
were released with ReBias.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
Y. LeCun et al., *Gradient-Based Learning Applied to Document Recognition*, 1998 (MNIST);
D. Hendrycks et al., *Natural Adversarial Examples*, 2021.
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import ConcatDataset

from spherenorm_experiments.task import Split, Splits
from spherenorm_paper.shared import imagenet
from spherenorm_paper.shared.augmentation import central, varied
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.imagenet import JPEG, Pictures, jpeg_files

COLOURS = (
    *((255, 0, 0), (0, 255, 0), (0, 0, 255), (225, 225, 0), (225, 0, 225)),
    *((0, 255, 255), (255, 128, 0), (255, 0, 128), (128, 0, 255), (128, 128, 128)),
)
"""Red, green and blue of the ten classes' grounds, as released with ReBias."""
KINDS = len(COLOURS)
"""Kinds of grounds, one for each class."""

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
        other_kinds = torch.randperm(KINDS - 1, generator=random)
        other_kinds = other_kinds + (other_kinds >= label)  # all kinds but the class's own
        grounds[items] = other_kinds[torch.arange(len(items)) % (KINDS - 1)]
    return grounds


Painter = Callable[[Tensor, Tensor, int], Tensor]
"""A function that paints strokes: of these, of shape (n, height, width) with 0 where the ground is,
of the kinds of the grounds, of shape (n,), and of a seed. It returns images, bytes of shape
(n, 3, height, width)."""


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
        images = torch.cat([unbiased, paint(strokes, labels, seed)])
        part = torch.tensor([UNBIASED, BIASED]).repeat_interleave(len(labels))
        splits.append((images, labels.repeat(2), part))
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


MNIST = layout("mnist")

HELD_OUT = 1000
"""Training images of MNIST, at most half, on which hyper-parameters are chosen."""


@MNIST.reader
def biased_mnist(folder: Path, rho: float) -> Splits:
    """MNIST on colours.

    Raises:
        ValueError: no folder was given, or it has another layout.
    """
    strokes, labels = read_mnist(folder, train=True)
    n_validation = min(HELD_OUT, len(labels) // 2)
    parts = (
        (strokes[:-n_validation], labels[:-n_validation]),
        (strokes[-n_validation:], labels[-n_validation:]),
    )
    return _splits(rho, (*parts, read_mnist(folder, train=False)), colour_strokes)


SYNSETS = {
    "dog": "n02085620 n02099601 n02106550 n02106662 n02110958",
    "cat": "n02123045 n02123159 n02123394 n02123597 n02124075",
    "frog": "n01641577 n01644373 n01644900",
    "turtle": "n01664065 n01665541 n01667114 n01667778 n01669191",
    "bird": "n01819313 n01820546 n01833805 n01843383 n01847000",
    "monkey": "n02486410 n02487347 n02488291 n02488702 n02492035",
    "fish": "n02607072 n02640242 n02641379 n02643566 n02655020",
    "crab": "n01978287 n01978455 n01980166 n01981276",
    "insect": "n02174001 n02177972 n02190166 n02206856 n02219486",
}
"""The synsets of each class, as released with ReBias; the classes are in its order."""

CLASS = {s: k for k, group in enumerate(SYNSETS.values()) for s in group.split()}
"""The class of each synset."""

CLUSTERS = "9class_imagenet_val.csv"
IMAGENET, IMAGENET_A, OF_TRAINING = 0, 1, 2
"""The part that an item to be judged belongs to."""

HELD_OUT_EACH = 10
"""Training files of each synset, at most half, on which hyper-parameters are chosen."""


def _clustered(folder: Path) -> pd.DataFrame:
    """The paths of the validation images, and the cluster of each in three clusterings."""
    table = pd.read_csv(folder / CLUSTERS, index_col="path")
    return table[["cluster1", "cluster2", "cluster3"]]


def _hard(folder: Path) -> list[str]:
    """The files of ImageNet-A of these synsets."""
    paths = (p for synset in sorted(CLASS) for p in sorted(folder.glob(f"imagenet-a/{synset}/*")))
    return [path.relative_to(folder).as_posix() for path in paths if path.suffix.lower() in JPEG]


NINE_CLASS = layout("nine-class")


@NINE_CLASS.reader
def nine_class(folder: Path, side: int = 224) -> Splits:
    """Training images, a held-out part of them, and the validation images with ImageNet-A.

    Items are (image, class); in validation and test (image, class, part, clusters), the cluster in
    each of three clusterings, which only validation images of ImageNet have.

    Args:
        side: pixels of an image's side.

    Raises:
        ValueError: no folder was given, or a data set has another layout.
    """
    imagenet_folder = imagenet.LAYOUT.folder()
    train, validation = list[str](), list[str]()
    for synset in sorted(CLASS):
        names = jpeg_files(imagenet_folder, f"train/{synset}")
        out = min(HELD_OUT_EACH, len(names) // 2)
        train += names[out:]
        validation += names[:out]
    clusters = _clustered(folder)
    tested = [f"val/{path}" for path in clusters.index]
    missing = next((name for name in tested if not (imagenet_folder / name).is_file()), None)
    if missing is not None:
        raise imagenet.LAYOUT.error(imagenet_folder, f"lacks {missing}, which {CLUSTERS} lists")

    def labeled(names: list[str]) -> list[tuple[str, int]]:
        return [(name, CLASS[name.split("/")[1]]) for name in names]

    def judged(root: Path, names: list[str], part: int) -> Pictures:
        assigned = clusters.to_numpy() if part == IMAGENET else np.zeros((len(names), 3), dtype=int)
        return Pictures(root, labeled(names), central(side), [part] * len(names), assigned)

    parts = judged(imagenet_folder, tested, IMAGENET), judged(folder, _hard(folder), IMAGENET_A)
    return Splits(
        Pictures(imagenet_folder, labeled(train), varied(side)),
        judged(imagenet_folder, validation, OF_TRAINING),
        ConcatDataset(parts),  # type: ignore[arg-type]
    )
