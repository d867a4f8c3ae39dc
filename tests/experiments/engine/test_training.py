"""A run computes what a plain loop does; order, augmentation and noise are functions of keys."""

import gc
import multiprocessing
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import assert_same_end, ended, folder_of, run_of
from spherenorm_pictures import Pictures, PictureTask, picture_spec
from spherenorm_tiny import tiny_spec

from spherenorm_experiments import data
from spherenorm_experiments.data import TrainingBatches, evaluation_batches
from spherenorm_experiments.execute import execute_spec
from spherenorm_experiments.run import Ranks
from spherenorm_experiments.spec import SCHEDULES, Regime
from spherenorm_experiments.task import length, stream
from spherenorm_experiments.train import Training
from tests.harness import refuses


def test_optimizers_with_one_seed_see_the_same_start_data_and_noise(tmp_path):
    first = []
    for recipe in ("sgd", "sgdp", "adamw"):
        spec = tiny_spec(recipe, lr=0.0)
        execute_spec(spec, tmp_path)
        first.append([record["loss"] for record in folder_of(spec, tmp_path).records()])
    assert first[0] == first[1] == first[2]
    assert len(set(first[0])) == len(first[0])  # different batches and dropout masks
    other = tiny_spec("sgd", seed=1, lr=0.0)
    execute_spec(other, tmp_path)
    assert first[0] != [record["loss"] for record in folder_of(other, tmp_path).records()]


def test_the_measured_norm_is_the_norm_of_the_weight(tmp_path):
    spec = tiny_spec()
    execute_spec(spec, tmp_path)
    folder = folder_of(spec, tmp_path)
    weight = folder.load_checkpoint()["model"]["0.weight"]
    assert folder.summary()["views"] == {"0.weight": "channel", "4.weight": None}
    assert folder.records()[-1]["norm"] == pytest.approx(weight.norm(dim=1).mean().item(), rel=1e-6)
    assert folder.summary()["norm_last"] == folder.records()[-1]["norm"]
    assert folder.summary()["invariant_share"] == 48 / (48 + 8 + 8 + 8 + 1)


