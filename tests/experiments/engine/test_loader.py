"""Order, augmentation and noise are functions of keys, not of workers or resumes."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from interrupted import assert_same_end, ended, stop_after
from running import folder_of, run_of
from spherenorm_pictures import Pictures, PictureTask, picture_spec

from spherenorm_experiments.core import length
from spherenorm_experiments.engine import Ranks
from spherenorm_experiments.engine._loader import TrainingBatches, evaluation_batches
from spherenorm_experiments.engine.door import execute_spec
from tests.harness import refuses


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


def test_a_run_on_a_data_set_goes_on_in_the_middle_of_an_epoch(tmp_path):
    spec = picture_spec()
    assert run_of(spec).steps_per_epoch == 5
    stop_after(spec, tmp_path, 7)
    assert folder_of(spec, tmp_path).load_checkpoint()["done"] == 7
    execute_spec(spec, tmp_path, workers=2)
    execute_spec(spec, tmp_path / "whole")
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


def test_a_data_set_and_its_tensors_train_alike(tmp_path):
    """Without augmentation the two differ only in what loads them."""
    losses = []
    for tensors in (True, False):
        spec = picture_spec(tensors=tensors, augment=False)
        assert execute_spec(spec, tmp_path).state == "finished"
        losses.append([record["loss"] for record in folder_of(spec, tmp_path).metrics.read()])
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
