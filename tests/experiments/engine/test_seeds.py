"""The seed of a run decides its weights, its order, its augmentation and its noise, each."""

from dataclasses import replace

import pytest
import torch
from running import run_of
from spherenorm_pictures import PictureTask, picture_spec

from spherenorm_experiments.core import Regime
from spherenorm_experiments.engine import Ranks, Training
from spherenorm_experiments.engine._gradients import Gradients
from spherenorm_experiments.engine._loader import TrainingBatches


def batches_of(seed, steps=1, **options):
    run = run_of(picture_spec(seed=seed, **options))
    batches = TrainingBatches(run, run.task, Ranks(), 0, "cpu")
    return [batch for step in range(steps) for (batch, _) in batches.at(step)]


def test_the_weights():
    first, same, other = (
        Training(run_of(picture_spec(seed=seed)), PictureTask()).module[0].weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("tensors", [True, False])
def test_the_order(tensors):
    """Without augmentation only the order can differ."""
    first, same, other = (
        batches_of(seed, augment=False, tensors=tensors)[0][0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_augmentation():
    """Of all items at once, in two epochs: the sum does not depend on their order."""

    def sums(seed):
        return [x.double().sum().item() for x, _ in batches_of(seed, steps=2, batch_size=37)]

    (first, second), same, (other, _) = sums(0), sums(0), sums(1)
    assert [first, second] == same
    assert first != pytest.approx(second, abs=1e-6)
    assert first != pytest.approx(other, abs=1e-6)


def drawn(seed=0, step=0, rank=0, parts=1):
    """The first random number of each micro-batch's loss, on the same weights and items."""
    numbers = []

    class Drawing(PictureTask):
        def loss(self, model, batch):
            numbers.append(torch.rand(()).item())
            return super().loss(model, batch)

    spec = replace(picture_spec(seed=seed), regime=Regime(micro_batches=parts))
    run, task, ranks = run_of(spec), Drawing(), Ranks(rank=rank)
    batches = TrainingBatches(run, task, Ranks(), 0, "cpu")
    Gradients(run, task, task.model(), batches, ranks, "cpu").add(step)
    return numbers


def test_the_noise_is_of_seed_step_micro_batch_and_rank():
    assert drawn() == drawn()
    every = [*drawn(), *drawn(seed=1), *drawn(step=1), *drawn(rank=1), *drawn(parts=2)[1:]]
    assert len(set(every)) == 5
