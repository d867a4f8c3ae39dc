"""Deformable convolutions are those of a plain loop, and ordinary ones at zero offsets."""

import itertools
import math
from importlib.util import find_spec

import pytest
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


def test_without_offsets_it_is_a_convolution():
    x, weight, bias = drawn(2, 4, 6, 5), drawn(3, 4, 3, 3), drawn(3)
    still, ones = torch.zeros(2, 18, 6, 5).double(), torch.ones(2, 9, 6, 5).double()
    found = deformable_convolution(x, still, ones, weight, bias)
    torch.testing.assert_close(found, F.conv2d(x, weight, bias, padding=1), rtol=0, atol=1e-12)


def test_offsets_of_a_pixel_shift_the_image():
    x, weight = drawn(1, 2, 7, 7), drawn(3, 2, 3, 3)
    offsets = torch.zeros(1, 9, 2, 7, 7).double()
    offsets[:, :, 0], offsets[:, :, 1] = 1, -2  # down, to the left
    found = deformable_convolution(
        x, offsets.flatten(1, 2), torch.ones(1, 9, 7, 7).double(), weight
    )
    shifted = F.pad(x, (2, 0, 0, 1))[..., 1:, :-2]
    expected = F.conv2d(shifted, weight, padding=1)
    torch.testing.assert_close(found[..., 1:5, 3:6], expected[..., 1:5, 3:6], rtol=0, atol=1e-12)


def test_the_layer_starts_as_half_a_convolution():
    layer = DeformableConv2d(3, 4).double()
    x = drawn(2, 3, 5, 5)
    torch.testing.assert_close(layer(x), 0.5 * F.conv2d(x, layer.weight, padding=1))


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("torchvision") is None,
    reason="torchvision's operator is used on a GPU",
)
def test_on_a_gpu_it_is_torchvisions_operator():
    layer = DeformableConv2d(3, 4).double()
    torch.nn.init.normal_(layer.offset.weight, std=0.2)
    x = drawn(2, 3, 6, 5)
    torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), layer.cpu()(x))


def test_every_parameter_gets_a_gradient():
    layer = DeformableConv2d(3, 4).double()
    layer(drawn(2, 3, 5, 5)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())
