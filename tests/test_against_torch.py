"""Parity with torch.optim in float64 over 30 steps."""

from itertools import product

import pytest
import torch

from spherenorm import optim
from tests.trajectories import largest_difference

SCALES = (1e-6, 1.0, 1e6)
SGD_FLAGS = [
    {"momentum": momentum, "dampening": dampening, "weight_decay": decay, "nesterov": nesterov}
    for momentum, dampening, decay, nesterov in product(
        (0.0, 0.9), (0.0, 0.3), (0.0, 0.02), (False, True)
    )
    if not nesterov or (momentum > 0 and dampening == 0)
]
RMSPROP_FLAGS = [
    {"alpha": 0.95, "momentum": momentum, "weight_decay": decay, "centered": centered}
    for momentum, decay, centered in product((0.0, 0.9), (0.0, 0.02), (False, True))
]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("flags", SGD_FLAGS, ids=str)
def test_sgd(flags, scale, maximize):
    settings = {
        **flags,
        "lr": 0.02 / scale,
        "weight_decay": scale * flags["weight_decay"],
        "maximize": maximize,
    }
    assert (
        largest_difference(
            lambda p: optim.SGD(p, **settings),
            lambda p: torch.optim.SGD(p, **settings),
            scale=scale,
        )
        < 1e-12
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.03, "betas": (0.8, 0.95), "eps": 1e-5, "lr": 0.02}, {"maximize": True}],
    ids=str,
)
def test_adam_and_adamw(name, settings, scale):
    coupled = (
        {"weight_decay": scale * settings["weight_decay"]}
        if name == "Adam" and "weight_decay" in settings
        else {}
    )
    settings = settings | coupled
    difference = largest_difference(
        lambda p: getattr(optim, name)(p, **settings),
        lambda p: getattr(torch.optim, name)(p, **settings),
        scale=scale,
    )
    assert difference < 1e-12


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("flags", RMSPROP_FLAGS, ids=str)
def test_rmsprop(flags, scale):
    # A centered second moment nearly cancels at the first steps, which eps = 1e-8 would amplify.
    settings = {
        **flags,
        "lr": 1e-3,
        "eps": 1e-3 * scale if flags["centered"] else 1e-8,
        "weight_decay": scale * flags["weight_decay"],
    }
    difference = largest_difference(
        lambda p: optim.RMSprop(p, **settings),
        lambda p: torch.optim.RMSprop(p, **settings),
        scale=scale,
    )
    assert difference < 1e-12


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_arguments_and_defaults_are_those_of_torch(name):
    ours, theirs = (
        getattr(module, name)([torch.zeros(2, 2)]).defaults for module in (optim, torch.optim)
    )
    shared = ours.keys() - {"recipe", "backend"}
    assert shared <= theirs.keys()
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}


def test_dampening_starts_with_the_first_gradient_even_if_some_of_it_is_zero():
    weights, others = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    settings = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    ours, theirs = optim.SGD([weights], **settings), torch.optim.SGD([others], **settings)
    for _ in range(3):
        weights.grad = others.grad = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
        ours.step()
        theirs.step()
    torch.testing.assert_close(weights, others, rtol=1e-15, atol=0)
