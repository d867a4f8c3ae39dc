"""A run computes what a plain training loop does."""

import pytest
import torch
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import SCHEDULES, Spec, stream
from spherenorm_experiments.engine import Training
from spherenorm_experiments.engine.door import execute_spec


def test_optimizers_with_one_seed_see_the_same_start_data_and_noise(tmp_path):
    first = []
    for recipe in ("sgd", "sgdp", "adamw"):
        spec = tiny_spec(recipe, lr=0.0)
        execute_spec(spec, tmp_path)
        first.append([record["loss"] for record in folder_of(spec, tmp_path).metrics.read()])
    assert first[0] == first[1] == first[2]
    assert len(set(first[0])) == len(first[0])  # different batches and dropout masks
    other = tiny_spec("sgd", seed=1, lr=0.0)
    execute_spec(other, tmp_path)
    assert first[0] != [record["loss"] for record in folder_of(other, tmp_path).metrics.read()]


def test_the_measured_norm_is_the_norm_of_the_weight(tmp_path):
    spec = tiny_spec()
    execute_spec(spec, tmp_path)
    folder = folder_of(spec, tmp_path)
    weight = folder.load_checkpoint()["model"]["0.weight"]
    assert folder.summary()["views"] == {"0.weight": "channel", "4.weight": None}
    assert folder.metrics.read()[-1]["norm"] == pytest.approx(
        weight.norm(dim=1).mean().item(), rel=1e-6
    )
    assert folder.summary()["norm_last"] == folder.metrics.read()[-1]["norm"]
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
    options = {"baseline": "sgd", "width": 4, "batch": 8}
    overhead = run_of(Spec("overhead", "sgdg", {"lr": 0.1}, options))
    overhead.task.measure(overhead.spec, overhead.bound)
