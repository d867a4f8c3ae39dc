"""Image classification: data, networks of both sizes, CutMix, a full-size network that steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import find_task
from spherenorm_experiments.paper.imagenet.classification import GLYPHS
from spherenorm_experiments.paper.shared.augmentation import cutmix
from spherenorm_experiments.paper.shared.layers import StochasticDepth


def task_of(**options):
    return find_task("classification", options)


def test_dropout_and_stochastic_depth_reach_the_network():
    network = task_of(network="rexnet-1.0", dropout=0.35, stochastic_depth=0.25).model()
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.35]
    rates = [m.rate for m in network.modules() if isinstance(m, StochasticDepth)]
    assert (rates[0], rates[-1]) == (0.0, 0.25)
    with torch.device("meta"):
        usual = task_of(network="efficientnet-b3", data_set="imagenet").model()
    assert [m.p for m in usual.modules() if isinstance(m, nn.Dropout)] == [0.3]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_cutmix_mixes_all_batches_or_none(share):
    task = task_of(cutmix=share)
    torch.manual_seed(0)
    model, batch = task.model(), task.first_batch(task.data().train, 16)
    torch.manual_seed(1)
    found = task.loss(model, batch)
    torch.manual_seed(1)
    images, labels = batch
    targets = F.one_hot(labels, len(GLYPHS)).float()
    if share:
        torch.rand(())
        images, targets = cutmix(images, targets)
    expected = -(targets * model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(found, expected)
