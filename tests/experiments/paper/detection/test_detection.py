"""Object detection: COCO's average precision, both detectors on both kinds of data, both starts."""

import contextlib
import io
import math

import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from spherenorm_experiments.core import seed_everything
from spherenorm_experiments.paper.detection._average_precision import average_precision
from spherenorm_experiments.paper.detection.centernet import (
    centernet_detections,
    centernet_loss,
    heat,
)
from spherenorm_experiments.paper.detection.detection import Detection, _trunk
from spherenorm_experiments.paper.detection.ssd import vgg_stages
from spherenorm_experiments.paper.shared.layers import load_published
from spherenorm_experiments.paper.shared.layout import FOLDER
from spherenorm_experiments.paper.shared.resnet import resnet18
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
    for image, (rows, boxes) in enumerate(zip(truth, detected, strict=True)):
        for x0, y0, x1, y1, label, crowd in rows.tolist():
            entry = {"id": len(objects) + 1, "image_id": image, "category_id": int(label)}
            box = [x0, y0, x1 - x0, y1 - y0]
            area = box[2] * box[3]
            objects.append({**entry, "bbox": box, "area": area, "iscrowd": int(crowd)})
        for x0, y0, x1, y1, score, label in boxes.tolist():
            box = [x0, y0, x1 - x0, y1 - y0]
            entry = {"image_id": image, "category_id": int(label), "score": score, "bbox": box}
            results.append(entry)
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


def published(model, names, file):
    """Save a classifier's state under other names, in its own order."""
    state = {}
    for name, x in model.state_dict().items():
        own, _, last = name.rpartition(".")
        classifier = name.startswith(("head.", "classifier."))
        place = "classifier" if classifier else names.setdefault(own, f"features.{len(names)}")
        state[f"{place}.{own.count('.') if classifier else 0}.{last}"] = x
    torch.save(state, file)


def _vgg(*widths):
    """A classifier with VGG's stages."""
    trunk = torch.nn.ModuleList(vgg_stages(widths))
    classifier = torch.nn.Sequential(torch.nn.Linear(trunk[-1][-3].out_channels, 2))
    return torch.nn.ModuleDict({"stages": trunk, "classifier": classifier})


def test_published_weights_are_those_of_the_trunk(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    file = tmp_path / "pretrained" / "resnet18.pth"
    with refuses("resnet18.pth"):
        Detection("centernet", "coco", "pretrained").model()
    file.parent.mkdir()
    seed_everything(3)
    classifier = resnet18()
    published(classifier, {}, file)
    model = Detection("centernet", "coco", "pretrained").model()
    for ours, theirs in zip(_trunk(model), [classifier.stem, *classifier.stages], strict=True):
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_other_weights_are_refused_and_change_nothing(tmp_path):
    published(_vgg((4,), (6,)), {}, tmp_path / "small.pth")
    other = _vgg((4,), (8,))
    before = [x.clone() for x in other.state_dict().values()]
    with refuses((6, 4, 3, 3), (8, 4, 3, 3)):
        load_published(other["stages"], tmp_path / "small.pth")
    assert all(torch.equal(a, b) for a, b in zip(before, other.state_dict().values(), strict=True))
    with refuses(12, 6):
        load_published(other["stages"][:1], tmp_path / "small.pth")


def test_centernet_finds_the_objects_of_which_its_loss_is_least():
    """Maps that are right everywhere are decoded as the truth."""
    boxes, labels = torch.tensor([[[4.0, 8, 20, 20], [24, 20, 44, 44]]]), torch.tensor([[0, 1]])
    hot = heat(boxes / 4, labels, 2, 12, 12)
    sizes, shifts = torch.zeros(2, 1, 2, 12, 12)
    for x0, y0, x1, y1 in (boxes[0] / 4).tolist():
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        sizes[0, :, int(y), int(x)] = torch.tensor([x1 - x0, y1 - y0])
        shifts[0, :, int(y), int(x)] = torch.tensor([x - int(x), y - int(y)])
    maps = torch.where(hot == 1, 14.0, -14.0), sizes, shifts  # a sure yes at the centers alone
    ((first, second, *_),) = centernet_detections(maps, 4, count=2)
    found = torch.stack([first, second])
    found = found[found[:, 5].argsort()]
    torch.testing.assert_close(found[:, :4], boxes[0])
    assert found[:, 5].tolist() == [0, 1]
    assert centernet_loss(maps, boxes, labels, 4) < 1e-6


@pytest.mark.parametrize("detector", ["centernet", "ssd"])
def test_every_shard_is_called_as_a_module(detector):
    """Fully sharded training gathers a shard's weights when the shard is called."""
    task = Detection(detector)
    model = task.model()
    called = []
    for shard in task.shards(model):
        assert any(True for _ in shard.parameters())
        shard.register_forward_hook(lambda module, *_: called.append(module))
    model(torch.zeros(2, 3, 32, 32))
    assert {*called} == {*task.shards(model)}
