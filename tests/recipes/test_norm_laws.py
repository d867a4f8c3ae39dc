"""The norm-growth laws of the paper, under real gradients of a scale-invariant function."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad

from spherenorm import find_recipe

SHAPES = [(4, 3), (5, 6), (8, 2)]


def loss(weight, layer=False):
    """Scale-invariant row by row, or as a whole: a nonlinear function of w/|w|."""
    unit = weight / (weight.norm() if layer else weight.norm(dim=1, keepdim=True))
    target = torch.linspace(-1, 1, weight.numel(), dtype=weight.dtype).reshape(weight.shape)
    return ((unit - target) ** 3).sum() + torch.sin(3 * unit).prod(1).sum()


def walk(name, steps=200, shape=(3, 5), seed=0, layer=False, decay=0.0, **settings):
    """|w'|^2 - a^2 |w|^2 and |w' - a w|^2 at each step, of each unit, for a = 1 - `decay`."""
    rule = find_recipe(name)(**settings)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    state, path = rule.init(weight), [weight]
    for _ in range(steps):
        weight, state = rule.step(weight, grad(loss)(weight, layer), state)
        path.append(weight)
    path = torch.stack(path)
    after, before = path[1:], (1 - decay) * path[:-1]
    units = (1, 2) if layer else 2
    return (after**2).sum(units) - (before**2).sum(units), ((after - before) ** 2).sum(units)


@settings(max_examples=20)
@given(
    lr=st.floats(0, 0.3),
    shape=st.sampled_from(SHAPES),
    layer=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_without_momentum_the_norm_grows_by_the_squared_step(lr, shape, layer, seed):
    """Lemma 2.1."""
    growth, squared_step = walk("sgd", 5, shape, seed, layer, lr=lr)
    torch.testing.assert_close(growth, squared_step, rtol=1e-9, atol=1e-13)


@settings(max_examples=20)
@given(
    name=st.sampled_from(["sgdp", "adamp"]),
    lr=st.floats(0, 0.1),
    momentum=st.floats(0, 0.95),
    beta2=st.floats(0.5, 0.999),
    nesterov=st.booleans(),
    project_buffer=st.booleans(),
    delta=st.floats(0.001, 0.05),
    per=st.sampled_from(["tensor", "unit"]),
    weight_decay=st.sampled_from([0.0, 0.02]),
    wd_ratio=st.sampled_from([0.1, 1.0]),
    shape=st.sampled_from(SHAPES),
    layer=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_projected_the_norm_grows_by_the_squared_step_alone(
    name,
    lr,
    momentum,
    beta2,
    nesterov,
    project_buffer,
    delta,
    per,
    weight_decay,
    wd_ratio,
    shape,
    layer,
    seed,
):
    """Eq. 14, beside the decay of an invariant weight: at any momentum, in both views."""
    settings = {
        "lr": lr,
        "weight_decay": weight_decay,
        "wd_ratio": wd_ratio,
        "nesterov": nesterov,
        "delta": delta,
        "per": per,
    }
    if name == "sgdp":
        settings |= {"momentum": momentum, "project_buffer": project_buffer and not nesterov}
    else:
        settings |= {"betas": (momentum, beta2)}
    if layer and per == "unit":
        settings["views"] = (
            "layer",
        )  # else a channel passes by chance now and then, and takes the layer's turn
    decay = lr * weight_decay * wd_ratio / (1 - momentum if name == "sgdp" else 1)
    growth, squared_step = walk(name, 5, shape, seed, layer, decay, **settings)
    torch.testing.assert_close(growth, squared_step, rtol=1e-9, atol=1e-13)


def test_momentum_adds_the_sum_of_lemma_2_2():
    lr, beta = 0.05, 0.9
    growth, squared_step = walk("sgd", lr=lr, momentum=beta)
    extra = torch.zeros_like(growth[0])
    for t in range(len(growth)):  # extra_t = 2 sum_{k<t} beta^(t-k) |dw_k|^2
        torch.testing.assert_close(growth[t], squared_step[t] + extra, rtol=1e-9, atol=1e-13)
        extra = beta * (extra + 2 * squared_step[t])
    assert growth.sum() > 1.5 * squared_step.sum()
