"""Image classification: data, networks of both sizes, CutMix, a full-size network that steps."""

import numpy as np
import pytest
import torch
from miniatures import write_imagenet
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm.optim import AdamP
from spherenorm_experiments.core import Splits, find_task
from spherenorm_experiments.paper.imagenet.classification import GLYPHS, SIDE
from spherenorm_experiments.paper.shared.augmentation import cutmix
from spherenorm_experiments.paper.shared.layers import StochasticDepth
from spherenorm_experiments.paper.shared.layout import FOLDER


def task_of(**options):
    return find_task("classification", options)


def test_glyphs_are_balanced_and_standardized_alike_in_all_splits():
    splits = task_of().data()
    for images, labels in splits:
        assert images.shape[1:] == (3, SIDE, SIDE)
        counts = torch.bincount(labels, minlength=len(GLYPHS))
        assert counts.max() - counts.min() <= 1
        white = (1 - 0.485) / 0.229  # the brightest red
        assert images[:, 0].max().item() <= white + 1e-6
        assert images.abs().mean() > 0.5
    rows = [split[0].flatten(1) for split in splits]
    assert len(torch.cat(rows).unique(dim=0)) == sum(map(len, rows))  # no image in two splits


def test_dropout_and_stochastic_depth_reach_the_network():
    network = task_of(network="rexnet-1.0", dropout=0.35, stochastic_depth=0.25).model()
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.35]
    rates = [m.rate for m in network.modules() if isinstance(m, StochasticDepth)]
    assert (rates[0], rates[-1]) == (0.0, 0.25)
    with torch.device("meta"):
        usual = task_of(network="efficientnet-b3", data_set="imagenet").model()
    assert [m.p for m in usual.modules() if isinstance(m, nn.Dropout)] == [0.3]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_cutmix_mixes_all_batches_or_none(share):
    task = task_of(cutmix=share)
    torch.manual_seed(0)
    model, batch = task.model(), task.first_batch(task.data().train, 16)
    torch.manual_seed(1)
    found = task.loss(model, batch)
    torch.manual_seed(1)
    images, labels = batch
    targets = F.one_hot(labels, len(GLYPHS)).float()
    if share:
        torch.rand(())
        images, targets = cutmix(images, targets)
    expected = -(targets * model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(found, expected)


def test_augmented_glyphs_are_those_of_training_and_nothing_else():
    plain, augmented = task_of().data(), task_of(augmentation="randaugment").data()
    for part in ("validation", "test"):
        assert torch.equal(getattr(plain, part)[0], getattr(augmented, part)[0])
    images, labels = plain.train
    assert len(augmented.train) == len(labels)
    drawn = []
    for seed in range(8):  # of two operations, some leave the picture as it is
        torch.manual_seed(seed)
        image, label = augmented.train[3]
        assert label == labels[3]
        drawn.append(image)
    assert any(not torch.equal(image, images[3]) for image in drawn)
    assert len(torch.stack(drawn).flatten(1).unique(dim=0)) > 4
    (batch,) = task_of(augmentation="randaugment").audit_inputs()
    assert batch.shape == (64, 3, SIDE, SIDE)


@pytest.fixture
def miniature(tmp_path, monkeypatch):
    """A task on ImageNet's layout with 8 pictures in 3,000 files."""
    images = np.random.default_rng(0).integers(0, 256, (8, 40, 50, 3), dtype=np.uint8)
    write_imagenet(tmp_path, images)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return task_of(network="mobilenetv2", data_set="imagenet", side=64)


def test_a_full_size_network_takes_two_steps_on_the_official_layout(miniature):
    task = miniature
    splits = task.data()
    assert isinstance(splits, Splits)
    torch.manual_seed(0)
    network = task.model()
    optimizer = AdamP(network.parameters(), lr=1e-3)
    weights = {
        f"{name}.weight": module.weight
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) and module.groups == 1
    }
    for step in range(2):
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer.zero_grad()
        batch = task.collate([splits.train[index] for index in range(8 * step, 8 * step + 8)])
        loss = task.loss(network, batch)
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
        for name, weight in weights.items():  # every channel moves at a right angle to itself
            old = before[name].flatten(1)
            moved = weight.detach().flatten(1) - old
            cosine = (old * moved).sum(1) / (old.norm(dim=1) * moved.norm(dim=1))
            assert cosine.abs().max() < 1e-3, name
    found = task.evaluate(network.eval(), task.first_batch(splits.test, 4))
    assert found["accuracy"].value([found["accuracy"].state]) in (0.0, 25.0, 50.0, 75.0, 100.0)
    assert task.audit_inputs()[0].shape == (8, 3, 64, 64)


def test_photographs_have_the_side_of_the_network(miniature):
    sides = {
        name: task_of(network=name, data_set="imagenet")._side
        for name in ("resnet50", "efficientnet-b1", "efficientnet-b3", "rexnet-1.3")
    }
    assert list(sides.values()) == [224, 240, 300, 224]
