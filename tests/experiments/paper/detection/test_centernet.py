"""CenterNet: loss, targets, decoder and deformable convolutions are those of plain loops."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from spherenorm_paper.detection.centernet import (
    DeformableConv2d,
    centernet_detections,
    centernet_loss,
    deformable_convolution,
    radius,
)
from tests.harness import refuses


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


BOXES = torch.tensor(
    [
        [[3.0, 5, 21, 17], [20, 12, 46, 40], [4, 30, 13, 47], [0, 0, 0, 0]],
        [[0.0, 0, 48, 48], [30, 2, 36, 8], [31, 3, 41, 13], [10, 20, 34, 30]],
    ]
)
LABELS = torch.tensor([[0, 2, 2, -1], [1, 1, 1, 0]])
"""Objects of two images of 48 x 48 pixels; maps have 12 x 12 places."""


def released_radius(width, height, overlap=0.7):
    """The three cases of the released code."""
    total, area = width + height, width * height
    cases = [
        (1, total, area * (1 - overlap) / (1 + overlap)),
        (4, 2 * total, (1 - overlap) * area),
        (4 * overlap, -2 * overlap * total, (overlap - 1) * area),
    ]
    return min((b + math.sqrt(b * b - 4 * a * c)) / 2 for a, b, c in cases)


def loop_heat(boxes, labels, classes, side):
    found = torch.zeros(len(boxes), classes, side, side)
    for image, (row, label_row) in enumerate(zip(boxes.tolist(), labels.tolist(), strict=True)):
        for (x0, y0, x1, y1), label in zip(row, label_row, strict=True):
            if label < 0:
                continue
            reach = max(0, int(released_radius(math.ceil(x1 - x0), math.ceil(y1 - y0))))
            column, line = int((x0 + x1) / 2), int((y0 + y1) / 2)
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    y, x = line + dy, column + dx
                    if 0 <= y < side and 0 <= x < side:
                        bump = math.exp(-(dx**2 + dy**2) / (2 * ((2 * reach + 1) / 6) ** 2))
                        old = found[image, label, y, x]
                        found[image, label, y, x] = max(old, torch.tensor(bump))
    return found


def loop_loss(maps, boxes, labels, stride):
    logits, sizes, shifts = (x.double() for x in maps)
    target = loop_heat(boxes / stride, labels, logits.shape[1], logits.shape[2]).double()
    focal, off_size, off_shift, count = 0.0, 0.0, 0.0, 0
    for p, y in zip(logits.sigmoid().flatten().tolist(), target.flatten().tolist(), strict=True):
        hit = (1 - p) ** 2 * math.log(p)
        focal -= hit if y == 1 else (1 - y) ** 4 * p**2 * math.log(1 - p)
    for image, (row, label_row) in enumerate(zip((boxes / stride).tolist(), labels, strict=True)):
        for (x0, y0, x1, y1), label in zip(row, label_row, strict=True):
            if label >= 0:
                count += 1
                x, y = (x0 + x1) / 2, (y0 + y1) / 2
                size, shift = (z[image, :, int(y), int(x)] for z in (sizes, shifts))
                off_size += abs(size[0] - (x1 - x0)) + abs(size[1] - (y1 - y0))
                off_shift += abs(shift[0] - (x - int(x))) + abs(shift[1] - (y - int(y)))
    return focal / count + 0.1 * off_size / (2 * count) + off_shift / (2 * count)


def test_the_radius_is_the_released_one():
    sizes = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)).double() * 60 + 0.1
    expected = [float(max(0, int(released_radius(*size)))) for size in sizes.tolist()]
    assert radius(sizes).tolist() == expected
    assert len(set(expected)) > 8


def test_the_loss_is_that_of_a_loop():
    maps = drawn(2, 3, 12, 12), 3 * drawn(2, 2, 12, 12, seed=1), drawn(2, 2, 12, 12, seed=2)
    expected = loop_loss(maps, BOXES, LABELS, 4)
    assert centernet_loss(maps, BOXES, LABELS, 48).item() == pytest.approx(
        float(expected), rel=1e-5
    )


def test_a_side_that_the_places_do_not_divide_is_refused():
    maps = drawn(1, 3, 4, 4), drawn(1, 2, 4, 4), drawn(1, 2, 4, 4)
    with refuses("multiple", 18):
        centernet_detections(maps, 18)


def test_a_batch_without_objects_has_a_loss():
    maps = tuple(drawn(1, n, 4, 4).requires_grad_() for n in (3, 2, 2))
    loss = centernet_loss(maps, torch.zeros(1, 2, 4), torch.full((1, 2), -1), 16)
    loss.backward()
    assert loss.isfinite()
    assert maps[0].grad.abs().sum() > 0


def test_detections_are_the_peaks():
    logits, sizes, shifts = drawn(2, 3, 6, 6), drawn(2, 2, 6, 6, seed=1), drawn(2, 2, 6, 6, seed=2)
    for image, found in enumerate(centernet_detections((logits, sizes, shifts), 24)):
        expected = []
        for c, y, x in torch.cartesian_prod(*(torch.arange(n) for n in (3, 6, 6))).tolist():
            near = logits[image, c, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
            if logits[image, c, y, x] == near.max():
                width, height = sizes[image, :, y, x].clamp(min=0).tolist()
                u, v = x + float(shifts[image, 0, y, x]), y + float(shifts[image, 1, y, x])
                box = [4 * (u - width / 2), 4 * (v - height / 2), 4 * (u + width / 2)]
                score = logits[image, c, y, x].sigmoid().item()
                expected.append([*box, 4 * (v + height / 2), score, c])
        expected.sort(key=lambda row: -row[4])
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


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


def doubles(*shape):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))
    )


def test_it_is_the_loop():
    x, weight, bias = doubles(2, 2, 3, 4), doubles(3, 2, 3, 3), doubles(3)
    offsets, mask = 1.5 * doubles(2, 18, 3, 4), doubles(2, 9, 3, 4)
    found = deformable_convolution(x, offsets, mask, weight, bias)
    torch.testing.assert_close(found, loop(x, offsets, mask, weight, bias), rtol=0, atol=1e-12)


def test_the_layer_starts_as_half_a_convolution():
    layer = DeformableConv2d(3, 4).double()
    x = doubles(2, 3, 5, 5)
    torch.testing.assert_close(layer(x), 0.5 * F.conv2d(x, layer.weight, padding=1))
