"""CIFAR-10: images and labels of the official files, and the augmentation."""

import numpy as np
import pytest
import torch
from miniatures import random_cifar10, write_cifar10

from spherenorm_experiments.paper.adversarial.cifar import CifarImages, read_cifar10

COUNT = 3
"""Images of each file of the miniature."""


@pytest.fixture
def content():
    return random_cifar10(COUNT)


def test_images_and_labels_are_those_of_the_files(tmp_path, content):
    write_cifar10(tmp_path, *content)
    folder = tmp_path / "cifar10"
    images, labels = content
    for train, part in ((True, slice(0, 5)), (False, slice(5, 6))):
        found, classes = read_cifar10(folder, train)
        assert torch.equal(found.flatten(1), torch.from_numpy(images[part].reshape(-1, 3072)))
        assert classes.tolist() == labels[part].flatten().tolist()
        assert found.shape[1:] == (3, 32, 32)


def test_planes_are_red_green_and_blue(tmp_path, content):
    images, labels = content
    images[0, 0] = np.repeat([10, 20, 30], 1024)
    write_cifar10(tmp_path, images, labels)
    first = read_cifar10(tmp_path / "cifar10", train=True)[0][0]
    assert [plane.unique().tolist() for plane in first] == [[10], [20], [30]]


def test_augmentation_shifts_and_flips_and_draws_from_the_global_state():
    image = torch.arange(1, 3 * 32 * 32 + 1).remainder(251).add(1).to(torch.uint8)
    image = image.reshape(1, 3, 32, 32)
    padded = torch.nn.functional.pad(image[0], (4,) * 4)
    shifted = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    possible = {(crop.float() / 255).numpy().tobytes() for crop in shifted}
    possible |= {(crop.flip(2).float() / 255).numpy().tobytes() for crop in shifted}
    items = CifarImages(image, torch.tensor([7]), augment=True)
    torch.manual_seed(0)
    drawn = [items[0][0].numpy().tobytes() for _ in range(200)]
    torch.manual_seed(0)
    assert drawn[:5] == [items[0][0].numpy().tobytes() for _ in range(5)]
    assert set(drawn) <= possible
    assert len(set(drawn)) > 100
    plain = CifarImages(image, torch.tensor([7]))
    assert torch.equal(plain[0][0], image[0] / 255)
    assert plain.fingerprint() != items.fingerprint()