def test_the_runner_trains_as_a_plain_loop_does(tmp_path):
    """Against torch.optim.SGD with a LambdaLR, on the run's own batches."""
    spec = tiny_spec("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    execute_spec(spec, tmp_path)
    run = run_of(spec)
    training = Training(run, run.task)
    opt = torch.optim.SGD(
        training.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: SCHEDULES["cosine"](step / run.steps)
    )
    training.model.train()
    for step in range(run.steps):
        [(batch, weight)] = training.batches.at(step)
        assert weight == 1.0
        torch.manual_seed(stream(0, "noise", step, 0, 0))
        opt.zero_grad()
        training.task.loss(training.model, batch).backward()
        opt.step()
        schedule.step()
    for name, value in folder_of(spec, tmp_path).load_checkpoint()["model"].items():
        torch.testing.assert_close(training.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_each_step_begins_in_training_mode():
    """Also of a part that a loss has put into evaluation mode, as an attack does with BatchNorm."""
    run = run_of(tiny_spec())
    training = Training(run, run.task)
    training.step(0)
    for part in (training.module[1], training.module):
        part.eval()
        training.step(1)
        assert all(module.training for module in training.module.modules())


def test_the_measured_step_is_that_of_the_weights():
    run = run_of(tiny_spec("sgd", lr=0.1))
    training = Training(run, run.task)
    before = training.module[0].weight.detach().clone()
    record, _ = training.step(0)
    after = training.module[0].weight.detach()
    directions = (x / x.norm(dim=1, keepdim=True) for x in (before.double(), after.double()))
    w, moved = directions
    expected = (moved - w).norm(dim=1).mean().item()
    assert record["effective_step"] == pytest.approx(expected, rel=1e-5)
    assert expected > 1e-4


@pytest.mark.filterwarnings("error")
def test_what_trains_on_the_sphere_puts_its_weights_there_first():
    run = run_of(tiny_spec("sgdg", lr=0.1))
    Training(run, run.task)


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
    training = Training(run_of(spec), Drawing(), Ranks(rank=rank))
    training.batches.shares.ranks = Ranks()
    training.step(step)
    return numbers


def test_the_noise_is_of_seed_step_micro_batch_and_rank():
    assert drawn() == drawn()
    every = [*drawn(), *drawn(seed=1), *drawn(step=1), *drawn(rank=1), *drawn(parts=2)[1:]]
    assert len(set(every)) == 5


def batches_of(spec, workers=0, ranks=None, steps=None, start=0):
    run = run_of(spec)
    batches = TrainingBatches(run, run.task, ranks or Ranks(), workers, "cpu")
    return [list(batches.at(step)) for step in range(start, steps or run.steps)]


def equal(a, b):
    return all(
        torch.equal(x, y) and v == w
        for first, second in zip(a, b, strict=True)
        for (xs, v), (ys, w) in zip(first, second, strict=True)
        for x, y in zip(xs, ys, strict=True)
    )


def test_a_batch_does_not_depend_on_workers_or_on_the_step_that_a_run_starts_at():
    spec = picture_spec()
    whole = batches_of(spec)
    assert equal(whole[7:], batches_of(spec, workers=2, start=7))
    assert not equal(whole[:1], batches_of(picture_spec(seed=1), steps=1))


@pytest.mark.parametrize(
    "attempts", [2, pytest.param(1, marks=pytest.mark.long)], ids=["anew", "given up"]
)
def test_a_worker_that_never_begins_is_forked_anew(attempts, monkeypatch):
    """A fork of a process with threads may inherit a lock that nobody will release."""
    forks, begin = multiprocessing.get_context("fork").Value("i", 0), data._begin_worker

    def begin_at_the_second_fork(begun, index):
        with forks.get_lock():
            forks.value += 1
        if forks.value < 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        begin(begun, index)

    monkeypatch.setattr(data, "_begin_worker", begin_at_the_second_fork)
    monkeypatch.setattr(data, "START_TIMEOUT_S", 0.3)
    monkeypatch.setattr(data, "MAX_STARTS", attempts)
    # torch waits as long for a worker to end.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.3)
    children, spec = set(multiprocessing.active_children()), picture_spec()
    if attempts == 1:
        with pytest.raises(RuntimeError, match="a worker of the data loader did not begin"):
            batches_of(spec, workers=1, steps=1)
    else:
        assert equal(batches_of(spec, steps=2), batches_of(spec, workers=1, steps=2))
    assert forks.value == attempts
    gc.collect()
    assert set(multiprocessing.active_children()) <= children


def test_every_epoch_has_each_item_once_in_an_order_and_an_augmentation_of_its_own():
    spec = picture_spec(epochs=2)
    items = [x for step in batches_of(spec) for (x, _), _ in step]
    first, second = torch.cat(items[:5]), torch.cat(items[5:])
    assert not torch.isclose(first, second).all(dim=1).any()
    plain = picture_spec(epochs=2, augment=False)
    items = [x for step in batches_of(plain) for (x, _), _ in step]
    first, second = torch.cat(items[:5]), torch.cat(items[5:])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert sorted(map(tuple, epoch.tolist())) == sorted(
            map(tuple, Pictures(37, 1, False).x.tolist())
        )


def test_an_item_is_augmented_by_its_key_alone():
    """Not by its place in a batch, nor by what was drawn before it."""
    one, other = picture_spec(batch_size=8), picture_spec(batch_size=37)
    a = torch.cat([x for step in batches_of(one, steps=5) for (x, _), _ in step])
    b = torch.cat([x for step in batches_of(other, steps=1) for (x, _), _ in step])
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("tensors", "world", "parts"), [(True, 2, 1), (False, 3, 2), (False, 1, 5), (True, 4, 3)]
)
def test_the_shares_of_ranks_and_micro_batches_are_the_batch_and_weigh_1(tensors, world, parts):
    spec = picture_spec(epochs=1, tensors=tensors)
    spec = replace(spec, regime=replace(spec.regime, micro_batches=parts))
    whole = batches_of(picture_spec(epochs=1, tensors=tensors))
    ranks = [batches_of(spec, ranks=Ranks(rank, world)) for rank in range(world)]
    for step, [((x, _), weight)] in enumerate(whole):
        assert weight == 1.0
        shares = [share for rank in ranks for share in rank[step]]
        assert len({len(rank[step]) for rank in ranks}) == 1  # all ranks synchronize as often
        assert sum(weight for _, weight in shares) == pytest.approx(1.0)
        counted = torch.cat([x for (x, _), weight in shares if weight])
        assert sorted(map(tuple, counted.tolist())) == sorted(map(tuple, x.tolist()))
        for (part, _), share in shares:
            assert share in (0.0, pytest.approx(len(part) / len(x)))


@pytest.mark.parametrize(("world", "tensors"), [(1, False), (2, True), (3, False), (4, True)])
def test_ranks_evaluate_each_item_once_and_equally_many_batches(world, tensors):
    run = run_of(picture_spec(tensors=tensors))
    split = run.splits.validation
    found = [
        list(evaluation_batches(split, run, run.task, Ranks(rank, world), 0, "cpu"))
        for rank in range(world)
    ]
    assert len({len(batches) for batches in found}) == 1
    counted = {n: batch[1] for batches in found for n, counts, batch in batches if counts}
    assert torch.equal(torch.cat([counted[n] for n in sorted(counted)]), Pictures(13, 2, 0).labels)
    assert length(split) == 13


def test_a_data_set_and_its_tensors_train_alike(tmp_path):
    """Without augmentation the two differ only in what loads them."""
    losses = []
    for tensors in (True, False):
        spec = picture_spec(tensors=tensors, augment=False)
        assert execute_spec(spec, tmp_path).state == "finished"
        losses.append([record["loss"] for record in folder_of(spec, tmp_path).records()])
    assert losses[0] == losses[1]


def test_a_task_that_draws_from_python_or_numpy_is_seeded_by_the_run(tmp_path):
    """In loss and model too; and the caller's random states are left as they were."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    spec = replace(picture_spec("sgd"), task="spherenorm_pictures:Drawing", options={})
    results = []
    for root in "ab":
        assert execute_spec(spec, tmp_path / root).state == "finished"
        results.append(ended(spec, tmp_path / root))
        random.random(), np.random.rand()
        random.seed(5)
        np.random.seed(5)
    assert_same_end(*results)
    now = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert now == states


def test_a_model_that_a_run_has_trained_is_refused_by_the_next(monkeypatch):
    run = run_of(tiny_spec())
    model = run.task.model()
    monkeypatch.setattr(type(run.task), "model", lambda task: model)
    Training(run, run.task)
    with refuses("model", "0.weight", "new module"):
        Training(run, run.task)


def test_an_order_of_the_wrong_length_is_refused():
    class Half(PictureTask):
        def order(self, count, batch_size, random):
            return torch.arange(count // 2)

    run = run_of(picture_spec())
    with refuses("order", 37, 18):
        list(TrainingBatches(run, Half(), Ranks(), 0, "cpu").at(0))


def test_an_error_of_an_item_is_that_of_the_run(tmp_path):
    spec = replace(picture_spec(), task="spherenorm_pictures:Broken", options={})
    outcome = execute_spec(spec, tmp_path, workers=1)
    assert outcome.state == "failed"
    assert "item 10 is broken" in folder_of(spec, tmp_path).status()["traceback"]
