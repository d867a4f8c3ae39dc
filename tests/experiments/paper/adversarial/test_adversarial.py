"""Adversarial training: attacks, loss and metrics, CIFAR-10, and the claims of Figure 4."""

import copy

import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.lookup import find_task
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.task import preserved_randomness
from spherenorm_paper.adversarial.adversarial import (
    Adversarial,
    Threat,
    WideResNet,
    shifted,
)
from tests.experiments.fabricated import result
from tests.harness import refuses


class Linear(nn.Module):
    """Logits (0, a . x + b): the worst image within a radius is known."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.randn(12))

    def forward(self, images):
        margin = (images.flatten(1) - 0.5) @ self.slope
        return torch.stack([torch.zeros_like(margin), margin], 1)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_attacked_accuracy_is_that_of_the_worst_images(norm, dual):
    """An image is lost if its margin is below radius |slope|, in the dual norm."""
    torch.manual_seed(0)
    model = Linear()
    slope = model.slope.detach()
    radius = 0.04 * float(slope.norm() / torch.linalg.vector_norm(slope, dual))
    images, labels = 0.3 + 0.4 * torch.rand(500, 3, 2, 2), torch.randint(2, (500,))
    margins = (2 * labels - 1) * model(images)[:, 1].detach()
    harder = {"harder_radius": 3 * radius, "harder_steps": 20}
    task = Adversarial(norm=norm, radius=radius, steps=20, **harder)
    with torch.no_grad():
        found = task.evaluate(model, (images, labels))
    values = {name: share.value([share.state]) for name, share in found.items()}
    reach = radius * torch.linalg.vector_norm(slope, dual)
    names = "clean accuracy", "attacked accuracy", "harder attacked accuracy"
    for name, times in zip(names, (0, 1, 3), strict=True):
        expected = 100 * (margins > times * reach).float().mean()
        assert values[name] == pytest.approx(float(expected), abs=0.5), name
    assert next(iter(values)) == "attacked accuracy"
    assert 5 < values["harder attacked accuracy"] < values["attacked accuracy"] < 95


def test_the_loss_is_that_of_attacked_images():
    task = find_task("adversarial", {"steps": 3})
    torch.manual_seed(0)
    model = task.model().train()
    batch = task.first_batch(task.data().train, 16)
    other = copy.deepcopy(model)
    with preserved_randomness():
        torch.manual_seed(5)
        loss = task.loss(model, batch)
        torch.manual_seed(5)
        attacked = task.threat.attack(other, *batch)
        expected = F.cross_entropy(other(attacked), batch[1])
    assert torch.equal(loss, expected)
    assert loss > F.cross_entropy(other(batch[0]), batch[1])


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
    torchattacks = pytest.importorskip("torchattacks")
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


def test_augmentation_shifts_and_flips_and_draws_from_the_global_state():
    image = torch.arange(1, 3 * 32 * 32 + 1).remainder(251).add(1).to(torch.uint8)
    image, label = image.reshape(3, 32, 32), torch.tensor(7)
    padded = torch.nn.functional.pad(image, (4,) * 4)
    crops = {(y, x): padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)}
    possible = {(crop.float() / 255).numpy().tobytes(): place for place, crop in crops.items()}
    possible |= {(c.flip(2).float() / 255).numpy().tobytes(): p for p, c in crops.items()}
    torch.manual_seed(0)
    drawn = [shifted(image, label)[0].numpy().tobytes() for _ in range(200)]
    torch.manual_seed(0)
    assert drawn[:5] == [shifted(image, label)[0].numpy().tobytes() for _ in range(5)]
    assert {place[0] for place in map(possible.get, drawn)} == set(range(9))
    assert {place[1] for place in map(possible.get, drawn)} == set(range(9))
    assert len(set(drawn)) > 100


def sooner(losses, lost=(), ours_lost=()):
    """The claim of AdamP's share of steps, of these losses by arm and step and of eight seeds.

    Args:
        lost, ours_lost: the seeds on which Adam and AdamP diverged.
    """
    items = [
        result(
            Place("linf 8/255", arm), seed,
            Spec("adversarial", arm.lower(), {"lr": 0.01}, seed=seed),
            [{"step": step, "loss": loss} for step, loss in enumerate(own, 1)],
            validation=1.0, test=1.0, steps_per_epoch=2,
            diverged_at=1 if seed in gone else None,
        )
        for arm, own, gone in zip(("Adam", "AdamP"), losses, (lost, ours_lost), strict=True)
        for seed in range(8)
    ]  # fmt: skip
    found = find_study("f4").evaluate_claims(Runs(items))
    return next(each for each in found if each.claim.name == "faster")


def test_the_share_of_steps_until_the_other_run_s_last_loss():
    """The last loss is the mean over an epoch of two steps: 3, which 4 and 2 have."""
    found = [sooner(both).numbers[0].number for both in (
        ([8, 6, 4, 2], [4, 2, 1, 1]),
        ([4, 2, 1, 1], [8, 6, 4, 2]),  # never
    )]  # fmt: skip
    assert found == [0.5, 1.0]
    # A run of AdamP that diverged counts against its speed: left out, it would speak for it.
    claim = sooner(([8, 6, 4, 2, 2, 2], [2, 2, 1, 1, 1, 1]), (7,), (5, 6, 7))
    assert (claim.seeds, claim.numbers[0].n, claim.numbers[0].diverged) == (7, 5, 2)
    assert claim.p == binomtest(5, 7).pvalue


def test_a_network_has_whole_groups_and_a_threat_a_reach():
    with refuses("depth", 35):
        WideResNet(35)
    for wrong in ((0.0, 1, 1.0), (1.0, -1, 1.0), (1.0, 1, 0.0)):
        with refuses("positive"):
            Threat("linf", *wrong)
