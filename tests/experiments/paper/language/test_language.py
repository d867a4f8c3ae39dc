"""The language task: perplexity, resumed runs, and WikiText-103's path on a miniature."""

import math

import pytest
import torch

from spherenorm_experiments.core import find_task, seed_everything
from spherenorm_experiments.paper.language.t5 import FULL
from spherenorm_experiments.paper.language.texts import LAYOUT
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
        own = model.tokens.losses(output, window[None, 7:])[0].tolist()
        losses += [x for x, t in zip(own, window[7:].tolist(), strict=True) if t >= 0]
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


@pytest.mark.usefixtures("miniature")
def test_the_full_widths_have_a_gradient_on_a_miniature():
    """Two of the 16 layers, and short segments: what is left out only repeats."""
    full = {**FULL, "layers": 2, "segment": 20, "memory": 20, "weight_norm": True}
    task = find_task("language", full)
    model, data = task.model().train(), task.data()
    loss = task.loss(model, task.first_batch(data.train, 2))
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())
    with torch.no_grad():
        share = task.evaluate(model.eval(), task.first_batch(data.test, 2))["perplexity"]
    assert share.value([share.state]) > 1


def test_wikitext_103_needs_its_folder(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match="WikiText-103 lies on disk"):
        find_task("language", {"data_set": "wikitext-103"}).data()
