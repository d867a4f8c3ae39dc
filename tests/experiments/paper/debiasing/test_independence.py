"""HSIC: equal to its definition as a mean over quadruples."""

from itertools import permutations

import pytest
import torch

from spherenorm_experiments.paper.debiasing.debiasing import hsic


def _kernel(a, b, sigma):
    return torch.exp(-((a - b) ** 2).sum() / (2 * sigma**2))


def _of_quadruples(x, y, sigma):
    """The mean of k_ij (l_ij + l_qr - 2 l_iq) over all i, j, q, r that differ (Song et al.)."""
    total = []
    for i, j, q, r in permutations(range(len(x)), 4):
        k = _kernel(x[i], x[j], sigma)
        same, far, crossed = (_kernel(y[a], y[b], sigma) for a, b in ((i, j), (q, r), (i, q)))
        total.append(k * (same + far - 2 * crossed))
    return torch.stack(total).mean()


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
    distances = [float(((a - b) ** 2).sum()) for a, b in permutations(x, 2)]
    sigma = torch.tensor(distances).double().median().sqrt().item()
    scaled = (
        y
        * sigma
        / torch.tensor([((a - b) ** 2).sum() for a, b in permutations(y, 2)]).median().sqrt()
    )
    assert abs(hsic(x, y) - hsic(x, scaled, sigma)) < 1e-6


def test_few_or_equal_items_give_zero_and_finite_gradients():
    for x in (torch.randn(3, 2), torch.ones(8, 2)):
        x.requires_grad_()
        value = hsic(x, x)
        value.backward()
        assert value.isfinite()
        assert x.grad.isfinite().all()
    assert hsic(torch.randn(3, 2), torch.randn(3, 2)) == 0
