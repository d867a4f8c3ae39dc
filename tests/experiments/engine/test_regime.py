"""Options of a run against plain torch: warm-up, accumulation, clipping, precision, groups."""

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from running import assert_same_end, ended, folder_of, run_of, stop_after
from spherenorm_pictures import PictureTask, picture_spec
from torch.nn.functional import cross_entropy

from spherenorm_experiments.execute import execute, execute_spec
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
    return [record["loss"] for record in folder_of(spec, root).records()]


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


def test_warm_up_and_clipping_are_torchs(tmp_path):
    spec = plain_spec(Regime(warmup=1.5, clip_norm=0.3))
    run = run_of(spec)
    state = {}

    def step_of(step, model, batch, factor):
        optimizer = state.setdefault("opt", torch.optim.SGD(model.parameters(), momentum=0.9))
        lr = 0.2 * factor * min(1, (step + 1) / (1.5 * run.steps_per_epoch))
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        return loss.item()

    expected, model = by_hand(spec, step_of)
    assert losses(spec, tmp_path) == pytest.approx(expected, rel=1e-4)
    checkpoint = folder_of(spec, tmp_path).load_checkpoint()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(checkpoint["model"][name], value, rtol=1e-4, atol=1e-6)
    norms = [record["grad_norm"] for record in folder_of(spec, tmp_path).records()]
    assert max(norms) > 0.3  # it was clipped


def test_a_task_acts_around_each_step(tmp_path):
    """It sees the gradients before, the weights after, and keeps an average that is evaluated."""
    seen = []

    class Acting(PictureTask):
        @contextmanager
        def around_step(self, training, step):
            before = [x.detach().clone() for x in training.module.live.parameters()]
            assert all(x.grad.norm() > 0 for x in training.module.live.parameters())
            with super().around_step(training, step):
                yield
            after = training.module.live.parameters()
            seen.append((step, not any(map(torch.equal, before, after))))

    spec = replace(plain_spec(), options={**plain_spec().options, "averaged": True})
    run = run_of(spec, tmp_path)
    assert execute(replace(run, task=Acting(**spec.options))).state == "finished"
    assert seen == [(step, True) for step in range(run.steps)]
    model = run.task.model()
    model.load_state_dict(run.folder.load_checkpoint()["model"])
    share = run.task.evaluate(model.average.module.eval(), run.splits.test)["perplexity"]
    found = run.folder.summary()["test_metrics"]["perplexity"]
    assert found == pytest.approx(share.value([share.state]), rel=1e-5)
    other = run.task.evaluate(model.live.eval(), run.splits.test)["perplexity"]
    assert found != pytest.approx(other.value([other.state]), rel=1e-3)


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


class Slowed(Grouped):
    """All weights have a rate of their own."""

    name = "slowed"

    def parameter_groups(self, model):
        return [{"params": [*model.parameters()], "lr_factor": 0.1}]


@pytest.mark.filterwarnings("error:.*reaches no param_group")
def test_rates_that_differ_in_all_groups_warn_of_nothing():
    training = Training(run_of(plain_spec(None, "sgd", lr=0.2)), Slowed())
    assert {group["lr"] for group in training.optimizer.param_groups} == {0.1 * 0.2}


EVERYTHING = Regime(warmup=1, micro_batches=2, clip_norm=1.0)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_with_every_option_a_run_goes_on_where_it_was_interrupted(tmp_path, precision):
    regime = replace(EVERYTHING, precision=precision)
    spec = picture_spec(epochs=2, averaged=True, regime=regime)
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
    scale = training.scaler.get_scale()
    training.step(0)
    handle.remove()
    for name, value in training.module.state_dict().items():
        assert torch.equal(value, before[name])
    assert training.scaler.get_scale() == scale / 2
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
    norms = [record.get("grad_norm") for record in run.folder.records()]
    assert len(norms) == run.steps
    assert norms[0] is None
    assert norms[-1] > 0


def test_an_option_is_part_of_the_identity_only_if_it_is_not_the_default():
    spec = picture_spec()
    assert not {"regime", "probe_every"} & spec.to_json().keys()
    identities = {run_of(spec).name}
    others = {"warmup": 1.0, "micro_batches": 2, "clip_norm": 1.0, "precision": "bfloat16"}
    for option in others.items():
        changed = replace(spec, regime=Regime(**dict([option])))
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
        {"precision": "float61"},
        {"label_smoothing": 0.1},
    ],
)
def test_an_option_out_of_range_is_named(options):
    ((name, value),) = options.items()
    with refuses(value if name == "precision" else name):
        Regime(**options)


def test_an_option_of_an_earlier_version_is_read_as_one_of_the_task():
    content = {**picture_spec().to_json(), "regime": {"clip_norm": 1.0, "label_smoothing": 0.1}}
    spec = Spec.from_json(content)
    assert (spec.options, spec.regime) == ({"label_smoothing": 0.1}, Regime(clip_norm=1.0))


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
