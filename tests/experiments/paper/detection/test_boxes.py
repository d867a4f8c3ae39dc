"""Overlaps and suppression are those of plain loops."""

import pytest
import torch
from plain_boxes import greedy, overlap

from spherenorm_experiments.paper.detection.boxes import (
    centered,
    cornered,
    overlaps,
    suppressed,
)


def boxes(count, seed, side=20.0):
    random = torch.Generator().manual_seed(seed)
    low = side * torch.rand(count, 2, generator=random, dtype=torch.float64)
    return torch.cat([low, low + side / 2 * torch.rand(count, 2, generator=random).double()], 1)


def test_overlaps_are_those_of_a_loop():
    a, b = boxes(7, 0), torch.cat([boxes(5, 1), torch.zeros(1, 4).double()])
    expected = [[overlap(x, y) for y in b] for x in a]
    torch.testing.assert_close(overlaps(a, b), torch.tensor(expected, dtype=torch.float64))
    assert overlaps(b[-1:], b[-1:]).item() == 0  # two empty boxes
    batched = overlaps(a.view(1, 7, 4).expand(2, -1, -1), b.expand(2, -1, -1))
    torch.testing.assert_close(batched[1], overlaps(a, b))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.6])
def test_suppression_is_that_of_a_greedy_loop(threshold):
    many = torch.stack([boxes(60, seed) for seed in range(3)])
    classes = torch.randint(3, (3, 60), generator=torch.Generator().manual_seed(9))
    found = suppressed(many, classes, threshold)
    assert 0 < found.sum() < found.numel()
    for row, label, gone in zip(many, classes, found, strict=True):
        assert gone.tolist() == greedy(row, label, threshold)


def test_corners_and_centers_are_inverse():
    some = boxes(5, 3)
    torch.testing.assert_close(cornered(centered(some)), some)
    assert centered(torch.tensor([1.0, 2, 3, 8])).tolist() == [2, 5, 2, 6]
