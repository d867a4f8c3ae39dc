"""ReBias: biased images, HSIC, one loss for two networks, and what the metrics count."""

import copy
from itertools import permutations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.lookup import find_task
from spherenorm_paper.debiasing.biased import (
    COLOURS,
    colour_strokes,
    draw_grounds,
    handwritten_digits,
    stripe_strokes,
)
from spherenorm_paper.debiasing.debiasing import (
    bagnet18,
    conv_stack,
    grouped_accuracy,
    hsic,
)


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


def test_a_network_that_sees_the_colour_alone_is_right_where_the_colour_is():
    """g is at 100 % on biased images and at 10 % on the others, whatever it has learned."""
    task = find_task("debiasing")
    pictures, labels, parts = task.data().test

    class ByColour(torch.nn.Module):
        def forward(self, x):
            colours = (torch.tensor(COLOURS) / 127.5 - 1)[None, :, :, None, None]
            near = (x[:, None] - colours).abs().amax(2) < 1e-3
            return (near.flatten(2).sum(2).float(),)

    shares = task.evaluate(ByColour(), (pictures, labels, parts))
    found = {name: share.value([share.state]) for name, share in shares.items()}
    assert list(found) == ["unbiased accuracy", "biased accuracy"]
    assert found["biased accuracy"] == 100
    counts = torch.bincount(labels) // 2  # half of the images are biased
    tenth = float((counts // 10).sum() / counts.sum())  # of each class, rounded down
    assert found["unbiased accuracy"] == pytest.approx(100 * tenth)


def test_grouped_accuracy_equals_a_plain_loop():
    torch.manual_seed(0)
    labels, clusters = torch.randint(4, (300,)), torch.randint(5, (300, 3))
    hits = 100.0 * (torch.rand(300) < 0.2 * (1 + labels)).double()
    repeats = []
    for k in range(3):
        groups = [hits[(labels == a) & (clusters[:, k] == b)] for a in range(4) for b in range(5)]
        means = [float(group.mean()) for group in groups if len(group) >= 15]
        assert 0 < len(means) < 20  # small groups are left out
        repeats.append(sum(means) / len(means))
    expected = sum(repeats) / 3
    assert grouped_accuracy(hits, labels, clusters, min_count=15) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize(("rho", "own"), [(1.0, 100), (0.95, 95), (0.1, 10), (0.0, 0)])
def test_so_many_images_have_the_ground_of_their_class(rho, own):
    labels = torch.arange(1000) % 10
    grounds = draw_grounds(labels, rho, seed=0)
    for label in range(10):
        counts = torch.bincount(grounds[labels == label], minlength=10)
        assert counts[label] == own
        others = counts[torch.arange(10) != label]
        assert others.max() - others.min() <= 1  # evenly among the others


def test_strokes_are_white_on_the_colour_of_the_ground():
    strokes = torch.tensor([[[0, 1], [200, 0]]], dtype=torch.uint8).repeat(10, 1, 1)
    images = colour_strokes(strokes, torch.arange(10))
    assert images.shape == (10, 3, 2, 2)
    for image, colour in zip(images, COLOURS, strict=True):
        assert image[:, 0, 1].tolist() == image[:, 1, 0].tolist() == [255] * 3
        assert image[:, 0, 0].tolist() == image[:, 1, 1].tolist() == list(colour)
    assert len(set(COLOURS)) == 10


def test_stripes_are_told_by_direction_and_width_whatever_the_shape():
    strokes, _ = handwritten_digits(12)
    grounds = torch.arange(len(strokes)) % 10
    images = stripe_strokes(torch.zeros(len(strokes), 32, 32), grounds, seed=0)
    spectra = torch.fft.rfft2(images[:, 0].float() - images[:, 0].float().mean((1, 2), True)).abs()
    peaks = spectra.flatten(1).argmax(1)
    rows, columns = peaks // 17, peaks % 17
    rows = torch.where(rows > 16, rows - 32, rows).float()
    length = 32 / torch.hypot(rows, columns.float())
    angle = torch.rad2deg(torch.atan2(rows, columns.float())) % 180
    wanted = torch.tensor([3.0, 6.0])[grounds // 5]
    assert ((length - wanted).abs() < 0.2 * wanted).float().mean() > 0.95
    off = (angle - 36 * (grounds % 5) + 90) % 180 - 90
    assert (off.abs() < 12).float().mean() > 0.95


def _of_quadruples(x, y, sigma):
    """The mean of k_ij (l_ij + l_qr - 2 l_iq) over all i, j, q, r that differ (Song et al.)."""
    K, L = (torch.exp(-(torch.cdist(z, z) ** 2) / (2 * sigma**2)) for z in (x, y))
    every = permutations(range(len(x)), 4)
    terms = [K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q]) for i, j, q, r in every]
    return torch.stack(terms).mean()


@pytest.fixture
def features():
    torch.manual_seed(0)
    x = torch.randn(7, 3, dtype=torch.float64)
    return x, 0.5 * x[:, :2] + 0.3 * torch.randn(7, 2, dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
def test_equals_the_mean_over_quadruples(features, sigma):
    expected = _of_quadruples(*features, sigma)
    assert abs(hsic(*features, sigma) - expected) < 1e-12


def test_the_median_kernel_does_not_change_with_the_scale(features):
    x, y = features
    assert torch.allclose(hsic(x, y), hsic(100 * x, 0.01 * y), atol=1e-12)
    sigmas = [torch.pdist(z).repeat(2).median() for z in (x, y)]
    assert abs(hsic(x, y) - hsic(x / sigmas[0], y / sigmas[1], 1.0)) < 1e-12


def test_few_or_equal_items_give_zero_and_finite_gradients():
    for x in (torch.randn(3, 2), torch.ones(8, 2)):
        x.requires_grad_()
        value = hsic(x, x)
        value.backward()
        assert value.isfinite()
        assert x.grad.isfinite().all()
    assert hsic(torch.randn(3, 2), torch.randn(3, 2)) == 0


def _seen(maps, size):
    """The side of the square of pixels on which one pixel of the last map depends."""
    image = torch.rand(1, 3, size, size, requires_grad=True)
    out = maps(image)
    middle = out.shape[-1] // 2
    out[0, :, middle, middle].sum().backward()
    rows, columns = torch.nonzero(image.grad.abs().sum((0, 1)), as_tuple=True)
    spans = {int(x.max() - x.min()) + 1 for x in (rows, columns)}
    (side,) = spans
    return side


def test_a_feature_of_g_sees_little_and_one_of_f_much():
    """No shape fits into one pixel, or into 5 x 5 of 224 x 224."""
    torch.manual_seed(0)
    bag = bagnet18((16, 16, 16, 16)).eval()
    assert _seen(bag.body, 64) == 5
    assert _seen(conv_stack(1).eval().body, 9) == 1
    assert _seen(conv_stack(7, (8, 8, 8, 8)).eval().body, 40) == 25
