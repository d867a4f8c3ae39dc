"""MS-COCO's official layout, on a miniature; windows move pictures and boxes alike."""

import random

import numpy as np
import pytest
import torch
from miniatures import BOXES, SIZE, write_coco
from PIL import Image, ImageDraw

from spherenorm_experiments.core import seed_everything
from spherenorm_experiments.paper.detection.coco import coco
from spherenorm_experiments.paper.detection.windows import (
    Window,
    overlapping_window,
    scaled_window,
    within,
)
from spherenorm_experiments.paper.shared.layout import FOLDER


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_coco(folder)
    return folder


@pytest.fixture(autouse=True)
def _folder(root, monkeypatch):
    monkeypatch.setenv(FOLDER, str(root))


def corners(n):
    return torch.tensor([[x, y, x + w, y + h] for x, y, w, h in BOXES[n % 4]]).reshape(-1, 4)


@pytest.mark.parametrize("way", ["centernet", "ssd"])
def test_images_that_are_not_trained_on_are_whole(way):
    image, objects = coco(way, 48).test[1]
    assert image.shape == (3, 48, 48)
    scale = torch.tensor([48 / 96, 48 / 96 if way == "centernet" else 48 / 64] * 2)
    shift = torch.tensor([0.0, 8.0 if way == "centernet" else 0.0] * 2)
    torch.testing.assert_close(objects[:, :4], corners(1) * scale + shift)
    x, y = (objects[0, :2] + objects[0, 2:4]).long().tolist()
    red = image[:, y // 2, x // 2]
    assert red[0] > 1.5
    assert (red[1:] < -1).all()


@pytest.mark.parametrize("way", ["centernet", "ssd"])
def test_training_images_have_their_objects_in_their_boxes(way):
    """Each object is a plain rectangle, so the box's center has its colour in any window."""
    train = coco(way, 64).train
    seen, kept = 0, set()
    for index in range(36):
        seed_everything(index)
        image, objects = train[index % len(train)]
        boxes = objects[:, :4]
        assert not objects[:, 5].any()
        assert ((boxes >= 0) & (boxes <= 64)).all()
        assert (boxes[:, 2:] - boxes[:, :2] >= 1).all()
        kept.add(round(float(image.mean()), 3))
        for box in boxes[(boxes[:, 2:] - boxes[:, :2] >= 6).all(1)]:
            x, y = ((box[:2] + box[2:]) / 2).long().tolist()
            inside = image[:, y, x] - image[:, y, x].mean()
            assert inside.abs().max() > 0.5  # a colour, not the gray ground
            seen += 1
    assert seen > 20
    assert len(kept) > 30
    seed_everything(35)
    assert torch.equal(train[35 % len(train)][0], image)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_window_moves_picture_and_boxes_alike(flipped):
    picture = Image.new("RGB", (80, 60), (0, 0, 0))
    box = torch.tensor([[20.0, 12.0, 50.0, 30.0]])
    ImageDraw.Draw(picture).rectangle([20, 12, 49, 29], fill=(255, 255, 255))
    window = Window(-10, 4, 100, 40, flipped)
    found = np.asarray(window.cut(picture, 200))[..., 0] > 127
    (left, top, right, bottom) = window.moved(box, 200)[0].tolist()
    rows, columns = np.flatnonzero(found[:, 60:140].any(1)), np.flatnonzero(found[:160].any(0))
    inside = columns[(columns > 25) & (columns < 175)]  # beyond is the fill
    assert [rows[0], rows[-1] + 1] == pytest.approx([top, bottom], abs=2)
    assert [inside[0], inside[-1] + 1] == pytest.approx([left, right], abs=2)


def test_random_windows_have_the_released_ranges():
    boxes = corners(0)
    sides, flips, kinds = set(), [], {"expanded": 0, "part": 0, "whole": 0}
    for seed in range(120):
        random.seed(seed)
        window = scaled_window(SIZE)
        sides.add(round(window.width / 96, 6))
        flips.append(window.flipped)
        assert window.width == window.height
        x, y = window.left + window.width / 2, window.top + window.height / 2
        assert 32 <= x <= 64
        assert 16 <= y <= 48
        window = overlapping_window(SIZE, boxes)
        left, top = window.left, window.top
        part = torch.tensor([left, top, left + window.width, top + window.height])
        assert within(boxes, part).any()
        wider = window.width > 96 or window.height > 64
        same = (window.width, window.height) == SIZE
        kinds["expanded" if wider else "whole" if same else "part"] += 1
        assert window.width <= 4 * 96
    assert sides == {0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3}
    assert 40 < sum(flips) < 80
    assert min(kinds.values()) > 8
    assert within(boxes, torch.tensor([0.0, 0, 40, 60])).tolist() == [True, False]
