"""Refusals at a step or in a checkpoint, which name what is wrong."""

from __future__ import annotations

import copy
import itertools
import logging

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r

BACKENDS = ("auto", "rule", "compiled")


def stepped(cls, backend, **options):
    """An optimizer of two named weights after one step, and its weights."""
    weights = [torch.ones(4, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)]
    named = zip(("first", "second"), weights, strict=True)
    optimizer = cls(named, lr=0.1, backend=backend, **options)
    give_gradients(weights)
    optimizer.step()
    return optimizer, weights


def give_gradients(weights):
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.5)


def refuse(optimizer, error, message, load=None):
    """The step, or a state_dict to load, is refused, and nothing changes."""
    before = copy.deepcopy(optimizer.state_dict())
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    values = [weight.detach().clone() for weight in weights]
    with pytest.raises(error, match=message):
        optimizer.step() if load is None else optimizer.load_state_dict(load)
    assert all(torch.equal(*pair) for pair in zip(weights, values, strict=True))
    after = optimizer.state_dict()
    torch.testing.assert_close(after["state"], before["state"], rtol=0, atol=0)
    assert str(after["param_groups"]) == str(before["param_groups"])


@pytest.mark.parametrize(
    ("cls", "backend"),
    [
        *itertools.product([optim.Adam, optim.RMSprop, optim.AdamG], ["auto", "rule"]),
        *((cls, "compiled") for cls in (optim.Adam, optim.RMSprop)),
        # Inductor takes a minute for it.
        pytest.param(optim.AdamG, "compiled", marks=pytest.mark.long),
    ],
)
def test_a_counter_that_counts_more_than_one_thing(cls, backend):
    optimizer, (_, second) = stepped(cls, backend)
    optimizer.state[second]["step"] = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    refuse(optimizer, ValueError, r"parameter 1 \(second\) .*'step'.* shape \(3,\)")


def test_a_counter_that_counts_more_than_one_thing_in_the_pure_step():
    for rule in (
        sn.recipes.adam(),
        sn.recipes.rmsprop(),
        sn.recipes.adamg(),
        sn.chain(r.ExponentialAverage(0.9, bias_correction=True)),
    ):
        weight = torch.ones(4, 3)
        state = {**rule.init(weight), "step": torch.ones(3)}
        with pytest.raises(ValueError, match=r"the state 'step' must be 0-dim, got shape \(3,\)"):
            rule.step(weight, weight, state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", ["no", 1, None])
def test_maximize_is_a_truth_value_when_it_is_used(backend, value):
    optimizer, weights = stepped(optim.SGD, backend)
    optimizer.param_groups[0]["maximize"] = value
    give_gradients(weights)
    refuse(optimizer, TypeError, f"maximize must be True or False, got {value!r}")


def test_a_checkpoint_with_a_wrong_maximize_or_a_complex_state():
    optimizer, (first, _) = stepped(optim.SGD, "auto", momentum=0.9)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["maximize"] = "no"
    with pytest.raises(TypeError, match="maximize must be True or False, got 'no'"):
        optimizer.load_state_dict(saved)
    saved["param_groups"][0]["maximize"] = False
    saved["state"][1]["momentum_buffer"] = torch.full((4, 3), 1 + 2j)
    with pytest.raises(
        ValueError, match=r"parameter 1 .*momentum_buffer is complex \(torch.complex64\)"
    ):
        optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.state[first]["momentum_buffer"], torch.full((4, 3), 0.5))


def doubled(weight):
    weight.data = weight.data.double()


def reshaped(weight):
    weight.data = torch.ones(5, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("change", "now"),
    [
        (doubled, r"torch.float64 of shape \(4, 3\)"),
        (reshaped, r"torch.float32 of shape \(5, 2\)"),
    ],
)
def test_a_weight_that_is_no_longer_what_its_state_was_made_for(change, now, backend, caplog):
    optimizer, weights = stepped(optim.Adam, backend)
    weights[1].grad = None
    change(weights[1])
    give_gradients(weights)
    with caplog.at_level(logging.WARNING):
        refuse(
            optimizer,
            ValueError,
            rf"parameter 1 \(second\) of shape .*: its state 'exp_avg' is torch.float32 of shape "
            rf"\(4, 3\), and the weight needs {now}.*(delete its state|new optimizer)",
        )
    assert not caplog.records


TAKEN = {
    "maximize": lambda lr=0.1, maximize=False: r.StepSize(lr),
    "backend": lambda lr=0.1, backend="fast": r.StepSize(lr),
    "params": lambda params, lr=0.1: r.StepSize(lr),
    "recipe": lambda lr=0.1, recipe="cake": r.StepSize(lr),
    "self": lambda self=1, lr=0.1: r.StepSize(lr),
    "param_names": lambda lr=0.1, param_names=(): r.StepSize(lr),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_hyper_parameter_with_the_name_of_another_argument(name):
    message = rf"has a hyper-parameter {name!r}, .*; give it another name"
    with pytest.raises(TypeError, match=message):
        sn.torch_optimizer(TAKEN[name], "Taken")
    with pytest.raises(TypeError, match=message):
        optim.SGD([{"params": [torch.ones(2, requires_grad=True)], "recipe": TAKEN[name]}])
