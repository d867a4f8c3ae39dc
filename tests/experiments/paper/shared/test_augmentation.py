"""Pictures: what is cut out, turned, pasted and drawn."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from spherenorm_paper.shared import augmentation, glyphs
from spherenorm_paper.shared.augmentation import (
    GRAY,
    MEAN,
    OPERATIONS,
    STD,
    centre,
    cutmix,
    normalized,
    random_crop,
)

WIDTH, HEIGHT = 240, 160


@pytest.fixture
def map_of_places():
    """A picture whose red is x and whose green is y."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return Image.fromarray(np.stack([x, y, np.zeros_like(x)], -1).astype(np.uint8))


def box_of(cut, side):
    """The box from which a map of places was cut, from the slopes of its colours."""
    values = np.asarray(cut).astype(float)
    wide, tall = np.ptp(values[..., 0]) * side / (side - 1), np.ptp(values[..., 1])
    return wide, tall * side / (side - 1)


def test_a_random_crop_has_the_area_and_the_shape_it_was_asked_for(map_of_places):
    torch.manual_seed(0)
    boxes = [box_of(random_crop(map_of_places, 24), 24) for _ in range(400)]
    areas = np.array([wide * tall / (WIDTH * HEIGHT) for wide, tall in boxes])
    ratios = np.log([wide / tall for wide, tall in boxes])
    slack = 0.03  # of the slopes' rounding
    assert areas.min() > 0.08 - slack
    assert 0.8 < areas.max() < 1 + slack
    assert np.abs(ratios).max() < math.log(4 / 3) + slack
    assert abs(ratios.mean()) < 0.05
    # Boxes that do not fit are drawn again, so large areas are rarer than small ones.
    area, aspect = np.meshgrid(
        np.linspace(0.08, 1, 500), np.exp(np.linspace(-1, 1, 500) * math.log(4 / 3))
    )
    fits = (area * HEIGHT * aspect <= WIDTH) & (area * WIDTH <= HEIGHT * aspect)
    assert areas.mean() == pytest.approx(area[fits].mean(), abs=4 * areas.std() / 20)


def test_the_centre_is_that_of_the_resized_picture(map_of_places):
    cut = np.asarray(centre(map_of_places, 56)).astype(float)  # 56 / 0.875 = 64 of 160 pixels
    assert cut.shape == (56, 56, 3)
    scale = HEIGHT / 64
    assert abs(cut[..., 0].mean() - (WIDTH - 1) / 2) < 1
    assert abs(cut[..., 1].mean() - (HEIGHT - 1) / 2) < 1
    assert abs(np.ptp(cut[..., 1]) - 55 * scale) < 2


def test_normalized_pixels_are_those_of_the_formula(map_of_places):
    found = normalized(map_of_places)
    assert found.shape == (3, HEIGHT, WIDTH)
    for channel, value in enumerate((17, 5, 0)):
        expected = (value / 255 - MEAN[channel]) / STD[channel]
        assert found[channel, 5, 17].item() == pytest.approx(expected, abs=1e-6)


def test_operations_have_their_magnitudes(map_of_places):
    shift = round(0.5 * 150 / 331 * WIDTH)
    for sign in (1, -1):
        moved = np.asarray(OPERATIONS["TranslateX"](map_of_places, 0.5 * sign))
        assert moved[0, 120, 0] == 120 + sign * shift
    turned = np.asarray(OPERATIONS["Rotate"](map_of_places, 1.0))
    assert tuple(turned[0, 0]) == GRAY
    middle = turned[HEIGHT // 2, WIDTH // 2 - 40 : WIDTH // 2 + 40, 1].astype(float)
    slope = np.polyfit(np.arange(80), middle, 1)[0]
    assert abs(slope) == pytest.approx(math.sin(math.radians(30)), abs=0.02)
    flat = Image.new("RGB", (4, 4), (100, 100, 100))
    assert OPERATIONS["Brightness"](flat, -0.5).getpixel((0, 0))[0] == 55
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, -1))
    for level, bits in ((0.0, 8), (0.5, 6), (1.0, 4)):
        assert len(set(np.asarray(OPERATIONS["Posterize"](ramp, level)).ravel())) == 2**bits
    values = np.asarray(OPERATIONS["Solarize"](ramp, 0.25))[0, :, 0]
    assert (values == np.where(np.arange(256) < 192, np.arange(256), 255 - np.arange(256))).all()


def test_randaugment_draws_two_operations_and_signs(monkeypatch):
    drawn = Counter()

    def noted(name):
        return lambda picture, share: drawn.update([(name, round(share, 6))]) or picture

    monkeypatch.setattr(augmentation, "OPERATIONS", {name: noted(name) for name in OPERATIONS})
    torch.manual_seed(0)
    for _ in range(1400):
        augmentation.rand_augment("picture", 4.0)
    of_name = Counter(name for name, share in drawn.elements())
    assert drawn.total() == pytest.approx(2800 * 13 / 14, rel=0.02)
    assert all(160 < of_name[name] < 240 for name in OPERATIONS)
    for name in OPERATIONS:
        negative = drawn[name, -0.4]
        assert 70 < negative < 130 if name in augmentation.EITHER_WAY else negative == 0
        assert drawn[name, 0.4] == of_name[name] - negative


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_the_size_and_changes_something(name, map_of_places):
    map_of_places.paste((200, 100, 50), (60, 40, 120, 80))  # with an edge to sharpen
    found = OPERATIONS[name](map_of_places, 0.9)
    assert (found.size, found.mode) == (map_of_places.size, "RGB")
    assert (np.asarray(found) != np.asarray(map_of_places)).any()


def test_cutmix_pastes_and_mixes_in_the_same_proportion():
    torch.manual_seed(0)
    images = torch.arange(8.0)[:, None, None, None].expand(8, 1, 40, 64)
    targets, shares = torch.eye(8), []
    for _ in range(400):
        mixed, soft = cutmix(images, targets)
        kept = (mixed == images).double().mean(dim=(1, 2, 3))
        own = soft.diagonal().double()
        assert ((own - kept).abs() < 1e-6).all()
        torch.testing.assert_close(soft.sum(1), torch.ones(8))
        shares.append(1 - own.min().item())
    # A side s = sqrt(u), u uniform, loses s^2 / 4 at the edges: the mean of (s - s^2 / 4)^2.
    expected = 1 / 2 - 1 / 5 + 1 / 48
    assert sum(shares) / len(shares) == pytest.approx(expected, abs=0.05)


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
