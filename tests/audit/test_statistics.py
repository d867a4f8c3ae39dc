"""Running statistics follow their weights onto the sphere."""

import warnings

import pytest
import torch
from torch import nn

import spherenorm as sn
from tests.audit.zoo.parts import Net, linear


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
