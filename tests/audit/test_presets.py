"""Each preset trains by its own rates about as well as by tuned ones."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn
from spherenorm.audit._param_groups import PRESETS

STEPS = 100
GRID = (0.25, 0.5, 2, 4)
"""Multiples of a preset's rate that it is held against."""


def problem():
    """Clusters that a random network with tanh has labeled, and a network to learn them."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
    for weight in teacher.parameters():
        weight.data *= 3
    inputs = torch.randn(1024, 16)
    net = nn.Sequential(
        *(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()),
        *(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    return net, inputs, teacher(inputs).argmax(1)


def trained(make_optimizer):
    """The loss on all data after training."""
    net, inputs, labels = problem()
    optimizer = make_optimizer(net, inputs[:64])
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (128,))
        optimizer.zero_grad()
        cross_entropy(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return cross_entropy(net(inputs), labels).item()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_by_its_rates_about_as_by_tuned_ones(preset):
    main, rest = PRESETS[preset]
    rate = main.hyper_parameters["lr"]
    ours = trained(lambda net, batch: sn.param_groups(net, batch, preset).optimizer())
    tuned = min(
        trained(lambda net, batch, lr=rate * by: sn.param_groups(net, batch, preset, lr=lr).optimizer())
        for by in GRID
    )
    adamw = trained(lambda net, batch: sn.optim.AdamW(net.parameters(), lr=1e-3))
    assert ours < 1.25 * tuned, (ours, tuned)
    assert ours < adamw
