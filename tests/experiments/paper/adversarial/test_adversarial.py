"""Adversarial training: the loss, the metrics against a closed form, and CIFAR-10 on disk."""

import copy

import pytest
import torch
from robustness_files import random_cifar10, write_cifar10
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import Spec, find_task, preserved_randomness
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import resolve
from spherenorm_experiments.paper.adversarial.adversarial import Adversarial
from spherenorm_experiments.paper.shared.layout import FOLDER

COUNT = 4


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A miniature of the official files."""
    write_cifar10(tmp_path / "cifar10", *random_cifar10(COUNT))
    monkeypatch.setenv(FOLDER, str(tmp_path))


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


def test_threats_follow_from_the_options():
    task = Adversarial(norm="linf", radius=0.1, steps=5)
    assert task.threat == task.test_threat
    assert task.threat.step == pytest.approx(2.5 * 0.1 / 5)
    madry = Adversarial(radius=8 / 255, steps=7, step=2 / 255, test_steps=20)
    assert (madry.threat.steps, madry.test_threat.steps) == (7, 20)
    assert madry.threat.step == madry.test_threat.step == 2 / 255
    assert madry.test_threat.radius == 8 / 255


def test_glyphs_of_test_and_training_are_apart():
    train, validation, test = Adversarial().data()
    for images, labels in (train, validation, test):
        assert images.shape[1:] == (3, 12, 12)
        assert 0 <= images.min() <= images.max() <= 1
        assert labels.bincount().max() - labels.bincount().min() <= 1
    seen = {image.numpy().tobytes() for image in train[0]}
    assert not any(image.numpy().tobytes() in seen for image in torch.cat([validation[0], test[0]]))


@pytest.mark.usefixtures("cifar10")
def test_a_step_on_the_official_files():
    """With the paper's network; one image and one step of the attack, since it is large."""
    options = {"depth": 34, "width": 10, "stem": 16, "steps": 1, "test_steps": 1, "norm": "l2"}
    task = find_task("adversarial", {"data_set": "cifar10", "radius": 80 / 255, **options})
    train, validation, test = task.data()
    assert (len(train), len(validation), len(test)) == (10, 10, COUNT)  # at most half is held out
    model = task.model()
    loss = task.loss(model.train(), task.collate([train[0]]))
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad is not None for weight in model.parameters())
    with torch.no_grad():
        found = task.evaluate(model.eval(), task.first_batch(test, 1))
    assert set(found) == {"attacked accuracy", "clean accuracy"}


def test_without_its_folder_cifar10_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=r"lacks cifar-10-batches-bin/data_batch_1\.bin; expected"):
        find_task("adversarial", {"data_set": "cifar10"}).data()


def test_two_folders_in_one_process_are_two_data_sets(tmp_path, monkeypatch):
    """Tasks keep their data, and runs are named by them: another folder must not find the first."""
    images, labels = random_cifar10(COUNT)
    spec = Spec("adversarial", "adamp", options={"data_set": "cifar10"})
    ids = []
    for name, pixels, classes in (("a", images, labels), ("b", 255 - images, 9 - labels)):
        write_cifar10(tmp_path / name / "cifar10", pixels, classes)
        monkeypatch.setenv(FOLDER, str(tmp_path / name))
        run = resolve(spec, Store(tmp_path / "runs"))
        assert run.splits.test.labels.tolist() == classes[-1].tolist()
        ids.append(run.id)
    assert len(set(ids)) == 2
