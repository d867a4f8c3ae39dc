"""Biased images: how often the ground tells the class, and what is drawn."""

import pytest
import torch

from experiments.data import glyphs
from experiments.data.biased import COLOURS, colour_strokes, draw_glyphs, draw_grounds, on_textures


@pytest.mark.parametrize(("rho", "own"), [(1.0, 100), (0.95, 95), (0.1, 10), (0.0, 0)])
def test_so_many_images_have_the_ground_of_their_class(rho, own):
    labels = torch.arange(1000) % 10
    grounds = draw_grounds(labels, rho, 10, seed=0)
    for label in range(10):
        counts = torch.bincount(grounds[labels == label], minlength=10)
        assert counts[label] == own
        others = counts[torch.arange(10) != label]
        assert others.max() - others.min() <= 1  # evenly among the others


def test_grounds_have_a_seed_and_a_range():
    labels = torch.arange(200) % 10
    same, again, other = (draw_grounds(labels, 0.5, 10, seed) for seed in (1, 1, 2))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    with pytest.raises(ValueError, match=r"rho must be in \[0, 1\], got 1.5"):
        draw_grounds(labels, 1.5, 10, 0)


def test_strokes_are_white_on_the_colour_of_the_ground():
    strokes = torch.tensor([[[0, 1], [200, 0]]], dtype=torch.uint8).repeat(10, 1, 1)
    images = colour_strokes(strokes, torch.arange(10))
    assert images.shape == (10, 3, 2, 2)
    for image, colour in zip(images, COLOURS, strict=True):
        assert image[:, 0, 1].tolist() == image[:, 1, 0].tolist() == [255] * 3
        assert image[:, 0, 0].tolist() == image[:, 1, 1].tolist() == list(colour)
    assert len(set(COLOURS)) == 10


def test_glyphs_on_textures_show_both():
    coverages, labels = draw_glyphs(20, 0, 24, "ABCDE", glyphs.TEST_FONTS)
    assert torch.bincount(labels).tolist() == [4] * 5
    images = on_textures(coverages, labels, seed=0)
    assert images.shape == (20, 3, 24, 24)
    assert images.dtype == torch.uint8
    for coverage, image in zip(coverages, images, strict=True):
        assert len(image[0][coverage == 255].unique()) == 1  # one brightness inside
        assert len(image[0][coverage == 0].unique()) > 3  # a texture outside
    assert torch.equal(images, on_textures(coverages, labels, seed=0))
