"""The norm-growth laws of the paper, on weights that real gradients of a scale-invariant function move."""

import pytest
import torch
from torch.func import grad

from spherenorm import find_recipe


def loss(weight):
    """Scale-invariant row by row: a nonlinear function of w/|w|."""
    unit = weight / weight.norm(dim=1, keepdim=True)
    target = torch.linspace(-1, 1, weight.numel(), dtype=weight.dtype).reshape(weight.shape)
    return ((unit - target) ** 3).sum() + torch.sin(3 * unit).prod(1).sum()


def walk(name, steps=200, **settings):
    rule = find_recipe(name)(**settings)
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state, path = rule.init(weight), [weight]
    for _ in range(steps):
        weight, state = rule.step(weight, grad(loss)(weight), state)
        path.append(weight)
    path = torch.stack(path)
    growth = (path[1:] ** 2).sum(2) - (path[:-1] ** 2).sum(2)
    squared_step = ((path[1:] - path[:-1]) ** 2).sum(2)
    return growth, squared_step


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgd", {"lr": 0.05}),  # Lemma 2.1
        ("sgdp", {"lr": 0.05, "momentum": 0.9}),  # Eq. 14
        ("sgdp", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        ("sgdp", {"lr": 0.05, "momentum": 0.9, "project_buffer": True}),
        ("adamp", {"lr": 0.01}),
        ("adamp", {"lr": 0.01, "nesterov": True}),
    ],
    ids=str,
)
def test_the_norm_grows_by_the_squared_step(name, settings):
    growth, squared_step = walk(name, **settings)
    torch.testing.assert_close(growth, squared_step, rtol=1e-9, atol=1e-13)


def test_momentum_adds_the_sum_of_lemma_2_2():
    lr, beta = 0.05, 0.9
    growth, squared_step = walk("sgd", lr=lr, momentum=beta)
    extra = torch.zeros_like(growth[0])
    for t in range(len(growth)):  # extra_t = 2 sum_{k<t} beta^(t-k) |dw_k|^2
        torch.testing.assert_close(growth[t], squared_step[t] + extra, rtol=1e-9, atol=1e-13)
        extra = beta * (extra + 2 * squared_step[t])
    assert growth.sum() > 1.5 * squared_step.sum()
