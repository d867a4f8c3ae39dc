"""Runs: what they compute, and that nothing that happens to the process changes it."""

import errno
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch
from spherenorm_tiny import TASK, tiny_spec

from experiments import store as store_module
from experiments.runner import check, execute, steps_of
from experiments.spec import SCHEDULES, Spec
from experiments.store import CorruptFileWarning, Store, StoreError
from experiments.task import find_task, stream
from experiments.training import Training


def result_of(spec, root):
    folder = Store(root).folder(spec)
    return (
        (folder.path / "summary.json").read_bytes(),
        (folder.path / "metrics.jsonl").read_bytes(),
        folder.load_checkpoint(),
    )


def assert_identical(a, b):
    assert a[0] == b[0]
    assert a[1] == b[1]
    assert torch.equal(torch.tensor(a[2]["done"]), torch.tensor(b[2]["done"]))
    for name, value in a[2]["model"].items():
        assert torch.equal(value, b[2]["model"][name]), name
    for key, state in a[2]["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, b[2]["optimizer"]["state"][key][name]), name


@pytest.mark.parametrize("recipe", ["sgdp", "adamp"])
def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(
    tmp_path, forkserver, recipe
):
    hyper_parameters = {"lr": 0.05}
    spec = tiny_spec(recipe, epochs=15, delay=0.004, **hyper_parameters)
    execute(spec, tmp_path / "whole")
    draw, resumed_from = random.Random(recipe), []
    for _ in range(40):
        child = forkserver.Process(
            target=execute, args=(spec, tmp_path / "killed"), kwargs={"checkpoint_seconds": 0.0}
        )
        child.start()
        time.sleep(draw.uniform(0.05, 0.35))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        checkpoint = Store(tmp_path / "killed").folder(spec).load_checkpoint()
        resumed_from.append(0 if checkpoint is None else checkpoint["done"])
        if resumed_from[-1] > 10:
            break
    assert 0 < resumed_from[-1] < steps_of(spec), resumed_from
    outcome = execute(spec, tmp_path / "killed")
    assert outcome.state == "finished"
    assert not outcome.cached
    assert_identical(result_of(spec, tmp_path / "whole"), result_of(spec, tmp_path / "killed"))


def test_resuming_does_not_start_again(tmp_path):
    spec, calls = tiny_spec(epochs=4), []
    stop_after(spec, tmp_path, 9, calls)
    checkpoint = Store(tmp_path).folder(spec).load_checkpoint()
    assert checkpoint["done"] == 9
    execute(spec, tmp_path)
    execute(spec, tmp_path / "whole")
    assert_identical(result_of(spec, tmp_path), result_of(spec, tmp_path / "whole"))


def stop_after(spec, root, steps, calls):
    """Interrupt a run, as Ctrl-C would, when it has written `steps` checkpoints."""
    original = store_module.RunFolder.save_checkpoint

    def saving(folder, state):
        original(folder, state)
        calls.append(state["done"])
        if len(calls) == steps:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.RunFolder, "save_checkpoint", saving)
        with pytest.raises(KeyboardInterrupt):
            execute(spec, root, checkpoint_seconds=0.0)
    assert Store(root).folder(spec).status()["state"] == "interrupted"


@pytest.mark.parametrize("name", ["checkpoint.pt", "metrics.jsonl", "status.json", "config.json"])
def test_a_corrupt_file_of_an_unfinished_run_is_set_aside_and_the_result_is_the_same(
    tmp_path, name
):
    spec = tiny_spec(epochs=3)
    stop_after(spec, tmp_path, 7, [])
    flip_a_byte(Store(tmp_path).folder(spec).path / name)
    folder = Store(tmp_path).folder(spec)
    read = {"status.json": folder.status, "config.json": folder.config}.get(
        name, lambda: execute(spec, tmp_path)
    )
    with pytest.warns(CorruptFileWarning, match=name):
        read()
    execute(spec, tmp_path)
    assert (Store(tmp_path).folder(spec).path / f"{name}.corrupt-1").exists()
    execute(spec, tmp_path / "whole")
    assert_identical(result_of(spec, tmp_path), result_of(spec, tmp_path / "whole"))


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl"])
def test_a_corrupt_file_of_a_finished_run_is_set_aside_and_the_run_done_again(tmp_path, name):
    spec = tiny_spec()
    execute(spec, tmp_path)
    before = result_of(spec, tmp_path)
    flip_a_byte(Store(tmp_path).folder(spec).path / name)
    with pytest.warns(CorruptFileWarning, match=name):
        outcome = execute(spec, tmp_path)
    assert not outcome.cached
    assert_identical(before, result_of(spec, tmp_path))


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("failing", [1, 2, 3, 5, 8])
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, monkeypatch, failing):
    spec, calls, real = tiny_spec(), [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) >= failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        execute(spec, tmp_path, checkpoint_seconds=0.0)
    assert not list(tmp_path.rglob(".*.*"))  # no half-written files
    monkeypatch.setattr(store_module.os, "fsync", real)
    assert execute(spec, tmp_path).state == "finished"
    execute(spec, tmp_path / "whole")
    assert_identical(result_of(spec, tmp_path), result_of(spec, tmp_path / "whole"))


