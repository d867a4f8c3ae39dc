"""Recipes of the sphere keep to it; weights that cannot move there are named."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spherenorm as sn
from spherenorm import Sphere

VIEWS = ("channel", "layer", "dim=1", "groups=2")


@settings(max_examples=20)
@given(
    view=st.sampled_from(VIEWS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
    name=st.sampled_from(["sgdg", "adamg"]),
    lr=st.floats(0, 1),
    beta=st.floats(0, 0.95),
    nu=st.sampled_from([None, 0.1, 3.0]),
    alpha=st.floats(0, 0.5),
)
def test_stays_on_the_sphere_with_a_tangent_momentum(name, dtype, view, lr, beta, nu, alpha, seed):
    generator, v = torch.Generator().manual_seed(seed), sn.as_view(view)
    steps, eps = 10, torch.finfo(dtype).eps

    def draw():
        return torch.randn(4, 3, 2, generator=generator, dtype=torch.float64).to(dtype)

    momentum = {"momentum": beta} if name == "sgdg" else {"betas": (beta, 0.99)}
    rule = sn.bind(name, lr=lr, nu=nu, alpha=alpha, view=view, **momentum).rule
    weight = Sphere(view).normalize(draw())
    state = rule.init(weight)
    for _ in range(steps):
        weight, state = rule.step(weight, draw(), state)
    buffer = state["momentum" if name == "sgdg" else "exp_avg"]
    # Each step rounds the angle that it turns by, which may be several turns.
    assert (v.norm(weight) - 1).abs().max() < 100 * steps * eps
    assert (v.inner(weight, buffer).abs() <= 100 * steps * eps * v.norm(buffer).clamp(min=1)).all()


@pytest.mark.parametrize(
    ("view", "shape", "still"),
    [
        ("channel", (5,), True),
        ("channel", (), True),
        ("layer", (1, 1), True),
        ("channel", (5, 1), True),
        ("dim=1", (1, 5), True),
        ("layer", (5,), False),
        ("groups=2", (4,), False),
        ("dim=1", (5, 1), False),
    ],
)
def test_weights_that_cannot_move_are_named(view, shape, still):
    """As the moves themselves say."""
    sphere = Sphere(view)
    rule = sn.chain(sn.rules.StepSize(1.0), manifold=sphere)
    weight = sphere.normalize(torch.randn(shape, dtype=torch.float64))
    new_weight, _ = rule.step(weight, torch.randn_like(weight), rule.init(weight))
    assert torch.allclose(new_weight, weight, rtol=0, atol=1e-12) == still
    named = sphere.weight_warnings(2 * weight if still else weight)
    assert len(named) == still
    assert all("cannot move" in each for each in named)
