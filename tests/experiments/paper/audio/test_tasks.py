"""Tags, keywords and events: metrics, chunks, the audit, and the paper's network on miniatures."""

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from spherenorm_experiments.core import find_task
from spherenorm_experiments.paper.audio.tasks import f1_of_items


def merged(task, model, *batches):
    """The metrics of some batches together."""
    shares = [task.evaluate(model, batch) for batch in batches]
    return {
        name: share.value([each[name].state for each in shares])
        for name, share in shares[0].items()
    }


def some_labels(labels, items=90):
    """Logits with ties, and labels that go with them somewhat."""
    random = torch.Generator().manual_seed(labels)
    logits = (4 * torch.randn(items, labels, generator=random)).round() / 4
    chance = torch.sigmoid(logits - 1 + torch.randn(items, labels, generator=random))
    return logits, (torch.rand(items, labels, generator=random) < chance).float()


def test_areas_are_those_of_scikit_learn_and_of_all_pairs():
    logits, tags = some_labels(7)
    batches = [(logits[a:b], tags[a:b]) for a, b in ((0, 40), (40, 80), (80, 90))]
    found = merged(find_task("tagging"), lambda x: x, *batches)
    scores = torch.sigmoid(logits)
    expected = roc_auc_score(tags, scores), average_precision_score(tags, scores)
    assert list(found) == ["ROC-AUC", "PR-AUC"]
    assert list(found.values()) == pytest.approx([100 * x for x in expected], abs=1e-6)
    pairs = [
        ((a > b).double() + 0.5 * (a == b).double()).mean().item()
        for k in range(7)
        for a in [scores[tags[:, k] == 1, k][:, None]]
        for b in [scores[tags[:, k] == 0, k][None]]
    ]
    assert found["ROC-AUC"] == pytest.approx(100 * sum(pairs) / 7, abs=1e-6)


def test_f1_is_the_mean_over_clips_of_the_events_above_a_tenth():
    logits, heard = some_labels(5)
    heard[3], logits[3] = 0, -9  # nothing heard, nothing told
    found = merged(find_task("events"), lambda x: x, (logits[:64], heard[:64]),
                   (logits[64:], heard[64:]))  # fmt: skip
    told = torch.sigmoid(logits) > 0.1
    expected = f1_score(heard, told, average="samples", zero_division=0)
    assert found == {"F1": pytest.approx(100 * expected, abs=1e-6)}
    assert f1_of_items(heard, told)[3] == 0


def test_scores_are_averaged_over_the_chunks_of_a_clip():
    chunks = torch.randn(6, 4, 10)  # each chunk's first numbers are its logits
    tags = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]]).float()
    found = merged(find_task("tagging"), lambda x: x[:, :3], (chunks, tags))
    mean = torch.sigmoid(chunks[..., :3]).mean(dim=1)
    assert found["ROC-AUC"] == pytest.approx(100 * roc_auc_score(tags, mean), abs=1e-6)
    words = torch.tensor([0, 1, 2, 0, 1, 2])
    found = merged(find_task("keywords"), lambda x: x[:, :3], (chunks, words))
    told = torch.softmax(chunks[..., :3], dim=-1).mean(dim=1).argmax(1)
    assert found["accuracy"] == pytest.approx(100 * (told == words).float().mean().item())
