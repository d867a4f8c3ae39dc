"""The weights to evaluate with: their values against a plain loop, and the exchange."""

from __future__ import annotations

import copy

import pytest
import torch

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, gradient, pairs, refuses, set_gradients
from tests.harness.tables import mostly_long

pytestmark = ANY_WEIGHTS
STEPS = 6
CONDITIONS = {
    "row": [row for row in ROWS if not row.rule().has_eval_weight],
    "decay": (0.0, 0.9, 1.0),
    "start": (0, 2, 10),
    "backend": ("auto", "rule"),
    "dtype": (torch.float64, torch.float32, torch.bfloat16),
}
WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def averages(weights, decay, start):
    """The average after each of the weights that a run leaves, from its definition."""
    a = None
    for t, w in enumerate(weights, 1):
        counted = t - start
        if counted <= 1:
            a = w
        else:
            d = (counted - 1) / counted if decay == 1 else decay
            a = d * a + (1 - d) * w
        yield a


@pytest.mark.parametrize(
    "case",
    mostly_long(pairs(CONDITIONS), kept=30),
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_any_recipe_steps_as_before_and_reads_out_its_average(case):
    row, dtype = case["row"], case["dtype"]
    settings = {**row.settings, "backend": case["backend"]}
    plain = row.parameters(dtype)
    ours = [w.detach().clone().requires_grad_() for w in plain]
    average = {"decay": case["decay"], "start": case["start"]}
    averaged = sn.torch_optimizer(sn.wrappers.averaged(row.recipe))(ours, **settings, **average)
    alone = row.cls(plain, **settings)
    generator, seen = torch.Generator().manual_seed(0), []
    for step in range(STEPS):
        for weight, other in zip(plain, ours, strict=True):
            weight.grad = gradient("random", weight.detach(), generator, step)
            other.grad = weight.grad.clone()
        alone.step()
        averaged.step()
        for weight, other in zip(plain, ours, strict=True):
            torch.testing.assert_close(other, weight, rtol=1e-12, atol=1e-12)
        seen.append([w.detach().double() for w in ours])
        trained = [w.detach().clone() for w in ours]
        with averaged.evaluating():
            read = [w.detach().double() for w in ours]
        assert all(map(torch.equal, trained, ours))
        for weights, value in zip(zip(*seen, strict=True), read, strict=True):
            *_, expected = averages(weights, case["decay"], case["start"])
            size = max(w.abs().max().item() for w in weights)
            assert (value - expected).abs().max() <= WITHIN[dtype] * size


def made(recipe="averaged(adamw)", **settings):
    weights = [torch.ones(3, 2, requires_grad=True), torch.ones(4, requires_grad=True)]
    return weights, sn.torch_optimizer(recipe)(weights, **settings)


def stepped(weights, optimizer, steps=3):
    for step in range(steps):
        set_gradients(weights, step)
        optimizer.step()


def test_what_is_wrong_while_one_evaluates_is_refused_and_changes_nothing():
    weights, optimizer = made(lr=0.1)
    stepped(weights, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.eval()
    averages = [w.detach().clone() for w in weights]
    wrong = {
        "step()": optimizer.step,
        "state_dict()": optimizer.state_dict,
        "load_state_dict()": lambda: optimizer.load_state_dict(saved),
        "eval()": optimizer.eval,
        "copying": lambda: copy.deepcopy(optimizer),
    }
    for name, call in wrong.items():
        with refuses(name, "train()", "AveragedAdamw", by=RuntimeError):
            call()
        assert all(map(torch.equal, weights, averages))
    optimizer.train()
    assert str(optimizer.state_dict()) == str(saved)
    optimizer.train()  # nothing
    stepped(weights, optimizer, 1)


def test_an_error_while_one_evaluates_leaves_the_trained_weights():
    weights, optimizer = made(lr=0.1)
    stepped(weights, optimizer)
    trained = [w.detach().clone() for w in weights]
    seen = []

    def fail():
        with optimizer.evaluating():
            seen.append(weights[0].detach().clone())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not torch.equal(seen[0], trained[0])
    assert all(map(torch.equal, weights, trained))


def test_a_write_to_a_weight_that_is_lost_is_told():
    weights, optimizer = made(lr=0.1)
    stepped(weights, optimizer)
    trained = weights[0].detach().clone()
    optimizer.eval()
    with torch.no_grad():
        weights[0].zero_()
    with pytest.warns(UserWarning, match="1 weights"):
        optimizer.train()
    assert torch.equal(weights[0], trained)


def test_a_recipe_without_another_weight_to_evaluate_with_is_always_in_training():
    weights, optimizer = made("adamp")
    stepped(weights, optimizer)
    before = [w.detach().clone() for w in weights]
    optimizer.eval()
    optimizer.eval()
    assert all(map(torch.equal, weights, before))
    optimizer.state_dict()
    stepped(weights, optimizer, 1)


def test_weights_without_a_step_and_groups_of_other_recipes_stay_as_they_are():
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    plain = torch.ones(2, requires_grad=True)
    groups = [{"params": [first, second]}, {"params": [plain], "recipe": "sgd", "lr": 0.5}]
    optimizer = sn.torch_optimizer("averaged(adamw)")(groups, lr=0.1)
    for _ in range(3):
        first.grad = plain.grad = torch.ones(2)
        optimizer.step()
    before = [x.detach().clone() for x in (first, second, plain)]
    with optimizer.evaluating():
        same = [torch.equal(x, y) for x, y in zip((first, second, plain), before, strict=True)]
    assert same == [False, True, True]


def test_an_average_goes_on_from_a_checkpoint(tmp_path):
    weights, optimizer = made(lr=0.1)
    stepped(weights, optimizer)
    torch.save((weights, optimizer.state_dict()), tmp_path / "run.pt")
    loaded, saved = torch.load(tmp_path / "run.pt")
    loaded = [w.requires_grad_() for w in loaded]
    again = type(optimizer)(loaded, lr=0.1)
    again.load_state_dict(saved)
    for each in ((weights, optimizer), (loaded, again)):
        stepped(*each, 2)
    with optimizer.evaluating(), again.evaluating():
        assert all(map(torch.equal, weights, loaded))


@pytest.mark.parametrize("outer", ["hyperball", "rotational", "radial_brake", "averaged"])
@pytest.mark.parametrize("inner", ["schedulefree_sgd", "averaged(sgd)"])
def test_a_wrapper_around_a_weight_of_its_own_is_refused(outer, inner):
    """Its steps would not reach the weight that the recipe within reads out."""
    if outer == "averaged":
        remedy = "leave averaged(...) out"
    elif inner == "averaged(sgd)":
        remedy = f"averaged({outer}(...))"
    else:
        remedy = "adamw"
    with refuses(outer, remedy):
        sn.torch_optimizer(f"{outer}({inner})")([torch.ones(3, 2)])


def test_a_schedule_that_switches_a_rule_leaves_the_average():
    weight, after = torch.randn(3, dtype=torch.float64), []
    given = {"lr": 0.5, "momentum": 0.9, "decay": 1}
    optimizer = sn.torch_optimizer("averaged(sgd)")([weight], **given)
    for _ in range(4):
        weight.grad = torch.randn(3, dtype=torch.float64)
        optimizer.step()
        after.append(weight.clone())
    optimizer.param_groups[0]["momentum"] = 0.0  # a rule with a state less
    with optimizer.evaluating():
        torch.testing.assert_close(weight, torch.stack(after).mean(0), rtol=0, atol=1e-14)


def make_net():
    """A network with a normalization, whose statistics an average needs anew."""
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)
    )


