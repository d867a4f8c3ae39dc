"""Object detection: average precision, both detectors and starts, and COCO's official layout."""

import contextlib
import io
import math
import random

import pytest
import torch
from miniatures import BOXES, SIZE, write_coco
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from spherenorm_experiments.lookup import FOLDER
from spherenorm_experiments.task import seed_everything
from spherenorm_paper.detection.boxes import average_precision
from spherenorm_paper.detection.coco import (
    coco,
    overlapping_window,
    scaled_window,
    within,
)
from spherenorm_paper.detection.detection import Detection
from spherenorm_paper.shared.resnet import ResNet, resnet18
from tests.harness import refuses


def scenes(images=40, classes=4, seed=0):
    """Random truths, and detections near them and elsewhere."""
    random = torch.Generator().manual_seed(seed)
    found, truth = [], []
    for _ in range(images):
        count = int(torch.randint(0, 6, (), generator=random))
        low = 100 * torch.rand(count, 2, generator=random)
        boxes = torch.cat([low, low + 5 + 60 * torch.rand(count, 2, generator=random)], 1)
        labels = torch.randint(classes, (count, 1), generator=random)
        crowds = torch.rand(count, 1, generator=random) < 0.15
        truth.append(torch.cat([boxes, labels, crowds], 1))
        near = boxes.repeat(3, 1) + 4 * torch.randn(3 * count, 4, generator=random)
        near[:, 2:] = torch.maximum(near[:, 2:], near[:, :2] + 1)
        right = torch.rand(3 * count, 1, generator=random) < 0.8
        other = torch.randint(classes, (3 * count, 1), generator=random)
        scores = torch.rand(3 * count, 1, generator=random)
        found.append(torch.cat([near, scores, torch.where(right, labels.repeat(3, 1), other)], 1))
    return found, truth


def reference(detected, truth):
    """AP by pycocotools."""
    objects, results = [], []
    for image, both in enumerate(zip(truth, detected, strict=True)):
        for rows, entries in zip(both, (objects, results), strict=True):
            for x0, y0, x1, y1, *last in rows.tolist():
                box = [x0, y0, x1 - x0, y1 - y0]
                entries.append({"image_id": image, "bbox": box, "last": last})
    for number, entry in enumerate(objects, 1):
        label, crowd = map(int, entry.pop("last"))
        area = entry["bbox"][2] * entry["bbox"][3]
        entry |= {"id": number, "category_id": label, "iscrowd": crowd, "area": area}
    for entry in results:
        entry["score"], label = entry.pop("last")
        entry["category_id"] = int(label)
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": k} for k in range(len(truth))],
            "categories": [{"id": k} for k in sorted({each["category_id"] for each in objects})],
            "annotations": objects,
        }
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return 100 * evaluation.stats[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_average_precision_is_that_of_pycocotools(seed):
    detected, truth = scenes(seed=seed)
    expected = reference(detected, truth)
    assert 5 < expected < 95
    assert average_precision(detected, truth) == pytest.approx(expected, abs=1e-6)


def test_average_precision_without_objects_or_detections():
    none, (detected, truth) = [torch.zeros(0, 6)] * 40, scenes()
    assert average_precision(none, truth) == 0
    assert math.isnan(average_precision(detected, none))


@pytest.mark.parametrize("detector", ["centernet", "ssd"])
def test_the_truth_as_a_detection_scores_100(detector):
    """Its boxes pass through collate and evaluate with a model that knows them."""
    task = Detection(detector)
    batch = task.first_batch(task.data().validation, 16)
    shares = task.evaluate(task.model().eval(), batch)
    assert list(shares) == ["AP"]
    found, truth = shares["AP"].state
    assert len(found) == len(truth) == 16
    sure = [torch.ones(len(rows), 1) for rows in truth]
    pairs = zip(truth, sure, strict=True)
    perfect = [torch.cat([rows[:, :4], one, rows[:, 4:5]], 1) for rows, one in pairs]
    assert shares["AP"].value([(perfect, truth)]) == pytest.approx(100)
    assert 0 <= shares["AP"].value([shares["AP"].state]) < 50


def save_as_published(model, file):
    """Save a classifier's state under other names, in its own order, the classifier last."""
    state = {}
    for number, (name, x) in enumerate(model.state_dict().items()):
        part = "fc" if name.startswith("head") else f"features.{number}"
        state[f"{part}.{name.rpartition('.')[2]}"] = x
    torch.save(state, file)


def test_published_weights_are_those_of_the_trunk_and_others_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    file = tmp_path / "pretrained" / "resnet18.pth"
    with refuses("resnet18.pth"):
        Detection("centernet", "coco", "pretrained").model()
    file.parent.mkdir()
    seed_everything(3)
    classifier = resnet18()
    save_as_published(classifier, file)
    model = Detection("centernet", "coco", "pretrained").model()
    for ours, theirs in zip(model.trunk, [classifier.stem, *classifier.stages], strict=True):
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b) or not a.ndim  # the number of batches counts for nothing
    for wrong in (ResNet("basic", (2, 2, 2, 2), 32), ResNet("basic", (1, 2, 2, 2))):
        save_as_published(wrong, file)
        with refuses("resnet18.pth", "other tensors"):
            Detection("centernet", "coco", "pretrained").model()
    save_as_published(classifier, file)
    names = list(state := torch.load(file))
    names[1:3] = names[2:0:-1]
    torch.save({name: state[name] for name in names}, file)
    with refuses("resnet18.pth", "other tensors"):  # a bias has the shape of its weight
        Detection("centernet", "coco", "pretrained").model()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_coco(folder)
    return folder


@pytest.fixture
def folder(root, monkeypatch):
    monkeypatch.setenv(FOLDER, str(root))


def corners(n):
    return torch.tensor([[x, y, x + w, y + h] for x, y, w, h in BOXES[n % 4]]).reshape(-1, 4)


@pytest.mark.parametrize("way", ["centernet", "ssd"])
@pytest.mark.usefixtures("folder")
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
@pytest.mark.usefixtures("folder")
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


def test_random_windows_have_the_released_ranges():
    boxes = corners(0)
    sides, flips, kinds = set(), [], {"expanded": 0, "part": 0, "whole": 0}
    for seed in range(120):
        random.seed(seed)
        window = scaled_window(SIZE)
        sides.add(round(window.width / 96, 6))
        flips.append(window.flipped)
        assert window.width == window.height
        x, y = window.x0 + window.width / 2, window.top + window.height / 2
        assert 32 <= x <= 64
        assert 16 <= y <= 48
        window = overlapping_window(SIZE, boxes)
        left, top = window.x0, window.top
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
