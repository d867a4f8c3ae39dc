"""`init` and `step` of all parameters by name: each as the rule steps it, and differentiable."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness import refuses


def net():
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    return torch.nn.Sequential(inner, torch.nn.Linear(3, 2)).double()


def loss_of(model, params):
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
    return functional_call(model, params, (x,)).square().mean()


class Whole(sn.Rule):
    """Divide by the norm of the gradients of all weights."""

    def global_sum_terms(self, update, state):
        return {"squared": (update.grad**2).sum()}

    def update(self, update, state):
        return replace(update, direction=update.direction / update.notes["squared"].sqrt()), state


def whole(lr=0.1):
    return sn.chain(Whole(), r.HeavyBall(0.9), r.StepSize(lr))


@pytest.mark.parametrize("recipe", ["sgd", "adamp", "lamb", whole])
def test_steps_of_a_model_are_those_of_the_optimizer(recipe):
    """Parameters of nested modules have their dotted names; the arguments are left alone."""
    model, cls = net(), sn.torch_optimizer(recipe)
    rule = sn.bind(recipe, lr=0.05).rule
    params = {name: w.detach().clone() for name, w in model.named_parameters()}
    state = functional.init(rule, params)
    assert state.keys() == params.keys()
    optimizer = cls(model.parameters(), lr=0.05, backend="rule")
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model, dict(model.named_parameters())).backward()
        optimizer.step()
        before = {name: w.clone() for name, w in params.items()}
        grads = torch.func.grad(lambda p: loss_of(model, p))(params)
        moved, state = functional.step(rule, params, grads, state)
        torch.testing.assert_close(params, before, rtol=0, atol=0)
        params = moved
    for name, weight in model.named_parameters():
        torch.testing.assert_close(params[name], weight.detach(), rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(state[name], optimizer.state[weight], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("recipe", ["sgdp", "adam", "lion", whole])
def test_the_loss_after_some_steps_can_be_differentiated(recipe):
    """By the learning rate and by the first parameters, as finite differences are."""
    model = net()
    names = [name for name, _ in model.named_parameters()]

    def after(lr, *weights):
        params = dict(zip(names, weights, strict=True))
        rule = sn.bind(recipe, lr=lr).rule
        state = functional.init(rule, params)
        for _ in range(3):
            grads = torch.func.grad(lambda p: loss_of(model, p))(params)
            params, state = functional.step(rule, params, grads, state)
        return loss_of(model, params)

    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    weights = [w.detach().requires_grad_() for w in model.parameters()]
    assert torch.autograd.gradcheck(after, (lr, *weights), eps=1e-6, atol=1e-6, fast_mode=True)


def test_half_precision_keeps_its_state_in_float32():
    rule, params = sn.recipes.adamw(lr=0.1), {"w": torch.ones(3, 2, dtype=torch.bfloat16)}
    moved, state = functional.step(rule, params, params, functional.init(rule, params))
    assert moved["w"].dtype is torch.bfloat16
    assert state["w"]["exp_avg"].dtype is torch.float32


TWO = {"a": torch.ones(2), "scale": torch.ones(2)}
EMPTY = {"a": {}, "scale": {}}
WRONG = [
    ({"params": {**TWO, "scale": torch.ones(2).to(dtype)}}, ["scale", kind, dtype], TypeError)
    for dtype, kind in (
        (torch.int64, "integer"),
        (torch.bool, "integer"),
        (torch.complex64, "complex"),
    )
]


@pytest.mark.parametrize(("change", "named", "error"), WRONG)
def test_weights_that_are_not_real_are_refused(change, named, error):
    with refuses(*named, by=error):
        functional.init(sn.recipes.sgd(), change["params"])


@pytest.mark.parametrize(
    ("change", "named", "error"),
    [
        *WRONG,
        ({"grads": {**TWO, "scale": torch.ones(2) + 1j}}, ["grad", "complex"], TypeError),
        ({"grads": {**TWO, "scale": torch.ones(3)}}, ["grad", (2,), (3,)], ValueError),
        ({"grads": {"a": torch.ones(2), "b": torch.ones(2)}}, ["scale", "b"], ValueError),
        ({"grads": {**TWO, "more": torch.ones(2)}}, ["more"], ValueError),
        ({"state": {"a": {}}}, ["scale", "functional.init"], ValueError),
        ({"state": {}}, ["a", "functional.init"], ValueError),
    ],
)
def test_a_wrong_step_is_refused(change, named, error):
    given = {"params": TWO, "grads": TWO, "state": EMPTY, **change}
    with refuses(*named, by=error):
        functional.step(sn.recipes.sgd(), **given)
