"""Options of a run against plain torch: warm-up, accumulation, averages, turns, given steps."""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from running import assert_same_end, ended, folder_of, run_of, stop_after
from spherenorm_pictures import PictureTask, picture_spec
from torch.nn.functional import cross_entropy

from spherenorm import as_view, metrics
from spherenorm_experiments.execute import execute, execute_spec
from spherenorm_experiments.given_steps import turn_by
from spherenorm_experiments.spec import SCHEDULES, Regime, Spec
from spherenorm_experiments.train import Training
from tests.harness import refuses


def plain_spec(regime=None, recipe="sgd", epochs=3, **hyper_parameters):
    """No BatchNorm, dropout or augmentation: division changes only rounding."""
    spec = picture_spec(recipe, epochs=epochs, tensors=True, noisy=False, augment=False)
    hyper_parameters = hyper_parameters or {"lr": 0.2, "momentum": 0.9}
    return replace(spec, hyper_parameters=hyper_parameters, regime=regime or Regime())


def losses(spec, root, **flags):
    outcome = execute_spec(spec, root, **flags)
    assert outcome.state == "finished", outcome.error
    return [record["loss"] for record in folder_of(spec, root).metrics.read()]


def by_hand(spec, step_of, start=None):
    """A plain loop on the run's own model and batches; `step_of(step, model, loss_of)` steps."""
    run = run_of(spec)
    training = Training(run, run.task)
    model, found = training.module, []
    model.train()
    for step in range(run.steps):
        [(batch, _)] = training.batches.at(step)
        found.append(step_of(step, model, batch, SCHEDULES["cosine"](step / run.steps)))
    return found, model


def test_micro_batches_change_only_rounding(tmp_path):
    whole = losses(plain_spec(), tmp_path)
    for parts in (3, 50):
        divided = losses(plain_spec(Regime(micro_batches=parts)), tmp_path)
        assert divided == pytest.approx(whole, rel=1e-5)
    assert len(set(whole)) == len(whole)


def test_warm_up_clipping_smoothing_and_average_are_torchs(tmp_path):
    regime = Regime(warmup=1.5, clip_norm=0.3, label_smoothing=0.1, ema=0.9)
    spec = plain_spec(regime)
    run = run_of(spec)
    state = {}

    def step_of(step, model, batch, factor):
        optimizer = state.setdefault("opt", torch.optim.SGD(model.parameters(), momentum=0.9))
        average = state.setdefault(
            "ema",
            torch.optim.swa_utils.AveragedModel(
                model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            ),
        )
        if step == 0:
            average.n_averaged.fill_(1)  # ours begins with the initial weights
        lr = 0.2 * factor * min(1, (step + 1) / (1.5 * run.steps_per_epoch))
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        average.update_parameters(model)
        return loss.item()

    expected, model = by_hand(spec, step_of)
    assert losses(spec, tmp_path) == pytest.approx(expected, rel=1e-4)
    checkpoint = folder_of(spec, tmp_path).load_checkpoint()
    for name, value in state["ema"].module.state_dict().items():
        torch.testing.assert_close(checkpoint["ema"][name], value, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            checkpoint["model"][name], model.state_dict()[name], rtol=1e-4, atol=1e-6
        )
    norms = [record["grad_norm"] for record in folder_of(spec, tmp_path).metrics.read()]
    assert max(norms) > 0.3  # it was clipped
    averaged = run.task.evaluate(state["ema"].module.eval(), run.splits.test)
    share = averaged["perplexity"]
    found = folder_of(spec, tmp_path).summary()["test_metrics"]["perplexity"]
    assert found == pytest.approx(share.value([share.state]), rel=1e-4)


def test_two_optimizers_in_turn(tmp_path):
    """Adam, then SGD with momentum and a state of its own, on one schedule."""
    regime = Regime(then=({"recipe": "sgd", "after": 0.6, "lr": 0.05, "momentum": 0.9},))
    spec = plain_spec(regime, "adam", lr=0.01)
    state = {}

    def step_of(step, model, batch, factor):
        if step in (0, 9):  # 0.6 of 15 steps
            adam = torch.optim.Adam(model.parameters(), lr=0.01)
            sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            state["opt"] = adam if step == 0 else sgd
        optimizer = state["opt"]
        optimizer.param_groups[0]["lr"] = (0.01 if step < 9 else 0.05) * factor
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    expected, _ = by_hand(spec, step_of)
    assert losses(spec, tmp_path) == pytest.approx(expected, rel=1e-4)


@dataclass(frozen=True)
class Grouped(PictureTask):
    """No decay of what has one dimension, and a faster last layer."""

    name = "grouped"

    def parameter_groups(self, model):
        last = model[-1].weight
        small = [weight for weight in model.parameters() if weight.ndim == 1]
        return [
            {"params": small, "weight_decay": 0.0, "delta": 0.5},
            {"params": [last], "lr_factor": 10.0},
        ]


