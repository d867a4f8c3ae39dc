"""ImageNet's layout, on a miniature: 1,000 synsets of two small JPEG files each."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from spherenorm_experiments.paper.shared.augmentation import rand_augment
from spherenorm_experiments.paper.shared.imagenet import (
    CLASSES,
    LAYOUT,
    _splits,
    imagenet,
)
from spherenorm_experiments.paper.shared.layout import FOLDER, checked

SYNSETS = [f"n{10_000_000 + 7 * k}" for k in range(CLASSES)]


def write_picture(path, k):
    """A JPEG of 20 x 16 pixels in the colour of number k."""
    color = (k % 250, (k // 4) % 250, 128)
    Image.new("RGB", (20, 16), color).save(path, quality=95)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """The layout with synset folders in val."""
    root = tmp_path_factory.mktemp("data")
    write_imagenet(root / "imagenet")
    return root


def write_imagenet(folder, pictures=4):
    """A miniature: in training two files for each synset, in val one; few different pictures."""
    (folder / "pictures").mkdir(parents=True)
    for k in range(pictures):
        write_picture(folder / "pictures" / f"{k}.jpg", 60 * k)
    for number, synset in enumerate(SYNSETS):
        for part, names in (("train", ("1", "2")), ("val", ("1",))):
            place = folder / part / synset
            place.mkdir(parents=True)
            for name in names:
                source = folder / "pictures" / f"{number % pictures}.jpg"
                os.link(source, place / f"{synset}_{name}.JPEG")


@pytest.fixture(autouse=True)
def _folder(miniature, monkeypatch):
    monkeypatch.setenv(FOLDER, str(miniature))


def test_classes_are_the_synsets_in_order_and_a_part_of_training_is_held_out():
    train, validation, test = imagenet(8)
    assert [len(part) for part in (train, validation, test)] == [CLASSES] * 3
    for part in (train, validation, test):
        assert part.labels.tolist() == list(range(CLASSES))
    assert not set(train.files) & set(validation.files)
    image, label = test[5]
    assert image.shape == (3, 8, 8)
    assert label == 5
    # Class 5 has the picture of number 5 % 4.
    red = (60 / 255 - 0.485) / 0.229
    assert image[0].mean().item() == pytest.approx(red, abs=0.05)


def test_at_most_ten_files_of_a_synset_are_held_out(tmp_path, monkeypatch):
    shutil.copytree(data_of(os.environ), tmp_path / "imagenet", copy_function=os.link)
    source = tmp_path / "imagenet" / "pictures" / "0.jpg"
    for k in range(100):
        os.link(source, tmp_path / "imagenet" / "train" / SYNSETS[3] / f"more_{k:03}.JPEG")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    train, validation, _ = imagenet(8)
    assert (validation.labels == 3).sum() == 10
    assert (train.labels == 3).sum() == 92


def data_of(environment):
    return Path(environment[FOLDER]) / "imagenet"


def test_items_draw_their_augmentation_from_the_global_state():
    train, _, test = imagenet(8, rand_augment)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(train[0][0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(test[0][0], test[0][0])


def test_wrong_and_partial_layouts_are_named(tmp_path, monkeypatch):
    folder = tmp_path / "imagenet"
    shutil.copytree(data_of(os.environ), folder, copy_function=os.link)
    monkeypatch.setenv(FOLDER, str(tmp_path))

    def error():
        _splits.cache_clear()
        with pytest.raises(ValueError, match="expected\nimagenet/\n  train/n01440764") as error:
            imagenet(8)
        return str(error.value)

    (folder / "val" / SYNSETS[0]).rename(folder / "val" / "n99999999")
    assert "has other synsets in val than in train" in error()
    shutil.rmtree(folder / "val" / SYNSETS[1])
    assert "has 999 folders in val, not 1,000" in error()
    shutil.rmtree(folder / "train" / SYNSETS[0])
    assert "has 999 folders in train, not 1,000" in error()
    shutil.rmtree(folder / "val")
    assert "lacks val;" in error()


def test_a_synset_without_pictures_is_named(tmp_path, monkeypatch):
    shutil.copytree(data_of(os.environ), tmp_path / "imagenet", copy_function=os.link)
    for path in (tmp_path / "imagenet" / "val" / SYNSETS[7]).iterdir():
        path.rename(path.with_suffix(".png"))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=f"has no JPEG files in val/{SYNSETS[7]}"):
        imagenet(8)


def test_the_fingerprint_knows_files_and_their_content(tmp_path, monkeypatch):
    before = [part.fingerprint() for part in imagenet(8)]
    shutil.copytree(data_of(os.environ), tmp_path / "imagenet")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert [part.fingerprint() for part in imagenet(8)] == before  # the folder does not count
    write_picture(tmp_path / "imagenet" / "val" / SYNSETS[0] / f"{SYNSETS[0]}_1.JPEG", 99)
    assert imagenet(8).test.fingerprint() != before[2]
    assert imagenet(8).train.fingerprint() == before[0]


def test_counts_are_those_of_the_folder(miniature):
    assert checked(LAYOUT, miniature / "imagenet") == {
        "classes": (1000, 1000),
        "training images": (1_281_167, 2000),
        "validation images": (50_000, 1000),
    }
