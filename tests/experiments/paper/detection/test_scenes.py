"""Scenes of glyphs: the boxes are around the glyphs, apart from each other, and reproducible."""

import numpy as np

from spherenorm_experiments.paper.detection import scenes
from spherenorm_experiments.paper.detection.scenes import glyph_scenes


def test_scenes_are_the_same_for_the_same_seed_only():
    first, again, other = (glyph_scenes(6, seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[0], other[0])


def test_boxes_are_inside_apart_and_of_the_size_that_is_asked():
    _, objects = glyph_scenes(60, 0, size=40)
    assert set(objects[..., 4].flatten().tolist()) == {-1, *range(len(scenes.OBJECTS))}
    for rows in objects:
        real = rows[rows[:, 4] >= 0]
        assert len(real)
        assert (rows[len(real) :] == -1).all()
        assert ((real[:, :4] >= 0) & (real[:, :4] <= 40)).all()
        assert (real[:, 5] == 0).all()
        longer = (real[:, 2:4] - real[:, :2]).max(1)
        assert ((longer >= 11) & (longer <= 24)).all()
        for i, a in enumerate(real):
            for b in real[i + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_a_glyph_is_drawn_in_its_box_and_nothing_outside(monkeypatch):
    """The same seeds with other characters: scenes differ within the boxes only."""
    monkeypatch.setattr(scenes, "MOST", 1)
    drawn = [glyph_scenes(1, seed) for seed in range(8)]
    monkeypatch.setattr(scenes, "OBJECTS", "HHH")
    compared = 0
    for seed, (images, objects) in enumerate(drawn):
        other, same = glyph_scenes(1, seed)
        differs = (images[0] != other[0]).any(0)
        if np.array_equal(objects, same) and differs.any():
            left, top, right, bottom = objects[0, 0, :4].astype(int)
            differs[top:bottom, left:right] = False
            assert not differs.any()
            compared += 1
    assert compared
