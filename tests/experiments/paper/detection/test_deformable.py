"""Deformable convolutions are those of a plain loop, and ordinary ones at zero offsets."""

import itertools
import math

import torch
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.detection.deformable import (
    DeformableConv2d,
    deformable_convolution,
)


def at(x, row, column):
    """Bilinear interpolation between the pixels of a plane, 0 outside."""
    top, left = math.floor(row), math.floor(column)
    total = 0.0
    for r in (top, top + 1):
        for c in (left, left + 1):
            if 0 <= r < len(x) and 0 <= c < len(x[0]):
                total += x[r][c] * (1 - abs(row - r)) * (1 - abs(column - c))
    return total


def loop(x, offsets, mask, weight, bias):
    images, inputs, height, width = x.shape
    outputs, _, rows, columns = weight.shape
    y = torch.zeros(images, outputs, height, width, dtype=x.dtype)
    planes, moved = x.tolist(), offsets.tolist()
    for n, i, j in itertools.product(range(images), range(height), range(width)):
        for tap in range(rows * columns):
            row = i + tap // columns - rows // 2 + moved[n][2 * tap][i][j]
            column = j + tap % columns - columns // 2 + moved[n][2 * tap + 1][i][j]
            for c in range(inputs):
                value = mask[n, tap, i, j] * at(planes[n][c], row, column)
                y[n, :, i, j] += weight[:, c, tap // columns, tap % columns] * value
    return y + bias[:, None, None]


def drawn(*shape):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))
    )


def test_it_is_the_loop():
    x, weight, bias = drawn(2, 2, 3, 4), drawn(3, 2, 3, 3), drawn(3)
    offsets, mask = 1.5 * drawn(2, 18, 3, 4), drawn(2, 9, 3, 4)
    found = deformable_convolution(x, offsets, mask, weight, bias)
    torch.testing.assert_close(found, loop(x, offsets, mask, weight, bias), rtol=0, atol=1e-12)


def test_the_layer_starts_as_half_a_convolution():
    layer = DeformableConv2d(3, 4).double()
    x = drawn(2, 3, 5, 5)
    torch.testing.assert_close(layer(x), 0.5 * F.conv2d(x, layer.weight, padding=1))
