"""Metrics over batches are those of the whole split, however it is divided."""

import math

import numpy as np
import pytest
import torch
from running import run_of
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from spherenorm_pictures import picture_spec, recall_at_1

from spherenorm_experiments.core import Mean, Sums
from spherenorm_experiments.engine import Training


@pytest.mark.parametrize("workers", [0, 1])
def test_metrics_of_a_run_are_the_libraries(workers):
    run = run_of(picture_spec())
    training = Training(run, run.task, workers=workers)
    found = training.metrics(run.splits.test)
    x, y = run.splits.test.x, run.splits.test.labels
    with torch.no_grad():
        logits = training.module.eval()(x)
    one = (y == 1).numpy()
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == pytest.approx(100 * (logits.argmax(1) == y).double().mean().item())
    entropy = torch.nn.functional.cross_entropy(logits, y).item()
    assert found["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-6)
    assert found["f1"] == pytest.approx(f1_score(one, (logits.argmax(1) == 1).numpy()))
    assert found["auc"] == pytest.approx(roc_auc_score(one, logits[:, 1]))
    assert found["ap"] == pytest.approx(average_precision_score(one, logits[:, 1]))
    assert found["recall@1"] == pytest.approx(recall_at_1(logits, y).item())
    assert found["boxes"] == len(y)
    assert found["attacked"] <= found["accuracy"]
    assert found == training.metrics(run.splits.test)  # the attack's noise has its own keys


def test_sums_and_means_add_up_by_items_and_not_by_batches():
    values = torch.arange(10.0)
    shares = [Mean(values[:7]), Mean(values[7:])]
    assert shares[0].value([share.state for share in shares]) == pytest.approx(4.5)
    ratio = [Sums(lambda a, b: a / b, x, x + 1) for x in (values[:2], values[2:])]
    assert ratio[1].value([share.state for share in ratio]) == pytest.approx(45 / 55)
    assert np.isnan(Mean(values[:0]).value([Mean(values[:0]).state]))


def test_a_perplexity_that_is_too_large_is_infinite():
    """`math.exp` would raise, and a run that diverges would have failed."""
    share = Mean(torch.tensor([1e3]), then=math.exp)
    assert share.value([share.state]) == math.inf
