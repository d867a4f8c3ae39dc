"""ImageNet's classes, its held-out part, and its augmentation, on a miniature."""

import os

import pytest
import torch
from miniatures import SYNSETS_OF_IMAGENET, write_imagenet

from spherenorm_experiments.paper.shared.augmentation import rand_augment
from spherenorm_experiments.paper.shared.imagenet import CLASSES, imagenet
from spherenorm_experiments.paper.shared.layout import FOLDER


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    write_imagenet(tmp_path)
    return tmp_path / "imagenet"


@pytest.mark.usefixtures("folder")
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


def test_at_most_ten_files_of_a_synset_are_held_out(folder):
    synset = folder / "train" / SYNSETS_OF_IMAGENET[3]
    for k in range(100):
        os.link(folder / "pictures" / "0.jpg", synset / f"more_{k:03}.JPEG")
    train, validation, _ = imagenet(8)
    assert (validation.labels == 3).sum() == 10
    assert (train.labels == 3).sum() == 92


@pytest.mark.usefixtures("folder")
def test_items_draw_their_augmentation_from_the_global_state():
    train, _, test = imagenet(8, rand_augment)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(train[0][0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(test[0][0], test[0][0])
