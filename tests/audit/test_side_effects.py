"""An audit leaves everything of the caller's as it was; running statistics follow their weights."""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import audit
from tests.audit.zoo.parts import LayerDrop, Net, Plus, linear

SEEN = []


def record_globally(module, inputs, output):
    SEEN.append(output)


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
    layer.register_forward_hook(lambda module, inputs, output: closed.append(output))
    layer.register_forward_hook(record_globally)
    layer.weight.register_hook(closed.append)
    layer.weight.requires_grad_(False)
    model.body[1].eval()
    layer.bias.grad = torch.ones(4, dtype=dtype)
    before = copy.deepcopy((model.state_dict(), inputs, layer.bias.grad))
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    SEEN.clear()

    audit(model, *inputs)

    after = model.state_dict(), inputs, layer.bias.grad
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert flags == [(m.training, len(m._forward_hooks)) for m in model.modules()]
    assert (model.calls, model.history) == (0, [])
    assert model.kept is kept
    assert not closed
    assert not SEEN
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


class OwnNorm(nn.Module):
    """A batch normalization with statistics of its own names."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("center", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def forward(self, x):
        if not self.training:
            return (x - self.center) / self.scale
        center, scale = x.mean(0), x.std(0)
        self.center, self.scale = center.detach(), scale.detach()
        return (x - center) / scale


def convolutions():
    """Biases before the norms, a depthwise part, transposed units, no momentum, instances."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)),
        *(nn.BatchNorm2d(8, momentum=None), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3), nn.InstanceNorm2d(6, track_running_stats=True)),
        *(nn.Flatten(), nn.Linear(6 * 16, 4)),
    )


def trained(model, x, steps=30):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x + 0.1 * torch.randn_like(x)).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("recipe", ["sgdg", "adamg"])
def test_a_trained_model_evaluates_as_before(recipe):
    """In float64 and next to no eps, the outputs in eval mode are the same to rounding."""
    x = 2 + torch.randn(16, 3, 8, 8, dtype=torch.float64)
    model = trained(convolutions().double(), x)
    for module in model.modules():
        if hasattr(module, "eps"):
            module.eps = 1e-30
    before, weights = model.eval()(x), [model[i].weight.clone() for i in (0, 3, 6, 9)]
    groups = sn.param_groups(model.train(), x[:8], recipe)
    assert [groups.assignments[i].treatment for i in (0, 4, 8)] == ["sphere"] * 3
    assert not torch.allclose(model[0].weight, weights[0])
    torch.testing.assert_close(model.eval()(x), before, rtol=1e-11, atol=1e-11)


def test_a_new_model_is_no_warning():
    model = convolutions()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sn.audit(model, torch.randn(16, 3, 8, 8))
        sn.param_groups(model, found, "sgdg")
        sn.param_groups(model, torch.randn(16, 3, 8, 8), "sgdg")


def test_a_model_that_does_not_run_in_eval_mode_is_left_unchecked():
    def function(self, x):
        assert self.training
        return self.norm(self.f(x)).tanh()

    x = torch.randn(16, 6)
    model = trained(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sn.param_groups(model, x, "sgdg").assignments[0].treatment == "sphere"


@pytest.mark.parametrize(
    ("norm", "batch", "evaluated", "said"),
    [
        (OwnNorm, lambda model, x: x, False, "outputs"),
        (nn.BatchNorm1d, sn.audit, False, "batch"),
        (nn.BatchNorm1d, sn.audit, True, "batch"),
    ],
)
def test_statistics_that_cannot_follow_are_a_warning(norm, batch, evaluated, said):
    """Buffers of other names, and an audit in place of the batch."""
    x = torch.randn(16, 6)
    model = trained(nn.Sequential(linear(6, 5), norm(5), nn.Linear(5, 2)), x)
    given = batch(model, x)
    with pytest.warns(UserWarning, match=said):
        sn.param_groups(model.train(not evaluated), given, "sgdg")