def batches():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, generator=generator)
    return list(zip(x, torch.randint(3, (32,), generator=generator), strict=True))


def test_lightning_evaluates_an_average_in_its_callbacks(tmp_path):
    lightning = pytest.importorskip("lightning", reason="of the extra integrations")

    class EvaluateAverages(lightning.Callback):
        def on_validation_start(self, trainer, module):
            for optimizer in trainer.optimizers:
                optimizer.eval()
            module.evaluated.append(module.net[0].weight.detach().clone())

        def on_validation_end(self, trainer, module):
            for optimizer in trainer.optimizers:
                optimizer.train()
            module.trained.append(module.net[0].weight.detach().clone())

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.evaluated, self.trained = make_net(), [], []

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        validation_step = training_step

        def configure_optimizers(self):
            return sn.torch_optimizer("averaged(adamp)", "Averaged")(self.net.parameters(), lr=0.1)

    net, loader = Net(), torch.utils.data.DataLoader(batches(), batch_size=16)
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "default_root_dir": tmp_path, "max_epochs": 2}
    trainer = lightning.Trainer(callbacks=[EvaluateAverages()], **options)
    trainer.fit(net, loader, loader)
    assert len(net.evaluated) == 3  # the sanity check, whose weights no step has moved, and epochs
    is_average = [not torch.equal(*pair) for pair in zip(net.evaluated, net.trained, strict=True)]
    assert is_average == [False, True, True]


def test_the_trainer_evaluates_an_average_and_saves_the_trained_weights(tmp_path):
    transformers = pytest.importorskip("transformers", reason="of the extra integrations")

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_net()

        def forward(self, x, labels):
            logits = self.net(x)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            return {"loss": loss, "logits": logits}

    class TrainAgain(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, optimizer=None, **rest):
            sn.optim.unwrap(optimizer).train()

    rows = [{"x": x, "labels": y} for x, y in batches()]
    trainer = transformers.Trainer(
        model=Wrapped(),
        args=transformers.TrainingArguments(
            output_dir=tmp_path, max_steps=4, eval_strategy="steps", eval_steps=2, save_steps=2,
            per_device_train_batch_size=16, use_cpu=True, report_to=[], disable_tqdm=True,
        ),
        train_dataset=rows,
        eval_dataset=rows,
        optimizer_cls_and_kwargs=(
            sn.torch_optimizer("averaged(adamp)", "Averaged"), {"lr": 1e-2}
        ),
        callbacks=[TrainAgain()],
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 4
    assert (tmp_path / "checkpoint-4" / "optimizer.pt").exists()
