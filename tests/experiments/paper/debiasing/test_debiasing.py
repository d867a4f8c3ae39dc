"""ReBias: one loss for both networks, what the metrics count, and the official files."""

import copy

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import find_task
from spherenorm_experiments.paper.debiasing.biased import COLOURS
from spherenorm_experiments.paper.debiasing.debiasing import grouped_accuracy, hsic


def _values(shares):
    return {name: share.value([share.state]) for name, share in shares.items()}


def test_one_gradient_is_that_of_the_two_losses_of_rebias():
    """Of CE + HSIC for f and CE - HSIC for g, each with the other's features held."""
    task = find_task("debiasing", {"dependence": 3.0})
    torch.manual_seed(0)
    model = task.model().train()
    images, labels = task.first_batch(task.data().train, 40)
    other = copy.deepcopy(model)
    task.loss(model, (images, labels)).backward()
    f_logits, f_features, g_logits, g_features = other(images.float() / 127.5 - 1)
    of_f = F.cross_entropy(f_logits, labels) + 3 * hsic(f_features, g_features.detach(), 1.0)
    of_g = F.cross_entropy(g_logits, labels) - 3 * hsic(f_features.detach(), g_features, 1.0)
    of_f.backward()
    of_g.backward()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert hsic(f_features, g_features, 1.0) > 1e-3  # else the signs do not matter


def _tenth(labels):
    """The share of images in the colour of their class: of each class a tenth, rounded down."""
    counts = torch.bincount(labels) // 2  # half of the images are biased
    share = float((counts // 10).sum() / counts.sum())
    assert 0.07 < share <= 0.1
    return share


def test_a_network_that_sees_the_colour_alone_is_right_where_the_colour_is():
    """g is at 100 % on biased images and at 10 % on the others, whatever it has learned."""
    task = find_task("debiasing")
    torch.manual_seed(0)
    pictures, labels, parts = task.data().test

    class ByColour(torch.nn.Module):
        def forward(self, x):
            colours = (torch.tensor(COLOURS) / 127.5 - 1)[None, :, :, None, None]
            near = (x[:, None] - colours).abs().amax(2) < 1e-3
            return (near.flatten(2).sum(2).float(),)

    found = _values(task.evaluate(ByColour(), (pictures, labels, parts)))
    assert found["biased accuracy"] == 100
    assert found["unbiased accuracy"] == pytest.approx(100 * _tenth(labels))
    assert next(iter(found)) == "unbiased accuracy"


def test_grouped_accuracy_equals_a_plain_loop():
    torch.manual_seed(0)
    labels, clusters = torch.randint(4, (300,)), torch.randint(5, (300, 3))
    hits = 100.0 * (torch.rand(300) < 0.2 * (1 + labels)).double()
    repeats = []
    for k in range(3):
        means = []
        for label in range(4):
            for cluster in range(5):
                group = hits[(labels == label) & (clusters[:, k] == cluster)]
                if len(group) >= 15:
                    means.append(float(group.mean()))
        assert 0 < len(means) < 20  # small groups are left out
        repeats.append(sum(means) / len(means))
    expected = sum(repeats) / 3
    assert grouped_accuracy(hits, labels, clusters, least=15) == pytest.approx(expected, abs=1e-9)
