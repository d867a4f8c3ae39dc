"""Language: Transformer-XL and perplexity against plain loops, and the windows on a text."""

import copy
import math

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from spherenorm_experiments.lookup import FOLDER, find_task
from spherenorm_experiments.task import seed_everything
from spherenorm_paper.language.language import corpus, windows
from spherenorm_paper.language.transformer_xl import (
    AdaptiveVocabulary,
    Projection,
    TransformerXL,
    sinusoids,
)

WT103 = {"vocabulary": 267735, "cutoffs": (20000, 40000, 200000)}


def small(**options):
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 8, "heads": 2, "inner": 12, "cutoffs": (5, 9), "dropout": 0.0}
    model = TransformerXL(14, **{**sizes, "memory": 6, **options}).double()
    for weight in model.parameters():  # initial weights of 0.02 would hide most mistakes
        torch.nn.init.normal_(weight, std=0.5)
    return model


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def test_the_base_model_has_the_published_count():
    with torch.device("meta"):
        model = TransformerXL(**WT103)
    assert count(model) == 151_107_538
    assert count(model.layers) == 41_066_400


def test_attention_equals_a_loop_over_queries_keys_and_heads():
    model = small()
    layer, (u, v) = model.layers[0], (model.content_bias, model.position_bias)
    x, context = torch.randn(1, 3, 8).double(), torch.randn(1, 5, 8).double()
    context = torch.cat([context[:, :2], x], dim=1)
    found = layer.attend(x, context, sinusoids(5, 8).double(), u, v)
    key_value = layer.key_value.weight
    for i in range(3):
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            q = layer.query.weight[part] @ x[0, i]
            scores, values = [], []
            for j in range(2 + i + 1):
                distance = 2 + i - j
                angles = [distance * 10000 ** -(c / 8) for c in range(0, 8, 2)]
                waves = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                r = layer.position.weight[part] @ torch.tensor(waves).double()
                k = key_value[part] @ context[0, j]
                scores.append(((q + u[head]) @ k + (q + v[head]) @ r) / 2)
                values.append(key_value[8:][part] @ context[0, j])
            expected = torch.stack(scores).softmax(0) @ torch.stack(values)
            torch.testing.assert_close(found[0, i, part], expected, atol=1e-6, rtol=1e-6)


def test_segments_with_memory_equal_one_long_segment():
    model = small(memory=32).eval()
    text = torch.randint(14, (2, 12))
    whole, _ = model.forward_segment(text)
    past, parts = [], []
    for segment in text.split(5, dim=1):
        output, past = model.forward_segment(segment, past)
        parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-12, rtol=1e-12)


def test_a_window_is_its_segment_after_its_context():
    model = small().eval()
    windows = torch.randint(14, (3, 6 + 4 + 1))
    windows[2, 9:] = -1
    losses = model(windows)
    _, past = model.forward_segment(windows[:2, :6])
    output, _ = model.forward_segment(windows[:2, 6:10], past)
    shares = dense(model.tokens, output)
    expected = -shares.log().gather(-1, windows[:2, 7:, None])[..., 0]
    torch.testing.assert_close(losses[:2], expected, atol=1e-12, rtol=1e-12)
    assert (losses[2] != 0).tolist() == [True, True, False, False]


TINY = {"layers": 1, "width": 8, "heads": 2, "inner": 8, "segment": 12, "memory": 6}
TWO = {**TINY, "layers": 2, "memory": 12}
"""With one layer, the states of a segment are those of its context."""


