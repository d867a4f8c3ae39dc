"""PGD: equal to torchattacks, and within the ball."""

import pytest
import torch
from torch import nn

from spherenorm_experiments.paper.adversarial.adversarial import Threat

torchattacks = pytest.importorskip("torchattacks")

THREATS = [
    Threat("linf", 8 / 255, 7, 2 / 255),
    Threat("linf", 4 / 255, 10, 1 / 255),
    Threat("l2", 80 / 255, 10, 20 / 255),
    Threat("l2", 2.0, 3, 1.5),
]


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5)
    network = nn.Sequential(*layers)
    network(torch.rand(32, 3, 8, 8))  # statistics of BatchNorm, which attacks use
    return network


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_equals_torchattacks(threat, model):
    images, labels = torch.rand(16, 3, 8, 8), torch.randint(5, (16,))
    kind = torchattacks.PGD if threat.norm == "linf" else torchattacks.PGDL2
    theirs = kind(model, eps=threat.radius, alpha=threat.step, steps=threat.steps)
    torch.manual_seed(3)
    expected = theirs(images, labels)
    torch.manual_seed(3)
    found = threat.attack(model, images, labels)
    assert (found - expected).abs().max() < 1e-6
    assert (found - images).abs().max() > 0.5 * min(threat.radius, 0.1)  # it moved


def test_leaves_the_model_as_it_was(model):
    model.train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with torch.no_grad():  # as in an evaluation
        found = THREATS[0].attack(model, torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
    assert model.training
    assert not found.requires_grad
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_a_vanishing_gradient_moves_nothing():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    nn.init.zeros_(flat[1].weight)
    images = torch.full((2, 3, 1, 1), 0.5)
    found = Threat("l2", 0.1, 2, 0.1).attack(flat, images, torch.tensor([0, 1]))
    assert found.isfinite().all()
    assert (found - images).flatten(1).norm(dim=1).max() <= 0.1
