"""Each preset trains by its own rates about as well as by tuned ones."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn
from spherenorm.audit.param_groups import PRESETS
from tests.harness.tables import mostly_long

STEPS = 120
GRID = (0.25, 0.5, 2, 4)
"""Multiples of a preset's rate that it is held against."""


def problem():
    """Return a network, and points that a random network has labeled for it to learn."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    teacher = nn.Sequential(*layers)
    for weight in teacher.parameters():
        weight.data *= 3
    inputs = torch.randn(3072, 16)
    net = nn.Sequential(
        *(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return net, inputs, teacher(inputs).argmax(1)


def trained(make_optimizer):
    """Return the loss on data that were held back, after training."""
    net, inputs, labels = problem()
    inputs, held_back = inputs.split(2304)
    labels, labels_held_back = labels.split(2304)
    optimizer = make_optimizer(net, inputs[:64])
    for _ in range(STEPS):
        rows = torch.randint(len(inputs), (128,))
        optimizer.zero_grad()
        cross_entropy(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return cross_entropy(net(held_back), labels_held_back).item()


@pytest.mark.parametrize("preset", mostly_long(sorted(PRESETS), kept=1))
def test_a_preset_trains_by_its_rates_about_as_by_tuned_ones(preset):
    main, _ = PRESETS[preset]
    rate = main.hyper_parameters["lr"]
    ours = trained(lambda net, batch: sn.param_groups(net, batch, preset).optimizer())

    def at_rate(lr):
        return trained(lambda net, batch: sn.param_groups(net, batch, preset, lr=lr).optimizer())

    tuned = min(at_rate(rate * multiple) for multiple in GRID)
    assert ours < 1.15 * tuned
    assert at_rate(0.001) > 1.5 * ours  # Muon's default
