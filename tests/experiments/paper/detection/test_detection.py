"""Object detection: COCO's average precision, both detectors on both kinds of data, both starts."""

import contextlib
import io
import math

import pytest
import torch
from miniatures import write_coco
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from spherenorm_experiments.core import find_task, seed_everything
from spherenorm_experiments.paper.detection._average_precision import average_precision
from spherenorm_experiments.paper.detection.detection import Detection, _trunk
from spherenorm_experiments.paper.detection.ssd import vgg_stages
from spherenorm_experiments.paper.shared.layers import load_published
from spherenorm_experiments.paper.shared.layout import FOLDER
from spherenorm_experiments.paper.shared.resnet import resnet18

DETECTORS = ("centernet", "ssd")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_coco(folder)
    return folder


@pytest.fixture
def _coco(root, monkeypatch):
    monkeypatch.setenv(FOLDER, str(root))


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


@pytest.mark.parametrize("detector", DETECTORS)
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


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_small_detector_learns_a_batch_by_heart(detector):
    """The loss is consistent with the decoder: its minimum is detected as the truth."""
    task = Detection(detector)
    seed_everything(0)
    model = task.model()
    batch = task.first_batch(task.data().train, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        share = task.evaluate(model, batch)["AP"]  # in training mode: its batch's statistics
    assert average_precision(*share.state) > 50


@pytest.mark.parametrize("detector", DETECTORS)
def test_the_pretrained_start_is_a_trunk_and_the_rest_is_drawn(detector):
    models = []
    for start, seed in (("random", 0), ("pretrained", 0), ("pretrained", 1)):
        seed_everything(seed)
        models.append(Detection(detector, start=start).model())
    random, first, second = (model.state_dict() for model in models)
    trunk = ("trunk.", "stages.")
    for name, x in first.items():
        if name.startswith(trunk):
            assert torch.equal(x, second[name])
        elif x.dim() > 1 and x.abs().sum() > 0:
            assert not torch.equal(x, second[name]), name
            assert torch.equal(x, random[name]), name
    assert any(not torch.equal(x, random[name]) for name, x in first.items())


@pytest.mark.usefixtures("_coco")
def test_batches_are_padded_to_the_image_with_most_objects():
    task = Detection("ssd", "coco", side=32)
    images, objects = task.first_batch(task.data().test, 4)
    assert images.shape == (4, 3, 32, 32)
    assert objects.shape == (4, 3, 6)
    assert (objects[..., 4] >= 0).sum(1).tolist() == [2, 1, 0, 3]
    assert (objects[..., 5] == 1).sum() == 1
    empty = task.collate([task.data().test[2]])
    assert empty[1].tolist() == [[[-1] * 6]]


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
    trunk = torch.nn.ModuleList(vgg_stages(widths) if widths else vgg_stages())
    classifier = torch.nn.Sequential(torch.nn.Linear(trunk[-1][-3].out_channels, 2))
    return torch.nn.ModuleDict({"stages": trunk, "classifier": classifier})


@pytest.mark.parametrize("detector", DETECTORS)
def test_published_weights_are_those_of_the_trunk(detector, root, monkeypatch):
    monkeypatch.setenv(FOLDER, str(root))
    seed_everything(3)
    (root / "pretrained").mkdir(exist_ok=True)
    if detector == "centernet":
        classifier, file = resnet18(), root / "pretrained" / "resnet18.pth"
        parts = [classifier.stem, *classifier.stages]
    else:
        classifier, file = _vgg(), root / "pretrained" / "vgg16_bn.pth"
        parts = list(classifier["stages"])
    for module in classifier.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
    published(classifier, {}, file)
    task = Detection(detector, "coco", "pretrained")
    model = task.model()
    for ours, theirs in zip(_trunk(model), parts, strict=True):
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    before = task.fingerprint()
    file.write_bytes(file.read_bytes() + b" ")
    assert task.fingerprint() != before


def test_other_weights_are_refused_and_change_nothing(tmp_path):
    small = _vgg((4,), (6,))
    published(small, {}, tmp_path / "small.pth")
    other = _vgg((4,), (8,))
    before = [x.clone() for x in other.state_dict().values()]
    with pytest.raises(ValueError, match=r"\(6, 4, 3, 3\) where .* shape \(8, 4, 3, 3\)"):
        load_published(other["stages"], tmp_path / "small.pth")
    assert all(torch.equal(a, b) for a, b in zip(before, other.state_dict().values(), strict=True))
    with pytest.raises(ValueError, match="has 12 tensors before its classifier, and the trunk 6"):
        load_published(other["stages"][:1], tmp_path / "small.pth")
    with pytest.raises(ValueError, match="there is no file"):
        load_published(other["stages"], tmp_path / "none.pth")


def test_a_pretrained_start_without_its_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no file .*resnet18\.pth"):
        Detection("centernet", "coco", "pretrained").model()


@pytest.mark.parametrize("detector", DETECTORS)
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


def test_a_side_that_centernet_rounds_up_is_refused():
    """36 pixels are 18, 9, 5 on the way down and 10 on the way up, which are 40."""
    task = find_task("detection", {"side": 36})
    objects = torch.tensor([[[20.0, 20, 34, 34, 0, 0]]])
    with pytest.raises(ValueError, match="side must be a multiple of the trunk's stride, got 36"):
        task.loss(task.model(), (torch.zeros(1, 3, 36, 36), objects))
