"""Derivatives through training: against central differences, with and without checkpoints."""

import functools

import pytest
import torch

import spherenorm as sn
from spherenorm import functional

STEPS = 20
RECIPES = {
    "sgd": ("lr", "momentum", "weight_decay"),
    "sgdp": ("lr", "momentum", "weight_decay"),
    "adamw": ("lr", "weight_decay"),
    "adamp": ("lr", "weight_decay"),
    "muon": ("lr", "momentum", "weight_decay"),
    "normuon": ("lr", "momentum", "weight_decay"),
    "lion": ("lr", "weight_decay"),
    "soap": ("lr", "weight_decay"),
    "adopt": ("lr", "weight_decay"),
    "sgdg": ("lr", "momentum"),
    "hyperball(adamw)": ("lr",),
    "schedulefree_adamw": ("lr", "weight_decay"),
}
"""Twelve recipes with the hyper-parameters whose derivatives are checked."""
VALUES = {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.05}


@functools.cache
def problem():
    """Return parameters and batches of a small network with two matrices, in float64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    params = {"hidden": draw(6, 4), "head": draw(3, 6)}
    params = {name: w / w.norm(dim=1, keepdim=True) for name, w in params.items()}
    batches = [(draw(16, 4), draw(16, 3)) for _ in range(STEPS)]
    return params, batches


def loss(params, batch):
    inputs, targets = batch
    return (torch.tanh(inputs @ params["hidden"].T) @ params["head"].T - targets).square().mean()


def mean_loss(name, hyper_parameter, value, **arguments):
    params, batches = problem()
    settings = {key: VALUES[key] for key in RECIPES[name]} | {hyper_parameter: value}
    run = functional.unroll(name, loss, params, batches, **settings, **arguments)
    return run.loss.mean() + loss(run.params, batches[0])


def central_difference(function, value):
    """Return the derivative by differences of fourth order."""
    step = 1e-4 * value
    near = function(value + step) - function(value - step)
    far = function(value + 2 * step) - function(value - 2 * step)
    return (8 * near - far) / (12 * step)


@pytest.mark.parametrize("name", RECIPES)
def test_derivatives_of_hyper_parameters_are_those_of_differences(name):
    for hyper_parameter in RECIPES[name]:
        value = torch.tensor(VALUES[hyper_parameter], dtype=torch.float64)

        def run(x, hyper_parameter=hyper_parameter):
            return mean_loss(name, hyper_parameter, x)

        derivative = torch.func.grad(run)(value)
        assert derivative != 0
        expected = central_difference(run, value)
        torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["sgdp", "adamw", "muon"])
@pytest.mark.parametrize("every", [1, 6, 50])
def test_checkpoints_change_no_number(name, every):
    derivatives, losses = [], []
    for arguments in ({}, {"checkpoint_every": every}):
        lr = torch.tensor(0.02, dtype=torch.float64, requires_grad=True)
        final = mean_loss(name, "lr", lr, **arguments)
        derivatives.append(torch.autograd.grad(final, lr)[0])
        losses.append(final.detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-13, atol=0)
    torch.testing.assert_close(derivatives[1], derivatives[0], rtol=1e-9, atol=0)


def test_a_run_is_its_steps():
    params, batches = problem()
    rule = sn.recipes.adamw(lr=0.02)
    state, weights, losses = functional.init(rule, params), params, []
    for batch in batches:
        grads, value = torch.func.grad_and_value(loss)(weights, batch)
        weights, state = functional.step(rule, weights, grads, state)
        losses.append(value)
    for recipe, hyper_parameters in ((rule, {}), ("adamw", {"lr": 0.02})):
        run = functional.unroll(recipe, loss, params, batches, **hyper_parameters)
        assert torch.equal(run.loss, torch.stack(losses))
        assert all(torch.equal(run.params[name], weights[name]) for name in weights)
        assert run.state.keys() == state.keys()


def test_runs_vmap_over_rates_and_differentiate_in_starts_and_batches():
    params, batches = problem()
    rates = torch.tensor([0.01, 0.02], dtype=torch.float64)
    together = torch.vmap(lambda lr: mean_loss("adamw", "lr", lr))(rates)
    alone = torch.stack([mean_loss("adamw", "lr", lr) for lr in rates])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)

    def final(start):
        return functional.unroll("sgd", loss, start, batches[:3], lr=0.1).loss[-1]

    meta_gradient = torch.func.grad(final)(params)
    direction = {name: torch.ones_like(w) for name, w in params.items()}

    def along(x):
        return final({name: w + x * direction[name] for name, w in params.items()})

    derivative = sum(grad.sum() for grad in meta_gradient.values())
    step = 1e-5
    torch.testing.assert_close(
        derivative, (along(step) - along(-step)) / (2 * step), rtol=1e-7, atol=0
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batches": []}, "at least one batch"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
        ({"recipe": sn.recipes.sgd(lr=0.1)}, "the rule Chain has its own, so leave out lr"),
        ({"batches": torch.nn.Linear}, "batches must be an iterable.* got <class"),
        ({"loss": lambda p, b: p["head"]}, r"must return a scalar tensor, got shape \(3, 6\)"),
        ({"loss": lambda p, b: p["zz"]}, "KeyError: 'zz'; params has hidden, head"),
        ({"lr": -1.0}, r"lr must be in \[0, ∞\), got -1.0"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    params, batches = problem()
    defaults = {"recipe": "sgd", "loss": loss, "params": params, "batches": batches, "lr": 0.1}
    with pytest.raises((TypeError, ValueError), match=words):
        functional.unroll(**defaults | arguments)
