"""An audit leaves everything of the caller's as it was."""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import audit
from tests.audit.zoo.parts import LayerDrop, Net, Plus


def messy_model():
    """It changes its inputs, its buffers and a counter, draws random numbers, and keeps tensors."""

    def function(self, x, index, nested):
        self.calls += 1
        self.kept = self.body(x.clone())
        x.mul_(2)
        index.add_(0 if index.sum() else 1)
        nested["list"][0].zero_()
        nested["new"] = 1
        self.history.append(random.random() + np.random.rand() + torch.rand(()).item())
        return self.kept

    blocks = (Plus(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)) for _ in range(2))
    model = Net(function, body=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), *blocks))
    model.body.append(LayerDrop(nn.Linear(4, 4)))
    model.calls, model.history = 0, []
    return model


def batch(dtype):
    return torch.randn(8, 4).to(dtype), torch.zeros(3, dtype=torch.long), {"list": [torch.ones(2)]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_of_the_callers_changes(dtype):
    model, inputs = messy_model().to(dtype), batch(dtype)
    model(*batch(dtype))  # which keeps a tensor with a graph
    model.calls, model.history, kept = 0, [], model.kept
    closed, layer = [], model.body[0]
    layer.weight.register_hook(closed.append)
    layer.weight.requires_grad_(False)
    model.body[1].eval()
    layer.bias.grad = torch.ones(4, dtype=dtype)
    before = copy.deepcopy((model.state_dict(), inputs, layer.bias.grad))
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()

    audit(model, inputs)

    after = model.state_dict(), inputs, layer.bias.grad
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert flags == [(m.training, len(m._forward_hooks)) for m in model.modules()]
    assert (model.calls, model.history) == (0, [])
    assert model.kept is kept
    assert not closed
    assert not layer.weight.requires_grad
    assert model.body[2].body[0].weight.grad is None
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.get_default_dtype() == torch.float32


def divided_by_zero(self, x):
    return self.f(x).sum() / 0 * torch.nan


def of_wrong_shapes(self, x):
    return self.f(x) @ self.f(x)


@pytest.mark.parametrize("function", [divided_by_zero, of_wrong_shapes])
def test_nothing_changes_after_an_error(function):
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    model, x = Net(function, f=nn.Linear(4, 3)), torch.ones(2, 4)
    torch.set_rng_state(states[2])
    with pytest.raises((ValueError, RuntimeError)):
        audit(model, x)
    assert torch.get_default_dtype() == torch.float32
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_hook_that_changes_the_output_counts():
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh())
    assert audit(model, torch.randn(8, 6))[0].view is None
    scale = torch.tensor(3.0)
    model[0].register_forward_hook(
        lambda module, inputs, output: scale * nn.functional.normalize(output)
    )
    assert audit(model, torch.randn(8, 6))[0].view == "layer"


def test_no_grad_and_inference_mode_do_not_matter():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh()), torch.randn(8, 6)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert audit(model, x)[0].view == "channel"
            assert audit(model, torch.randn(8, 6))[0].view == "channel"


@pytest.mark.parametrize("recipe", ["sgdg", "adamg"])
def test_trained_statistics_that_do_not_fit_the_sphere_are_a_warning_and_new_ones_are_none(recipe):
    model, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), torch.randn(9, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sn.param_groups(copy.deepcopy(model), x, recipe)
    model(x)
    with pytest.warns(UserWarning, match="running_var"):
        sn.param_groups(model, x, recipe)
