"""Augmentation of photographs: crops, flips, RandAugment; CutMix of a batch.

All draw from torch's global random state, which the engine seeds for each item and step. Pictures
are Pillow's, of mode RGB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.lookup import require_extra

Picture = Any
View = Callable[[Picture], Tensor]
"""A function of a picture that returns the `normalized` pixels that a network sees."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's pixels, as shares of 255, in red, green and blue."""

GRAY = (128, 128, 128)
"""The colour of what a rotation, a shear or a translation uncovers."""

LEVELS = 10
"""Magnitudes go from 0 to 10, and every operation grows with them; in the first released code of
AutoAugment, Posterize and Solarize did not."""


def random_crop(picture: Picture, side: int) -> Picture:
    """A random part of a picture, resized to a square of `side` pixels (Szegedy et al. 2015).

    The part has 8 % to all of the picture's area; the logarithm of the ratio of its sides is
    uniform. Where ten such parts do not fit, it is the largest one in the middle.
    """
    width, height = picture.size
    ratio = 3 / 4, 4 / 3
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        pixels = width * height * _uniform(0.08, 1.0)
        aspect = math.exp(_uniform(low, high))
        wide, tall = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            x0, top = _integer(width - wide + 1), _integer(height - tall + 1)
            break
    else:
        wide = min(width, round(height * ratio[1]))
        tall = min(height, round(width / ratio[0]))
        x0, top = (width - wide) // 2, (height - tall) // 2
    return _bilinear(picture.crop((x0, top, x0 + wide, top + tall)), (side, side))


def centre(picture: Picture, side: int, share: float = 0.875) -> Picture:
    """The central square of a picture whose shorter side is resized to side / share pixels."""
    shorter, (width, height) = round(side / share), picture.size
    if width <= height:
        size = shorter, int(shorter * height / width)
    else:
        size = int(shorter * width / height), shorter
    x0, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return _bilinear(picture, size).crop((x0, top, x0 + side, top + side))


def normalized(picture: Picture) -> Tensor:
    """`standardized` pixels of a picture, of shape (3, height, width)."""
    return standardized(torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1))


def varied(side: int, augment: Callable[[Picture], Picture] | None = None) -> View:
    """Random crops of pictures, flipped with probability 1/2, then augmented.

    Args:
        side: pixels of the result's side.
    """

    def view(picture: Picture) -> Tensor:
        cropped = random_crop(picture, side)
        flipped = cropped if torch.rand(()) < 0.5 else _pillow("ImageOps").mirror(cropped)
        return normalized(augment(flipped) if augment else flipped)

    return view


def central(side: int, share: float = 0.875) -> View:
    """The `centre` of pictures."""
    return lambda picture: normalized(centre(picture, side, share))


def standardized(pixels: Tensor) -> Tensor:
    """(x / 255 - mean) / deviation of each colour.

    Args:
        pixels: bytes, of shape (..., 3, height, width).
    """
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def rand_augment(picture: Picture, magnitude: float = 9.0) -> Picture:
    """Two random operations of one magnitude, each one of 13 or the identity.

    Args:
        magnitude: from 0 to 10.

    Source: E. Cubuk et al., *RandAugment: Practical automated data augmentation with a reduced
    search space*, 2020.
    """
    names = list(OPERATIONS)
    for _ in range(2):
        chosen = _integer(len(names) + 1)
        if chosen < len(names):  # else the identity
            name, share = names[chosen], magnitude / LEVELS
            turned = name in EITHER_WAY and torch.rand(()) >= 0.5
            picture = OPERATIONS[name](picture, -share if turned else share)
    return picture


def cutmix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Paste one rectangle, the same for the whole batch, from a permutation of the batch.

    The rectangle covers a share 1 - lambda of the image, lambda ~ Beta(1, 1), less what lies
    outside; targets mix by the share that is pasted.

    Args:
        images: of shape (items, channels, height, width).
        targets: probabilities, of shape (items, classes).

    Source: S. Yun et al., *CutMix*, 2019, and its released code.
    """
    partner = torch.randperm(len(images)).to(images.device)
    height, width = images.shape[-2:]
    share = math.sqrt(1 - float(torch.distributions.Beta(1.0, 1.0).sample()))
    y, x = _integer(height), _integer(width)
    half = int(height * share) // 2, int(width * share) // 2
    rows = slice(max(y - half[0], 0), y + half[0])
    columns = slice(max(x - half[1], 0), x + half[1])
    mixed = images.clone()
    mixed[..., rows, columns] = images[partner][..., rows, columns]
    pasted = mixed[0, 0, rows, columns].numel() / (height * width)
    return mixed, (1 - pasted) * targets + pasted * targets[partner]


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), dtype=torch.float64).item()


def _integer(stop: int) -> int:
    return int(torch.randint(stop, ()))


def _pillow(part: str = "Image") -> Any:
    return require_extra(f"PIL.{part}", "reading pictures")


def _bilinear(picture: Picture, size: tuple[int, int]) -> Picture:
    return picture.resize(size, _pillow().Resampling.BILINEAR)


Operation = Callable[[Picture, float], Picture]


def _affine(matrix: Callable[[Picture, float], Sequence[float]]) -> Operation:
    """Pixel (x, y) becomes that at (a x + b y + c, d x + e y + f), of a matrix (a, ..., f)."""

    def operation(picture: Picture, share: float) -> Picture:
        affine = _pillow().Transform.AFFINE
        return picture.transform(picture.size, affine, matrix(picture, share), fillcolor=GRAY)

    return operation


def _enhanced(kind: str) -> Operation:
    """Brightness, colour, contrast or sharpness times 1 + 0.9 share."""
    return lambda picture, share: getattr(_pillow("ImageEnhance"), kind)(picture).enhance(
        1 + 0.9 * share
    )


EITHER_WAY: dict[str, Operation] = {
    "ShearX": _affine(lambda _, share: (1, 0.3 * share, 0, 0, 1, 0)),
    "ShearY": _affine(lambda _, share: (1, 0, 0, 0.3 * share, 1, 0)),
    "TranslateX": _affine(lambda p, share: (1, 0, round(150 / 331 * share * p.width), 0, 1, 0)),
    "TranslateY": _affine(lambda p, share: (1, 0, 0, 0, 1, round(150 / 331 * share * p.height))),
    "Rotate": lambda picture, share: picture.rotate(30 * share, fillcolor=GRAY),
    **{kind: _enhanced(kind) for kind in ("Brightness", "Color", "Contrast", "Sharpness")},
}
OPERATIONS: dict[str, Operation] = {
    **EITHER_WAY,
    "Posterize": lambda image, share: _pillow("ImageOps").posterize(image, 8 - round(4 * share)),
    "Solarize": lambda image, share: _pillow("ImageOps").solarize(image, round(256 * (1 - share))),
    "AutoContrast": lambda image, _: _pillow("ImageOps").autocontrast(image),
    "Equalize": lambda image, _: _pillow("ImageOps").equalize(image),
}
"""Functions of a picture and a share of the largest magnitude, by the names of AutoAugment; the
share of the first nine has a random sign."""
