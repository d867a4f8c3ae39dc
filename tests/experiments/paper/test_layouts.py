"""The official layouts: what of a miniature of each is counted, missing, damaged or changed."""

import re
import shutil

import numpy as np
import pytest
from miniatures import SYNSETS_OF_IMAGENET, WRITERS, idx
from scipy.io import savemat

from spherenorm_experiments.core import Splits, find_task
from spherenorm_experiments.core._task import fingerprint_of
from spherenorm_experiments.paper.audio.recordings import PARTS
from spherenorm_experiments.paper.retrieval.photos import PARTITION
from spherenorm_experiments.paper.shared.layout import FOLDER, checked, layouts

LAYOUTS = layouts()
OPTIONS = {
    **{name: ("retrieval", {"side": 24}) for name in ("cars-196", "cub", "in-shop", "sop")},
    "cifar10": ("adversarial", {}),
    "coco": ("detection", {"side": 32}),
    "dcase2017": ("events", {}),
    "imagenet": ("classification", {"side": 8}),
    "magnatagatune": ("tagging", {}),
    "mnist": ("debiasing", {"data_set": "biased-mnist"}),
    "nine-class": ("debiasing", {}),
    "speech_commands": ("keywords", {}),
    "wikitext-103": ("language", {"segment": 20, "memory": 20}),
}
"""A task that reads each layout."""

TRAIN_AND_TEST = {"train classes": 2, "test classes": 2, "train images": 4}
COUNTS = {
    "cars-196": {**TRAIN_AND_TEST, "test images": 3},
    "cub": {**TRAIN_AND_TEST, "test images": 4},
    "in-shop": {**TRAIN_AND_TEST, "query images": 2, "gallery images": 3},
    "sop": {**TRAIN_AND_TEST, "test images": 4},
    "cifar10": {"training images": 20, "test images": 4, "classes": 9},
    "coco": {"classes": 80, "images": 24, "training images": 20, "validation images": 4},
    "dcase2017": {"training clips": 34, "testing clips": 1, "evaluation clips": 2,
                  "audio files": 37, "events": 17},
    "imagenet": {"classes": 1000, "training images": 2000, "validation images": 1000},
    "magnatagatune": {"clips": 18, "audio files": 18, "tags": 50},
    "mnist": {"training images": 30, "test images": 10, "classes": 10},
    "nine-class": {"classes": 9, "validation images": 9, "ImageNet-A images": 9},
    "speech_commands": {"words": 35, "clips": 105, "validation clips": 35, "test clips": 35},
    "wikitext-103": {"vocabulary": 101, "train tokens": 840, "valid tokens": 252,
                     "test tokens": 252},
}  # fmt: skip
"""Of the miniatures."""

TOTALS = {"cub": 11_788, "cars-196": 16_185, "in-shop": 52_712, "sop": 120_053}
"""Images, in the descriptions of the data sets."""


def data_of(name):
    task, options = OPTIONS[name]
    return find_task(task, {"data_set": name, **options}).data()


