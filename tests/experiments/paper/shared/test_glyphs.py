"""Glyphs: what is drawn, and that fonts, classes and places are as promised."""

import numpy as np
import pytest

from spherenorm_experiments.paper.shared import glyphs

FONTS = [*glyphs.TRAIN_FONTS, *glyphs.VALIDATION_FONTS, *glyphs.TEST_FONTS]


@pytest.mark.parametrize("font", FONTS)
def test_every_font_has_every_character_and_no_two_look_the_same(font):
    assert FONTS.count(font) == 1  # in one of the sets alone
    drawn = [glyphs.mask(character, font, 24) for character in glyphs.CHARACTERS]
    for alpha in drawn:
        assert max(alpha.shape) == 24
        assert alpha.max() > 0.5
    flat = {alpha.tobytes() for alpha in drawn}
    assert len(flat) == len(glyphs.CHARACTERS)


def test_a_mask_fills_its_box_and_turns():
    upright, turned = (glyphs.mask("L", "DejaVuSans.ttf", 40, angle=angle) for angle in (0, 90))
    assert upright[-1].max() > 0.9  # the foot of the L
    assert upright[0, -1] == 0  # nothing at its top right
    assert turned.shape[1] > turned.shape[0]


def test_a_blend_is_the_ground_outside_and_the_fill_inside():
    ground, fill = np.full((4, 4, 3), 10), np.full((4, 4, 3), 200)
    alpha = np.zeros((4, 4), dtype=np.float32)
    alpha[1, 2], alpha[3, 3] = 1.0, 0.5
    image = glyphs.blend(ground, fill, alpha)
    assert image[1, 2].tolist() == [200] * 3
    assert image[3, 3].tolist() == [105] * 3
    assert (image == 10).all(axis=-1).sum() == 14
