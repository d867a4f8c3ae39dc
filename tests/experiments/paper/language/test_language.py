"""The language task: perplexity, resumed runs, and WikiText-103's path on a miniature."""

import math

import pytest
import torch

from spherenorm_experiments.core import find_task, seed_everything

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
