"""Biased images: how often the ground tells the class, and what is drawn."""

import pytest
import torch

from spherenorm_experiments.paper.debiasing.biased import (
    COLOURS,
    colour_strokes,
    draw_grounds,
    handwritten_digits,
    stripe_strokes,
)


@pytest.mark.parametrize(("rho", "own"), [(1.0, 100), (0.95, 95), (0.1, 10), (0.0, 0)])
def test_so_many_images_have_the_ground_of_their_class(rho, own):
    labels = torch.arange(1000) % 10
    grounds = draw_grounds(labels, rho, 10, seed=0)
    for label in range(10):
        counts = torch.bincount(grounds[labels == label], minlength=10)
        assert counts[label] == own
        others = counts[torch.arange(10) != label]
        assert others.max() - others.min() <= 1  # evenly among the others


def test_strokes_are_white_on_the_colour_of_the_ground():
    strokes = torch.tensor([[[0, 1], [200, 0]]], dtype=torch.uint8).repeat(10, 1, 1)
    images = colour_strokes(strokes, torch.arange(10))
    assert images.shape == (10, 3, 2, 2)
    for image, colour in zip(images, COLOURS, strict=True):
        assert image[:, 0, 1].tolist() == image[:, 1, 0].tolist() == [255] * 3
        assert image[:, 0, 0].tolist() == image[:, 1, 1].tolist() == list(colour)
    assert len(set(COLOURS)) == 10


def test_stripes_are_told_by_direction_and_width_whatever_the_shape():
    strokes, _ = handwritten_digits(12)
    grounds = torch.arange(len(strokes)) % 10
    images = stripe_strokes(torch.zeros(len(strokes), 32, 32), grounds, seed=0)
    spectra = torch.fft.rfft2(images[:, 0].float() - images[:, 0].float().mean((1, 2), True)).abs()
    peaks = spectra.flatten(1).argmax(1)
    rows, columns = peaks // 17, peaks % 17
    rows = torch.where(rows > 16, rows - 32, rows).float()
    length = 32 / torch.hypot(rows, columns.float())
    angle = torch.rad2deg(torch.atan2(rows, columns.float())) % 180
    wanted = torch.tensor([3.0, 6.0])[grounds // 5]
    assert ((length - wanted).abs() < 0.2 * wanted).float().mean() > 0.95
    off = (angle - 36 * (grounds % 5) + 90) % 180 - 90
    assert (off.abs() < 12).float().mean() > 0.95