@pytest.mark.parametrize("recipe", ["sgd", "sgdp", "sgdg"])
def test_a_task_groups_its_weights_for_any_recipe(recipe):
    decay = {} if recipe == "sgdg" else {"weight_decay": 0.01}
    spec = plain_spec(None, recipe, lr=0.2, **decay)
    run = run_of(spec)
    training = Training(run, Grouped())
    names = {weight: name for name, weight in training.module.named_parameters()}
    found = {
        names[weight]: group
        for group in training.optimizer.param_groups
        for weight in group["params"]
    }
    assert found.keys() == set(names.values())
    base = found["0.weight"]
    assert base["lr"] == 0.2
    rest = 0.01 if recipe == "sgdg" else 0.2
    assert found["4.weight" if "4.weight" in found else "3.weight"]["lr"] == 10 * rest
    if recipe == "sgdp":
        assert (base["weight_decay"], base["delta"]) == (0.01, 0.1)
        assert (found["1.bias"]["weight_decay"], found["1.bias"]["delta"]) == (0.0, 0.5)


EVERYTHING = Regime(
    warmup=1,
    micro_batches=2,
    clip_norm=1.0,
    ema=0.9,
    label_smoothing=0.1,
    then=({"recipe": "sgd", "after": 0.5, "lr": 0.05, "momentum": 0.9},),
)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_with_every_option_a_run_goes_on_where_it_was_interrupted(tmp_path, precision):
    """Before the second optimizer's turn, at it, and after it."""
    spec = replace(picture_spec(epochs=2), regime=replace(EVERYTHING, precision=precision))
    execute_spec(spec, tmp_path / "whole")
    written = [done for count in (3, 2, 4) for done in stop_after(spec, tmp_path, count)]
    assert written == [*range(1, 10)]  # none is done twice
    execute_spec(spec, tmp_path)
    assert_same_end(ended(spec, tmp_path), ended(spec, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_half_precision_computes_in_it_and_trains(tmp_path, precision, dtype):
    seen = []

    class Watching(PictureTask):
        def loss(self, model, batch):
            seen.append(model(batch[0]).dtype)
            return super().loss(model, batch)

    spec = plain_spec(Regime(precision=precision))
    run = run_of(spec)
    training = Training(run, Watching(tensors=True, noisy=False, augment=False))
    training.step(0)
    assert seen == [dtype]
    assert {weight.dtype for weight in training.module.parameters()} == {torch.float32}
    found = losses(spec, tmp_path)
    assert found == pytest.approx(losses(plain_spec(), tmp_path), rel=0.05)
    assert found != losses(plain_spec(), tmp_path)
    clipped = {"clip_norm": 0.1}
    whole = losses(plain_spec(Regime(**clipped)), tmp_path)
    half = losses(plain_spec(Regime(precision=precision, **clipped)), tmp_path)
    assert half == pytest.approx(whole, rel=0.01)


def test_a_float16_gradient_that_overflows_skips_its_step_and_lowers_the_scale():
    run = run_of(plain_spec(Regime(precision="float16"), "adamp", lr=0.02))
    training = Training(run, run.task)
    before = {name: x.clone() for name, x in training.module.state_dict().items()}
    weight = training.module[0].weight
    handle = weight.register_hook(lambda grad: torch.full_like(grad, torch.inf))
    scale = training.gradients.scaler.get_scale()
    training.step(0)
    handle.remove()
    for name, value in training.module.state_dict().items():
        assert torch.equal(value, before[name])
    assert training.gradients.scaler.get_scale() == scale / 2
    assert not training.optimizer.state  # it counts no step either
    training.step(1)
    assert {int(state["step"]) for state in training.optimizer.state.values()} == {1}
    assert not torch.equal(weight, before["0.weight"])


def test_a_float16_gradient_that_overflows_is_no_divergence_where_gradients_are_clipped(tmp_path):
    class Steep(PictureTask):
        """The first scaled gradients of such a loss lie beyond 65504."""

        def loss(self, model, batch):
            return 1e3 * super().loss(model, batch)

    spec = plain_spec(Regime(precision="float16", clip_norm=0.1), lr=1e-3)
    run = replace(run_of(spec, tmp_path), task=Steep(tensors=True, noisy=False, augment=False))
    assert execute(run).state == "finished"
    norms = [record.get("grad_norm") for record in run.folder.metrics.read()]
    assert len(norms) == run.steps
    assert norms[0] is None
    assert norms[-1] > 0


class Unsmoothed(PictureTask):
    def loss(self, model, batch):
        return cross_entropy(model(batch[0]), batch[1])


def test_label_smoothing_that_a_loss_would_ignore_is_refused(tmp_path):
    run = run_of(plain_spec(Regime(label_smoothing=0.1)), tmp_path)
    outcome = execute(replace(run, task=Unsmoothed(tensors=True, noisy=False, augment=False)))
    assert (outcome.state, "label_smoothing" in outcome.error) == ("failed", True)


def test_an_option_is_part_of_the_identity_only_if_it_is_not_the_default():
    spec = picture_spec()
    assert not {"regime", "probe_every"} & spec.to_json().keys()
    identities = {run_of(spec).name}
    turn = {"recipe": "sgd", "after": 0.5}
    others = [
        *({"warmup": 1.0}, {"micro_batches": 2}, {"clip_norm": 1.0}, {"ema": 0.9}),
        *({"label_smoothing": 0.1}, {"precision": "bfloat16"}, {"then": (turn,)}),
        *(
            {"then": ({**turn, **more},)}
            for more in ({"recipe": "sgdp"}, {"after": 0.6}, {"lr": 1})
        ),
    ]
    for options in others:
        changed = replace(spec, regime=Regime(**options))
        assert Spec.from_json(changed.to_json()) == changed
        identities.add(run_of(changed).name)
    identities.add(run_of(replace(spec, probe_every=3)).name)
    assert len(identities) == len(others) + 2


@pytest.mark.parametrize(
    "options",
    [
        *({"warmup": bad} for bad in (-1, "long")),
        *({"micro_batches": bad} for bad in (0, 1.5)),
        *({"clip_norm": bad} for bad in (0, math.nan)),
        *({"ema": bad} for bad in (1.0, True)),
        {"label_smoothing": 1.0},
        {"precision": "float61"},
        *({"then": bad} for bad in ("sgd", ({"recipe": "sgd"},))),
        {"then": ({"recipe": "sgd", "after": 1.5},)},
    ],
)
def test_an_option_out_of_range_is_named(options):
    ((name, value),) = options.items()
    with refuses(value if name == "precision" else name):
        Regime(**options)


def test_parts_of_a_batch_are_refused_where_they_have_another_loss():
    with refuses("micro_batches", "debiasing"):
        run_of(Spec("debiasing", "adamp", {"lr": 1e-3}, regime=Regime(micro_batches=2)))


def test_a_schedule_tells_adamc_its_largest_rate(tmp_path):
    """`compare` searches lr; max_lr=None would train AdamW."""
    given = {"lr": 0.1, "weight_decay": 1.0}
    told = plain_spec(recipe="adamc", **given, max_lr=0.1)
    found = losses(plain_spec(recipe="adamc", **given), tmp_path)
    assert found == losses(told, tmp_path)
    assert found[1:] != losses(plain_spec(recipe="adamw", **given), tmp_path)[1:]


SETTING = {"lr": 0.05, "weight_decay": 0.1}


def wide_spec(recipe, steps_of=None, **changed):
    fields = {"epochs": 3, "batch_size": 16, "probes": ("norms", "steps"), **changed}
    regime = Regime(steps_of=steps_of)
    return Spec("spherenorm_tiny:Wide", recipe, SETTING, regime=regime, **fields)


def records(spec, root):
    run = run_of(spec, root)
    outcome = execute(run)
    assert outcome.state == "finished", outcome.error
    return run, run.folder.metrics.read()


def test_a_run_takes_the_effective_steps_of_another_one(tmp_path):
    recipe, other = "adam", "adamp"
    reference, theirs = records(wide_spec(other), tmp_path)
    _, own = records(wide_spec(recipe), tmp_path)
    _, given = records(wide_spec(recipe, reference.name), tmp_path)
    views = reference.folder.summary()["views"]
    assert [views[name] for name in theirs[0]["steps"]] == ["channel", "layer"]
    for a, b in zip(given, theirs, strict=True):
        assert a["steps"] == pytest.approx(b["steps"], rel=1e-9)
    apart = [a["effective_step"] / b["effective_step"] for a, b in zip(own, theirs, strict=True)]
    assert max(abs(np.log(apart))) > 0.1  # by itself it takes others
    assert given[-1]["loss"] != theirs[-1]["loss"]  # its directions are its own


@pytest.mark.parametrize("view", ["channel", "layer"])
def test_units_turn_in_their_own_direction_to_their_own_norm(view):
    generator = torch.Generator().manual_seed(0)
    units = as_view(view)
    for size in (1e-6, 0.1, 1.0):
        before = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        after = before + size * torch.randn(5, 4, generator=generator, dtype=torch.float64)
        own = metrics.angular_update(before, after, view)
        target = float((2 * torch.sin(0.7 * own / 2)).mean())
        new = turn_by(units, before, after, target)
        close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-15)
        close(metrics.angular_update(before, new, view), 0.7 * own)
        close(metrics.norm(new, view), metrics.norm(after, view))
        # before, new and after lie in a plane, in this order
        close(metrics.angular_update(new, after, view), 0.3 * own)