def test_a_finished_run_is_not_run_again(tmp_path):
    spec = tiny_spec()
    assert not execute(spec, tmp_path).cached
    assert execute(spec, tmp_path).cached


def test_a_recipe_that_raises_fails_its_run_and_says_where(tmp_path):
    spec = tiny_spec("spherenorm_tiny:raising", lr=0.1)
    outcome = execute(spec, tmp_path)
    assert (outcome.state, outcome.error) == ("failed", "RuntimeError: this recipe gave up")
    status = Store(tmp_path).folder(spec).status()
    assert status["state"] == "failed"
    assert "spherenorm_tiny.py" in status["traceback"]
    assert not execute(spec, tmp_path).cached  # tried again


def test_a_loss_that_is_not_finite_ends_the_run_with_a_result(tmp_path):
    spec = tiny_spec("spherenorm_tiny:exploding", lr=0.1)
    outcome = execute(spec, tmp_path)
    summary = Store(tmp_path).folder(spec).summary()
    assert outcome.state == "diverged"
    assert (
        summary["diverged_at"] == 0
    )  # in float32 the first step's norm overflows, before any loss does
    assert summary["validation"] is None
    assert execute(spec, tmp_path).cached
    unwatched = replace(spec, probes=())
    assert execute(unwatched, tmp_path).state == "diverged"
    assert 1 <= Store(tmp_path).folder(unwatched).summary()["diverged_at"] <= 3


def test_two_processes_share_a_run_without_doing_it_twice(tmp_path, forkserver):
    spec = tiny_spec(epochs=20, delay=0.01)
    child = forkserver.Process(target=execute, args=(spec, tmp_path))
    child.start()
    folder = Store(tmp_path).folder(spec)
    while not (folder.path / "status.json").exists():
        time.sleep(0.01)
    assert execute(spec, tmp_path).state == "busy"
    waited = execute(spec, tmp_path, wait=-1)
    child.join()
    assert child.exitcode == 0
    assert waited.cached


def test_optimizers_with_one_seed_see_the_same_start_data_and_noise(tmp_path):
    first = []
    for recipe in ("sgd", "sgdp", "adamw"):
        spec = tiny_spec(recipe, lr=0.0)
        execute(spec, tmp_path)
        first.append([record["loss"] for record in Store(tmp_path).folder(spec).metrics()])
    assert first[0] == first[1] == first[2]
    assert len(set(first[0])) == len(first[0])  # different batches and dropout masks
    other = tiny_spec("sgd", seed=1, lr=0.0)
    execute(other, tmp_path)
    assert first[0] != [record["loss"] for record in Store(tmp_path).folder(other).metrics()]


def test_the_measured_norm_is_the_norm_of_the_weight(tmp_path):
    spec = tiny_spec()
    execute(spec, tmp_path)
    folder = Store(tmp_path).folder(spec)
    weight = folder.load_checkpoint()["model"]["0.weight"]
    assert folder.summary()["views"] == {"0.weight": "channel", "4.weight": None}
    assert folder.metrics()[-1]["norm"] == pytest.approx(weight.norm(dim=1).mean().item(), rel=1e-6)
    assert folder.summary()["norm_last"] == folder.metrics()[-1]["norm"]
    assert folder.summary()["invariant_share"] == 48 / (48 + 8 + 8 + 8 + 1)


