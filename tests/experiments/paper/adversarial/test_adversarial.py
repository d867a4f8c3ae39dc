"""Adversarial training: the loss, and the metrics against a closed form."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import find_task, preserved_randomness
from spherenorm_experiments.paper.adversarial.adversarial import Adversarial


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
    for name, times in (
        ("clean accuracy", 0),
        ("attacked accuracy", 1),
        ("harder attacked accuracy", 3),
    ):
        expected = 100 * (margins > times * reach).float().mean()
        assert values[name] == pytest.approx(float(expected), abs=0.5), name
    assert next(iter(values)) == "attacked accuracy"
    assert 5 < values["harder attacked accuracy"] < values["attacked accuracy"] < 95


def test_the_loss_is_that_of_attacked_images_and_counts_statistics_once():
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
    assert int(model.norm.num_batches_tracked) == 1  # the attack leaves BatchNorm alone
