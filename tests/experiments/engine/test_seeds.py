"""The seed of a run decides its weights, its order, its augmentation and its noise, each."""

from dataclasses import replace

import torch
from running import run_of
from spherenorm_pictures import PictureTask, picture_spec

from spherenorm_experiments.core import Regime
from spherenorm_experiments.engine import Ranks, Training
from spherenorm_experiments.engine._gradients import Gradients
from spherenorm_experiments.engine._loader import TrainingBatches


def of_seed(seed):
    """The first weight, the first items in their order, and the sum of all augmented items."""
    run = run_of(picture_spec(seed=seed))
    found = [Training(run, PictureTask()).module[0].weight.detach()]
    for options in ({"augment": False}, {"augment": False, "tensors": True}, {"batch_size": 37}):
        run = run_of(picture_spec(seed=seed, **options))
        [((x, _), _)] = TrainingBatches(run, run.task, Ranks(), 0, "cpu").at(0)
        found.append(x if "augment" in options else x.double().sum().round(decimals=6))
    return found


def test_weights_order_and_augmentation_are_of_the_seed():
    first, same, other = (of_seed(seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, same))
    assert not any(map(torch.equal, first, other))


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