def test_the_runner_trains_as_a_plain_loop_does(tmp_path):
    """Against torch.optim.SGD with a LambdaLR, on the run's own batches."""
    spec = tiny_spec("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    execute(spec, tmp_path)
    training = Training(spec, find_task(TASK))
    opt = torch.optim.SGD(
        training.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: SCHEDULES["cosine"](step / training.steps)
    )
    training.model.train()
    for step in range(training.steps):
        torch.manual_seed(stream(0, "noise", step))
        opt.zero_grad()
        training.task.loss(training.model, training.batch(step)).backward()
        opt.step()
        schedule.step()
    for name, value in Store(tmp_path).folder(spec).load_checkpoint()["model"].items():
        torch.testing.assert_close(training.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_wrong_specs_are_refused_with_the_right_name():
    with pytest.raises(ValueError, match="no recipe is named 'sgdpp'; did you mean sgdp"):
        check(tiny_spec("sgdpp"))
    with pytest.raises(ValueError, match="no hyper-parameter 'momentun'; did you mean momentum"):
        check(tiny_spec("sgd", momentun=0.9))
    with pytest.raises(ValueError, match=r"momentum|beta"):
        check(tiny_spec("sgd", momentum=1.5))
    with pytest.raises(ValueError, match="no option 'widht'; did you mean width"):
        check(Spec("digits", "sgd", options={"widht": 3}))
    with pytest.raises(ValueError, match="variant is one of plain, depthwise"):
        check(Spec("digits", "sgd", options={"variant": "plane"}))
    with pytest.raises(ValueError, match="no task is named 'digit'; did you mean digits"):
        check(Spec("digit", "sgd"))
    with pytest.raises(ValueError, match="no schedule is named 'cosin'; did you mean cosine"):
        Spec("digits", "sgd", schedule="cosin")
    with pytest.raises(ValueError, match="no probe is named 'norm'; did you mean norms"):
        check(Spec("digits", "sgd", probes=("norm",)))
    with pytest.raises(ValueError, match="lr must be a number, not a list"):
        check(tiny_spec("sgd", lr=[0.1, 0.2]))
    with pytest.raises(ValueError, match="epochs must be an integer of at least 1, got 0"):
        tiny_spec(epochs=0)


@pytest.mark.parametrize("probes", [("norms",), ()])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_that_explodes_in_its_last_step_has_diverged(tmp_path, probes, steps):
    """Nothing computes a loss of these weights any more; of normalized weights it would even be finite."""
    spec = Spec(
        TASK,
        "spherenorm_tiny:exploding",
        {"lr": 0.1},
        epochs=1,
        batch_size=64 // steps,
        probes=probes,
    )
    assert steps_of(spec) == steps
    assert execute(spec, tmp_path).state == "diverged"
    folder = Store(tmp_path).folder(spec)
    assert folder.summary()["diverged_at"] < steps
    assert folder.summary()["test"] is None
    assert (
        "Infinity"
        not in folder.metrics_path.read_text() + (folder.path / "summary.json").read_text()
    )


@pytest.mark.parametrize("task", ["rosenbrock", "mlp"])
def test_a_point_of_a_sweep_diverges_alone(tmp_path, task):
    def summary(*rates):
        spec = Spec(
            task,
            "sgd",
            {"lr": list(rates), "momentum": 0.9},
            epochs=20,
            schedule="constant",
            probes=(),
        )
        outcome = execute(spec, tmp_path)
        text = (Store(tmp_path).folder(spec).path / "summary.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        return outcome.state, Store(tmp_path).folder(spec).summary()

    state, both = summary(0.01, 1e300)
    good, bad = both["points_diverged_at"]
    assert (state, both["diverged_at"], good) == ("finished", None, None)
    assert 0 <= bad < 20
    state, alone = summary(1e300)
    assert (state, alone["diverged_at"], alone["points_diverged_at"]) == ("diverged", bad, [bad])
    assert summary(0.01)[1]["points_diverged_at"] == [None]


@pytest.mark.filterwarnings("error")
def test_what_trains_on_the_sphere_puts_its_weights_there_first():
    Training(tiny_spec("sgdg", lr=0.1), find_task(TASK))
    overhead = Spec("overhead", "sgdg", {"lr": 0.1}, {"baseline": "sgd", "width": 4, "batch": 8})
    find_task("overhead", overhead.options).measure(overhead)