@pytest.fixture
def root(request, tmp_path, monkeypatch):
    """The folder of `--data`, with a miniature of the layout that the test is about."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    WRITERS[request.node.callspec.params["name"]](tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_there_is_counted_beside_the_official_numbers(name, root):
    layout = LAYOUTS[name]
    expected = {key: (layout.statistics[key][0], count) for key, count in COUNTS[name].items()}
    assert checked(layout, root / name) == expected
    images = sum(x for key, (x, _) in layout.statistics.items() if "images" in key)
    assert images == TOTALS.get(name, images)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_missing_path_is_named_with_the_expected_tree(name, root, monkeypatch):
    layout = LAYOUTS[name]
    assert (layout.name, layout.tree.strip().startswith(f"{name}/")) == (name, True)
    for path in layout.paths:
        there = root / name / path.partition(" or ")[0]
        there.rename(root / "aside")
        with pytest.raises(ValueError, match=re.escape(f"lacks {path}; expected\n{name}/")):
            data_of(name)
        (root / "aside").rename(there)
    monkeypatch.delenv(FOLDER)
    with pytest.raises(ValueError, match=f"{layout.title} lies on disk: give its folder by --data"):
        data_of(name)


def written(content):
    return lambda path: path.write_bytes(content)


def changed(old, new, count=1):
    return lambda path: path.write_text(path.read_text().replace(old, new, count))


def added(text):
    return lambda path: path.write_text(path.read_text() + text)


def lost(path):
    path.unlink()


LABELS, CLUSTERS = "mnist/t10k-labels-idx1-ubyte", "nine-class/9class_imagenet_val.csv"
BATCH, OBJECTS = "cifar10/cifar-10-batches-bin/{}", "coco/annotations/instances_train2017.json"
TESTED = f"{PARTS['testing']}/Yte00_30.000_40.000.wav"
VAL = f"val/{SYNSETS_OF_IMAGENET[7]}"
DAMAGES = {
    "cars-196/cars_annos.mat": (
        lambda path: savemat(path, {"other": 1}), "has no annotations of path and class"),
    "cub/image_class_labels.txt": (changed("2 99\n", ""), "has no class of image 2"),
    f"in-shop/{PARTITION}": (changed("9\n", "8\n"), f"has 9 images in {PARTITION}"),
    f"in-shop/{PARTITION} ": (changed("query", "asks"), "has the status 'asks'"),
    "sop/Ebay_train.txt": (changed("image_id", "id"), "has the heading 'id class_id "),
    BATCH.format("data_batch_2.bin"): (
        written(bytes(3072)), "data_batch_2.bin must have records of 3073 bytes"),
    BATCH.format("test_batch.bin"): (written(b"\n" * 3073), "labels from 0 to 9, got 10"),
    "coco/train2017/000000000002.jpg": (
        lost, "lacks train2017/000000000002.jpg, which annotations/instances_train2017.json has"),
    OBJECTS: (written(b'{"images": []}'), "has no 'annotations' in annotations/instances_train"),
    f"{OBJECTS} ": (written(b"<html>"), "has no JSON in annotations/instances_train2017"),
    f"{OBJECTS}  ": (
        changed(', {"id": 90, "name": "category 90"}', ""), "has 79 categories in annotations"),
    f"dcase2017/{TESTED}": (lost, f"lacks {TESTED}; expected\ndcase2017/"),
    "dcase2017/groundtruth_weak_label_testing_set.csv": (
        added("x.wav\t0\t10\tElephant\n"), "'Elephant'"),
    f"imagenet/{VAL}": (
        lambda path: path.rename(path.parent / "n99999999"), "has other synsets in val than in"),
    f"imagenet/{VAL} ": (shutil.rmtree, "has 999 folders in val, not 1,000"),
    f"imagenet/{VAL}/{SYNSETS_OF_IMAGENET[7]}_1.JPEG": (
        lambda path: path.rename(path.with_suffix(".png")), f"has no JPEG files in {VAL}"),
    "magnatagatune/b/clip-11.mp3": (lost, "lacks b/clip-11.mp3; expected\nmagnatagatune/"),
    "magnatagatune/annotations_final.csv": (
        written(b"a\tb\n"), "no clip_id and mp3_path in annotations_final.csv"),
    LABELS: (written(idx(np.zeros(10))[:-1]), "must have 10 bytes of shape [10], got 9"),
    f"{LABELS} ": (written(b"PK\x03\x04"), "no IDX file of bytes; it starts with '504b0304'"),
    f"{LABELS}  ": (written(idx(np.zeros(9))), "t10k must have a label for each image"),
    CLUSTERS: (
        added("n02123045/ILSVRC2012_val_1.JPEG,cat,0,0,0\n"),
        "lacks val/n02123045/ILSVRC2012_val_1.JPEG, which 9class"),
    f"{CLUSTERS} ": (
        added("n00000000/ILSVRC2012_val_1.JPEG,ghost,0,0,0\n"),
        "has a row in 9class_imagenet_val.csv that"),
    "speech_commands/zero/00000002_nohash_0.wav": (
        lost, "lacks zero/00000002_nohash_0.wav; expected\nspeech_commands/"),
    "wikitext-103/wiki.valid.tokens": (
        written(b" zebra \n"), "the word 'zebra' is not in the vocabulary"),
}  # fmt: skip
"""By file, with a space for each further one of it: a damage, and what is said of it."""


@pytest.mark.parametrize(("name", "file"), [(file.split("/")[0], file) for file in DAMAGES])
def test_damage_is_named(name, file, root):
    damage, said = DAMAGES[file]
    damage(root / file.rstrip())
    with pytest.raises(ValueError, match=re.escape(said)):
        data_of(name)


def touched(path):
    """Change a byte of a file that is nothing but data, else its length."""
    *before, last = content = path.read_bytes()
    raw = path.suffix == ".bin" or path.name.endswith("ubyte")
    path.write_bytes(bytes([*before, last ^ 1]) if raw else content + b" 1 \n")


TESTED_FILES = {
    "cars-196": "car_ims/000005.jpg",
    "cifar10": "cifar-10-batches-bin/test_batch.bin",
    "coco": "val2017/000000000001.jpg",
    "cub": "images/101.Bird/Bird_0.jpg",
    "dcase2017": f"{PARTS['evaluation']}/Yev00_30.000_40.000.wav",
    "imagenet": f"val/{SYNSETS_OF_IMAGENET[0]}/{SYNSETS_OF_IMAGENET[0]}_1.JPEG",
    "in-shop": "Img/img/WOMEN/Tees/id_00000007/00_front.jpg",
    "magnatagatune": "d/clip-13.mp3",
    "mnist": "t10k-images-idx3-ubyte",
    "nine-class": "../imagenet/val/n02085620/ILSVRC2012_val_00000000.JPEG",
    "sop": "bicycle_final/11319_0.JPG",
    "speech_commands": "backward/00000002_nohash_0.wav",
    "wikitext-103": "wiki.test.tokens",
}
"""A file of the test set."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_fingerprint_has_the_content_and_not_the_folder(name, root, monkeypatch):
    def found(folder):
        monkeypatch.setenv(FOLDER, str(folder))
        return [fingerprint_of(Splits(part, part, part)) for part in data_of(name)]

    before = found(root)
    assert len(set(before)) == 3 or name in TOTALS  # whose validation set is of training
    shutil.copytree(root, root / "elsewhere")
    touched(root / "elsewhere" / name / TESTED_FILES[name])
    after = found(root / "elsewhere")
    assert after[:2] == before[:2]
    assert after[2] != before[2]
