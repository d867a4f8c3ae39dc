"""The language task: perplexity, resumed runs, and WikiText-103's path on a miniature."""

import math

import pytest
import torch
from running import run_of

from spherenorm_experiments.core import Spec, find_task, seed_everything
from spherenorm_experiments.engine import Training
from spherenorm_experiments.paper.language.wikitext import LAYOUT
from spherenorm_experiments.paper.shared.layout import FOLDER

TINY = {"layers": 1, "width": 8, "heads": 2, "inner": 8, "segment": 12, "memory": 6}


def test_perplexity_is_that_of_a_plain_loop_over_the_text():
    task = find_task("language", TINY)
    seed_everything(0)
    model = task.model().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    (windows,) = task.data().test
    windows = torch.cat([windows[:3], windows[-2:]])
    shares = [task.evaluate(model, (part,)) for part in windows.split(2)]
    found = {
        name: share.value([each[name].state for each in shares])
        for name, share in shares[0].items()
    }
    losses = []
    for window in windows:
        _, past = model.read(window[None, :6])
        output, _ = model.read(window[None, 6:-1].clamp(min=0), past)
        dense = model.tokens.log_probabilities(output)[0].detach()
        losses += [-float(dense[i, t]) for i, t in enumerate(window[7:].tolist()) if t >= 0]
    assert len(losses) < windows[:, 7:].numel()  # the text ends within the last segment
    perplexity = math.exp(sum(losses) / len(losses))
    assert found["perplexity"] == pytest.approx(perplexity, rel=1e-6)
    assert found["minus perplexity"] == -found["perplexity"]
    assert found["bits per token"] == pytest.approx(math.log2(perplexity), abs=1e-6)


def test_a_hopeless_model_has_the_lowest_score_not_an_infinite_one():
    task = find_task("language", TINY)
    model = task.model()
    with torch.no_grad():
        model.tokens.bias[1] = 1e4
        (windows,) = task.data().test
        found = task.evaluate(model, (windows[:2],))["minus perplexity"]
    assert -math.inf < found.value([found.state]) < -1e100


def test_every_token_of_the_validation_text_is_scored_once():
    task = find_task("language", TINY)
    (train,), (windows,), _ = task.data()
    assert (windows[:, 7:] >= 0).sum() == 8_000 - 1
    assert (train >= 0).all()


@pytest.fixture
def miniature(tmp_path, monkeypatch):
    """WikiText-103's layout with 40 lines; its vocabulary has the words 0 to 99."""
    random = torch.Generator().manual_seed(0)
    folder = tmp_path / LAYOUT.name
    folder.mkdir()
    for part, lines in (("train", 40), ("valid", 12), ("test", 12)):
        words = torch.randint(100, (lines, 20), generator=random).tolist()
        text = "".join(f" {' '.join(map(str, line))} \n" for line in words)
        (folder / f"wiki.{part}.tokens").write_text(text)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return folder


@pytest.mark.parametrize("weight_norm", [False, True])
def test_the_full_widths_take_two_steps_on_a_miniature(miniature, weight_norm):
    """Two of the 16 layers, and short segments: what is left out only repeats."""
    sizes = {"layers": 2, "width": 410, "heads": 10, "inner": 2100, "dropout": 0.1}
    options = {**sizes, "data_set": "wikitext-103", "segment": 20, "memory": 20}
    options["weight_norm"] = weight_norm
    spec = Spec("language", "adamp", {"lr": 2.5e-4}, options, epochs=1, batch_size=2)
    task = find_task("language", options)
    run = run_of(spec)
    training = Training(run, task)
    before = [weight.detach().clone() for weight in training.module.parameters()]
    for step in range(2):
        record, _ = training.step(step)
        assert record is not None
        assert math.isfinite(record["loss"])
    assert all(
        not torch.equal(a, b) for a, b in zip(before, training.module.parameters(), strict=True)
    )
    views = {view for name, view in training.watched.views.items() if "layers" in name}
    assert views == ({"channel"} if weight_norm else {None})
    assert training.metrics(run.splits.validation)["perplexity"] > 1


def test_wikitext_103_needs_its_folder(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match="WikiText-103 lies on disk"):
        find_task("language", {"data_set": "wikitext-103"}).data()
