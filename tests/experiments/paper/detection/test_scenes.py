"""Scenes of glyphs: the boxes are around the glyphs, apart from each other, and reproducible."""

import numpy as np

from spherenorm_experiments.paper.detection.scenes import OBJECTS, glyph_scenes
from spherenorm_experiments.paper.shared.glyphs import CHARACTERS


def test_scenes_are_the_same_for_the_same_seed_only():
    first, again, other = (glyph_scenes(6, seed, size=32) for seed in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(first[0], other[0])


def test_boxes_are_inside_apart_and_of_the_size_that_is_asked():
    images, boxes, labels = glyph_scenes(60, 0, size=40, most=4, extent=(0.3, 0.5))
    assert images.dtype == np.uint8
    assert ((labels >= 0).sum(1) >= 1).all()
    assert set(labels.flatten().tolist()) == {-1, *range(len(OBJECTS))}
    for row, label in zip(boxes, labels, strict=True):
        real = row[label >= 0]
        assert (row[label < 0] == 0).all()
        assert ((real >= 0) & (real <= 40)).all()
        longer = (real[:, 2:] - real[:, :2]).max(1)
        assert ((longer >= 11) & (longer <= 20)).all()
        for i, a in enumerate(real):
            for b in real[i + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_a_glyph_is_drawn_in_its_box_and_nothing_outside():
    """The same seed with the last object left out: only its box differs."""
    checked = 0
    for seed in range(8):
        images, boxes, labels = glyph_scenes(1, seed, most=1)
        other, same, _ = glyph_scenes(1, seed, most=1, characters="H" * len(OBJECTS))
        differs = (images[0] != other[0]).any(0)
        if np.array_equal(boxes, same) and differs.any():
            left, top, right, bottom = boxes[0, 0].astype(int)
            inside = np.zeros_like(differs)
            inside[top:bottom, left:right] = True
            assert not differs[~inside].any()
            checked += 1
    assert checked or labels.shape == (1, 1)


def test_every_object_is_a_character_with_a_shape_of_its_own():
    assert set(OBJECTS) <= set(CHARACTERS)