def test_a_recurrent_model_trains_on_with_the_states_of_the_step_before():
    """The order of the task makes rows of text; a loop over them carries the memory itself."""
    task = find_task("language", {**TWO, "recurrent": True})
    (windows,) = task.data().train
    order = task.order(len(windows), 4, torch.Generator())
    assert sorted(order.tolist()) == list(range(len(windows)))
    steps = len(windows) // 4
    seed_everything(0)
    model = task.model().double()
    past = None
    for step, places in enumerate(order.split(4)[:5]):
        assert places.tolist() == [row * steps + step for row in range(4)]
        batch = windows[places]
        found = task.loss(model, (batch,))
        with torch.no_grad():
            past = model.forward_segment(batch[:, :12])[1] if past is None else past
            output, past = model.forward_segment(batch[:, 12:-1], past)
            expected = model.tokens.losses(output, batch[:, 13:]).mean()
        torch.testing.assert_close(found.detach(), expected, atol=1e-12, rtol=1e-12)
    following = windows[order[20:24]]
    plain = find_task("language", TWO).model().double()
    plain.load_state_dict(model.state_dict())
    aside, beside = (task.evaluate(each.eval(), (following,)) for each in (model, plain))
    assert aside["perplexity"].state == beside["perplexity"].state
    again = copy.deepcopy(model).train()
    assert task.loss(again, (following,)) != plain(following).mean()
    model.train().recent_tokens = None  # as of other text: the context is read anew
    anew = task.loss(model, (following,))
    torch.testing.assert_close(anew, plain(following).mean(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("cutoffs", [(), (4,), (3, 7, 12)])
def test_adaptive_softmax_equals_the_dense_product_of_probabilities(cutoffs):
    torch.manual_seed(1)
    vocabulary = AdaptiveVocabulary(15, 6, cutoffs).double()
    for weight in vocabulary.parameters():
        torch.nn.init.normal_(weight)
    hidden, targets = torch.randn(4, 5, 6).double(), torch.randint(-1, 15, (4, 5))
    shares = dense(vocabulary, hidden)
    torch.testing.assert_close(shares.sum(-1), torch.ones(4, 5).double())
    expected = -shares.log().gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    expected = expected.masked_fill(targets < 0, 0.0)
    torch.testing.assert_close(vocabulary.losses(hidden, targets), expected)


def dense(vocabulary, hidden):
    """The probability of each token: that of its cluster, times that within it."""
    ends = [stop for _, stop in vocabulary.spans]
    logits = (hidden @ vocabulary.table.T + vocabulary.bias).exp()
    first = logits[..., : ends[0]]
    clusters = vocabulary.clusters(hidden).exp() if ends[1:] else hidden[..., :0]
    below = first.sum(-1, keepdim=True) + clusters.sum(-1, keepdim=True)
    parts = [first / below]
    for number, (start, stop) in enumerate(vocabulary.spans[1:]):
        own = logits[..., start:stop]
        parts.append(clusters[..., number, None] / below * own / own.sum(-1, keepdim=True))
    return torch.cat(parts, dim=-1)


def test_weight_normalization_is_torchs():
    torch.manual_seed(0)
    ours = Projection(5, 4, weight_norm=True)
    torch.nn.init.normal_(ours.weight)
    torch.nn.init.uniform_(ours.gain)
    theirs = torch.nn.Linear(5, 4)
    theirs.load_state_dict({"weight": ours.weight.data, "bias": ours.bias.data})
    theirs = weight_norm(theirs)
    theirs.parametrizations.weight.original0.data = ours.gain.data[:, None]
    x = torch.randn(3, 5)
    torch.testing.assert_close(ours(x), theirs(x))


def test_perplexity_is_that_of_all_tokens_of_the_text():
    task = find_task("language", TINY)
    seed_everything(0)
    model = task.model().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    (windows,) = task.data().test
    windows = torch.cat([windows[:3], windows[-2:]])
    scored = windows[:, 7:] >= 0
    assert not scored.all()  # the text ends within the last segment
    mean = float(model(windows)[scored].mean().detach())
    shares = [task.evaluate(model, (part,)) for part in windows.split(2)]
    found = {n: share.value([each[n].state for each in shares]) for n, share in shares[0].items()}
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-6)
    assert found["minus perplexity"] == -found["perplexity"]
    assert found["bits per token"] == pytest.approx(mean / math.log(2), abs=1e-6)


LINES = " \n = Title = \n \n the cat and the dog \n"


def test_tokens_are_numbered_by_frequency_and_lines_end(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "wikitext-103").mkdir()
    for part, text in (("train", LINES), ("valid", " the dog \n"), ("test", " cat \n")):
        (tmp_path / "wikitext-103" / f"wiki.{part}.tokens").write_text(text)
    count, tokens = corpus()
    assert count == 7  # <eos>, the, =, Title, cat, and, dog; ties in the order of the text
    assert tokens["train"].tolist() == [0, 1, 3, 1, 0, 0, 2, 4, 5, 2, 6, 0]
    assert tokens["valid"].tolist() == [2, 6, 0]
    assert tokens["train"].dtype == torch.int32


@pytest.mark.parametrize("count", [2, 9, 10, 11, 12])
def test_windows_score_each_token_once_after_those_before_it(count):
    tokens = torch.arange(100, 100 + count, dtype=torch.int32)
    scored = []
    for window in windows(tokens, 4, 3, complete=False):
        assert len(window) == 4 + 3 + 1
        for place in range(5, 8):
            if window[place] >= 0:
                target = int(window[place])
                before = [0] * 8 + list(range(100, target))
                assert window[:place].tolist() == before[-place:]
                scored.append(target)
    assert scored == list(range(101, 100 + count))
