"""The byte model and its text, against plain loops; and the weights that take a run's recipe."""

import itertools
import math

import pytest
import torch
from running import run_of

import spherenorm as sn
from spherenorm_experiments import byte_model
from spherenorm_experiments.byte_model import ByteModel
from spherenorm_experiments.lookup import find_task
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.task import seed_everything
from spherenorm_experiments.train import Training

BYTES = "spherenorm_experiments.byte_model:ByteModel"
REST = {"recipe": "adam", "lr": 2.0**-5, "betas": [0.9, 0.95]}


@pytest.fixture
def task():
    return ByteModel(windows=24)


@pytest.fixture
def model(task):
    """With a head that is not 0."""
    seed_everything(0)
    model = task.model()
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.mark.parametrize("width", [16, 32, 64])
def test_a_model_has_the_parameters_of_its_docstring(width):
    model = ByteModel(width=width).model()
    count = sum(weight.numel() for weight in model.parameters())
    assert count == 12 * 2 * width**2 + (2 * 128 + 64) * width
    assert model(torch.zeros(3, 64, dtype=torch.uint8)).shape == (3, 64, 128)
    assert all(head.query.weight.shape == (width, width) for head in model.blocks)


def test_a_later_byte_changes_no_earlier_logits(task, model):
    read, _ = task.first_batch(task.data().train, 4)
    before = model(read)
    for place in (0, 17, 63):
        changed = read.clone()
        changed[:, place] = (changed[:, place] + 1) % 128
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place])
        assert ((after - before)[:, place:].abs().amax((0, 2)) > 1e-4).all()


def test_the_loss_is_that_of_a_plain_loop(task, model):
    read, targets = batch = task.first_batch(task.data().test, 3)
    logits = model(read).double().detach()
    losses = [
        math.log(sum(math.exp(x) for x in logits[i, j].tolist())) - float(logits[i, j, target])
        for i in range(3)
        for j, target in enumerate(targets[i].tolist())
    ]
    mean = sum(losses) / len(losses)
    assert task.loss(model, batch).item() == pytest.approx(mean, rel=1e-6)
    with torch.no_grad():
        shares = task.evaluate(model, batch)
    found = {name: share.value([share.state]) for name, share in shares.items()}
    assert found["minus loss"] == pytest.approx(-mean, rel=1e-6)
    assert found["bits per byte"] == pytest.approx(mean / math.log(2), rel=1e-6)


def test_a_model_starts_as_a_uniform_one(task):
    batch = task.first_batch(task.data().train, 8)
    assert math.isclose(ByteModel.uniform_loss, math.log(128))
    assert task.loss(task.model(), batch).item() == pytest.approx(ByteModel.uniform_loss, rel=1e-6)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of twenty files of their own bytes, and one in a folder that is left out."""
    for k in range(20):
        text = bytes([k, 200]) + b"".join(b"%d %d;" % (k, n) for n in range(40))
        (tmp_path / f"{k:02}.py").write_bytes(text)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "00.py").write_bytes(bytes([99]) * 300)
    monkeypatch.setattr(byte_model.sysconfig, "get_path", lambda _: str(tmp_path))
    caches = byte_model.source_text, byte_model.source_windows
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def test_each_part_has_files_of_its_own(library):
    kinds = {part: byte_model.source_text(part) for part in byte_model.PARTS}
    firsts = {
        part: {int(x) for x, after in itertools.pairwise(text) if after == 127}
        for part, text in kinds.items()
    }
    assert firsts == {"train": {*range(8), *range(10, 18)}, "validation": {8, 18}, "test": {9, 19}}
    whole = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))
    assert sum(map(len, kinds.values())) == len(whole)


def test_windows_are_of_the_text_with_the_byte_after_each_and_are_all_different(library):
    (library / "01.py").write_bytes((library / "00.py").read_bytes())  # a copy in one part
    (library / "08.py").write_bytes((library / "00.py").read_bytes())  # and one in another
    splits = byte_model.source_windows(200, 30, 8)
    for part, (read, targets) in zip(byte_model.PARTS, splits, strict=True):
        text = byte_model.source_text(part).numpy().tobytes()
        for window, after in zip(read, targets, strict=True):
            assert torch.equal(window[1:], after[:-1])
            assert window.numpy().tobytes() + bytes([after[-1]]) in text
    every = [window.numpy().tobytes() for read, _ in splits for window in read]
    assert len(set(every)) == len(every) == 260


def groups_of(spec):
    """The names, the recipe and the rate of each group of a run's optimizer."""
    training = Training(run_of(spec), find_task(spec.task, dict(spec.options)))
    names = {weight: name for name, weight in training.module.named_parameters()}
    optimizer = training.optimizer
    return [
        ({names[x] for x in group["params"]}, optimizer.rule_of(group), group["lr"])
        for group in optimizer.param_groups
    ]


def test_hidden_weights_take_the_recipe_and_the_others_the_rest():
    spec = Spec(BYTES, "muon", {"lr": 0.125}, {"windows": 8}, rest=REST, batch_size=8)
    (hidden, rule, lr), (others, rest, rest_lr) = groups_of(spec)
    assert others == {"bytes.weight", "places.weight", "head.weight"}
    assert hidden == {name for name, _ in ByteModel().model().named_parameters()} - others
    assert (lr, rest_lr) == (0.125, REST["lr"])
    assert rule == sn.bind("muon", lr=0.125).rule
    assert rest == sn.bind("adam", lr=REST["lr"], betas=(0.9, 0.95)).rule


def test_of_a_task_that_names_none_the_scale_invariant_weights_are_hidden():
    spec = Spec("digits", "adamw", {"lr": 0.125}, rest=REST)
    (hidden, _, _), (others, _, _) = groups_of(spec)
    assert len(hidden) == 3  # the convolutions
    assert all(name.endswith(".weight") for name in hidden)
    assert len(others) == 2 * 3 + 2  # gains and biases, and the last layer
    (every, _, _), *none = groups_of(Spec("digits", "adamw", {"lr": 0.125}))
    assert (every, none) == (hidden | others, [])
