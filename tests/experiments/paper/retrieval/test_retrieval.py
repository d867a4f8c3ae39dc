"""Retrieval: recall@1 against a loop, losses, batches, and the embedding."""

import math
from dataclasses import replace

import pytest
import torch
from running import run_of
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.lookup import find_task
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.train import Training
from spherenorm_paper.retrieval.images import BOTH, GALLERY, QUERY
from spherenorm_paper.retrieval.retrieval import Embedding, balanced, recall_at_1
from spherenorm_paper.shared.resnet import ResNet


@pytest.mark.parametrize("divided", [False, True])
def test_recall_is_that_of_a_loop(divided):
    torch.manual_seed(0)
    labels = torch.cat([torch.randint(8, (59,)), torch.tensor([99])])  # one has no match
    x = F.normalize(torch.randn(60, 8) + 2 * F.one_hot(labels % 8, 8))
    roles = torch.randint(2, (60,)) if divided else torch.full((60,), BOTH)
    hits = []
    for q in range(60):
        others = [g for g in range(60) if g != q and roles[g] != QUERY]
        if roles[q] != GALLERY and any(labels[g] == labels[q] for g in others):
            nearest = max(others, key=lambda g: float(x[q] @ x[g]))
            hits.append(bool(labels[nearest] == labels[q]))
    found = recall_at_1(x, labels, roles)
    assert found == pytest.approx(100 * sum(hits) / len(hits), abs=1e-6)
    assert 10 < found < 90


def test_there_is_no_recall_of_a_network_that_has_diverged_nor_without_a_gallery():
    """The first items of a test set, which a rehearsal scores, may be queries alone."""
    assert math.isnan(recall_at_1(torch.full((8, 4), torch.nan), torch.arange(8), torch.ones(8)))
    x, labels = F.normalize(torch.randn(8, 4)), torch.arange(8)
    assert math.isnan(recall_at_1(x, labels, torch.full((8,), QUERY)))


def test_the_triplet_loss_is_the_mean_over_semi_hard_triplets():
    task = find_task("retrieval", {"objective": "triplet"})
    torch.manual_seed(0)
    model = task.model().double()
    images, labels, _ = (x[:24] for x in task.data().train)
    images, labels = images.double(), labels % 6
    x = model(images)
    same, far = labels[:, None] == labels, torch.cdist(x, x)
    gap = far[:, None, :] - far[:, :, None]  # of anchor, positive, negative
    triplets = (same.fill_diagonal_(False)[:, :, None]) & (labels[:, None] != labels)[:, None]
    semi_hard = triplets & (gap > 0) & (gap < 0.1)
    torch.testing.assert_close(model(images, labels), (0.1 - gap)[semi_hard].mean())


def test_the_proxy_anchor_loss_is_the_papers_formula():
    task = find_task("retrieval", {"objective": "proxy-anchor"})
    torch.manual_seed(0)
    model = task.model().double()
    images, labels, _ = (x[:30] for x in task.data().train)
    images = images.double()
    cosines = model(images) @ F.normalize(model.criterion.proxies).T
    own = labels[:, None] == torch.arange(cosines.shape[1])
    positive = torch.where(own, torch.exp(-32 * (cosines - 0.1)), 0).sum(0).log1p()
    negative = torch.where(own, 0, torch.exp(32 * (cosines + 0.1))).sum(0).log1p()
    expected = positive[own.any(0)].mean() + negative.mean()
    torch.testing.assert_close(model(images, labels), expected)


def test_balanced_batches_have_a_few_images_of_each_of_some_classes():
    labels = torch.tensor([0] * 9 + [1] * 9 + [2] * 9 + [3] * 9 + [4] * 2)
    order = balanced(labels, 3, 38, 12, torch.Generator().manual_seed(0))
    assert len(order) == 38
    for batch in order.split(12)[:-1]:
        counts = labels[batch].bincount(minlength=5)
        assert sorted(counts.tolist()) == [0, 3, 3, 3, 3]
        wide = [i for i in batch.tolist() if labels[i] != 4]
        assert len(set(wide)) == len(wide)
    again = balanced(labels, 3, 38, 12, torch.Generator().manual_seed(0))
    assert torch.equal(order, again)
    few = balanced(torch.tensor([0, 0, 1, 1]), 1, 4, 4, torch.Generator())  # 4 images of 2 classes
    assert few.shape == (4,)


def test_norms_are_measured_of_a_model_that_takes_the_labels_too(tmp_path):
    options = {"objective": "proxy-anchor"}
    spec = Spec("retrieval", "adamp", {"lr": 1e-3}, options, epochs=1, batch_size=60)
    outcome = execute_spec(replace(spec, probes=("norms",)), tmp_path)
    assert outcome.state == "finished", outcome.error


def test_the_last_layer_trains_alone_in_so_many_steps():
    spec = Spec("retrieval", "adamp", {"lr": 1e-2}, {"per_class": 4}, batch_size=60)
    epochs = 2 / run_of(spec).steps_per_epoch
    run = run_of(replace(spec, options={**spec.options, "frozen_epochs": epochs}))
    training = Training(run, run.task)
    stem = training.module.embedding.trunk[0]
    start = [x.detach().clone() for x in stem.parameters()]
    moved = []
    for step in range(4):
        training.step(step)
        moved.append(not all(map(torch.equal, stem.parameters(), start)))
    assert moved == [False, False, True, True]


def small(**options):
    torch.manual_seed(0)
    return Embedding(ResNet("basic", (1, 1), 4, stem="small", classes=3), 6, **options)


def test_features_are_mean_plus_maximum_and_embeddings_have_length_1():
    model, images = small().eval(), torch.randn(3, 3, 8, 8)
    features = model.trunk(images)
    mean, most = (
        pool(1)(features).flatten(1) for pool in (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    )
    expected = model.linear(mean + most)
    torch.testing.assert_close(model(images), expected / expected.norm(dim=1, keepdim=True))
