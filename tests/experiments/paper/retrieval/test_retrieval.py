"""Retrieval: recall@1 against the library and a loop, losses against plain formulas, batches."""

import math

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from running import run_of
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import Regime, Spec, find_task
from spherenorm_experiments.engine import Training
from spherenorm_experiments.paper.retrieval.glyph_classes import BOTH, GALLERY, QUERY
from spherenorm_experiments.paper.retrieval.retrieval import balanced, recall_at_1


def library(query, query_labels, reference, reference_labels, same):
    calculator = AccuracyCalculator(
        include=("precision_at_1",), k=1, knn_func=CustomKNN(CosineSimilarity())
    )
    found = calculator.get_accuracy(query, query_labels, reference, reference_labels, same)
    return 100 * found["precision_at_1"]


def by_loop(x, labels, roles):
    hits = []
    for i, role in enumerate(roles.tolist()):
        if role == GALLERY:
            continue
        others = [j for j, r in enumerate(roles.tolist()) if j != i and r != QUERY]
        if not any(labels[j] == labels[i] for j in others):
            continue
        nearest = max(others, key=lambda j: float(x[i] @ x[j]))
        hits.append(labels[nearest] == labels[i])
    return 100 * sum(map(float, hits)) / len(hits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("divided", [False, True])
def test_recall_is_that_of_the_library_and_of_a_loop(seed, divided, monkeypatch):
    monkeypatch.setattr("spherenorm_experiments.paper.retrieval.retrieval.CHUNK", 7)
    torch.manual_seed(seed)
    labels = torch.cat([torch.randint(8, (59,)), torch.tensor([99])])  # one has no match
    x = F.normalize(torch.randn(60, 8) + 2 * F.one_hot(labels % 8, 8))
    roles = torch.randint(2, (60,)) if divided else torch.full((60,), BOTH)
    found = recall_at_1(x, labels, roles)
    assert found == pytest.approx(by_loop(x, labels, roles), abs=1e-6)
    q, g = roles != GALLERY, roles != QUERY
    theirs = library(x[q], labels[q], x[g], labels[g], not divided)
    assert found == pytest.approx(theirs, abs=1e-6)
    assert 10 < found < 90


def test_recall_of_queries_without_a_gallery_is_no_number():
    """The first items of a test set, which a rehearsal scores, may be queries alone."""
    x, labels = F.normalize(torch.randn(8, 4)), torch.arange(8)
    assert math.isnan(recall_at_1(x, labels, torch.full((8,), QUERY)))


def test_the_triplet_loss_is_the_mean_over_semi_hard_triplets():
    task = find_task("retrieval", {"objective": "triplet"})
    torch.manual_seed(0)
    model = task.model().double()
    images, labels, _ = (x[:24] for x in task.data().train)
    images, labels = images.double(), labels % 6
    x = model(images)
    terms = []
    for a in range(24):
        for p in range(24):
            for n in range(24):
                if a != p and labels[a] == labels[p] and labels[a] != labels[n]:
                    gap = (x[a] - x[n]).norm() - (x[a] - x[p]).norm()
                    if 0 < gap < 0.1:
                        terms.append(0.1 - gap)
    torch.testing.assert_close(model(images, labels), torch.stack(terms).mean())


def test_the_proxy_anchor_loss_is_the_papers_formula():
    task = find_task("retrieval", {"objective": "proxy-anchor"})
    torch.manual_seed(0)
    model = task.model().double()
    images, labels, _ = (x[:30] for x in task.data().train)
    images = images.double()
    cosines = model(images) @ F.normalize(model.criterion.proxies).T
    positive, negative, present = 0.0, 0.0, 0
    for proxy in range(cosines.shape[1]):
        own = labels == proxy
        if own.any():
            present += 1
            positive += torch.log(1 + torch.exp(-32 * (cosines[own, proxy] - 0.1)).sum())
        negative += torch.log(1 + torch.exp(32 * (cosines[~own, proxy] + 0.1)).sum())
    expected = positive / present + negative / cosines.shape[1]
    torch.testing.assert_close(model(images, labels), expected)


@pytest.mark.parametrize("objective", ["triplet", "proxy-anchor"])
def test_the_audit_finds_the_last_layer_and_the_proxies(objective):
    options = {"objective": objective, "proxy_factor": 100.0}
    training = Training(*_run(options))
    views = training.watched.views
    assert views["embedding.linear.weight"] == "layer"
    assert all(view == "channel" for name, view in views.items() if "trunk" in name)
    rates = {len(group["params"]): group["lr"] for group in training.optimizer.param_groups}
    if objective == "proxy-anchor":
        assert views["criterion.proxies"] == "channel"
        assert rates[1] == 100 * 1e-2
    else:
        assert len(rates) == 1


def test_half_precision_leaves_the_proxies_in_float32():
    task = find_task("retrieval", {"objective": "proxy-anchor"})
    model, (images, labels, _) = task.model(), task.data().train
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(images[:4], labels[:4]).backward()
    assert model.criterion.proxies.dtype == torch.float32


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


def test_the_last_layer_trains_alone_in_so_many_steps():
    steps = _run({"per_class": 4})[0].steps_per_epoch
    run, task = _run({"per_class": 4}, regime=Regime(frozen=("embedding.trunk.", 2 / steps)))
    training = Training(run, task)
    stem = training.module.embedding.trunk.stem
    start = [x.detach().clone() for x in stem.parameters()]
    moved = []
    for step in range(4):
        training.step(step)
        same = all(map(torch.equal, stem.parameters(), start))
        moved.append(not same)
    assert moved == [False, False, True, True]


def _run(options, batch_size=60, lr=1e-2, **more):
    spec = Spec("retrieval", "adamp", {"lr": lr}, options, batch_size=batch_size, **more)
    return run_of(spec), find_task("retrieval", options)
