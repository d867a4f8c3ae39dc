"""Image classification: networks as published, CutMix, Tables 2, D.2 and D.3."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.lookup import find_task
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.verdict import AGAINST, FOR
from spherenorm_paper.imagenet.classification import GLYPHS, Name
from spherenorm_paper.imagenet.networks import FULL, divisible
from spherenorm_paper.shared.augmentation import cutmix
from spherenorm_paper.shared.layers import StochasticDepth
from tests.experiments.fabricated import result
from tests.harness.tables import mostly_long


def task_of(**options):
    return find_task("classification", options)


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


PUBLISHED = {
    "resnet18": (224, 11_689_512, 1.814),
    "resnet50": (224, 25_557_032, 4.089),
    "mobilenetv2": (224, 3_504_872, 0.301),
    "efficientnet-b0": (224, 5_288_548, 0.386),
    "efficientnet-b1": (240, 7_794_184, 0.687),
    "efficientnet-b2": (288, 9_109_994, 1.088),
    "efficientnet-b3": (300, 12_233_232, 1.827),
    "rexnet-1.0": (224, 4_796_873, 0.40),
    "rexnet-1.3": (224, 7_557_091, 0.66),
}
"""The side of the image, parameters, and 1e9 multiplications: torchvision's metadata (B2 at its
side of 288) and, to two digits, ReXNet's paper."""


def size(network):
    return sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("name", mostly_long(get_args(Name), kept=3))
def test_a_full_network_has_the_published_parameters_and_operations(name):
    side, parameters, billions = PUBLISHED[name]
    with torch.device("meta"):
        network = FULL[name]().eval()
        assert size(network) == parameters
        with FlopCounterMode(display=False) as counter:
            assert network(torch.zeros(1, 3, side, side)).shape == (1, 1000)
    assert counter.get_total_flops() / 2e9 == pytest.approx(billions, rel=0.02)


def test_stochastic_depth_drops_whole_items_and_keeps_the_mean():
    torch.manual_seed(0)
    layer, x = StochasticDepth(0.25), torch.ones(4000, 2, 3, 3)
    found = layer(x).flatten(1)
    assert (found == found[:, :1]).all()
    kept = found[:, 0] > 0
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 4 / 3))
    assert found.mean().item() == pytest.approx(1.0, abs=0.04)  # four standard errors
    assert layer.eval()(x) is x


@pytest.mark.parametrize(
    ("name", "last"),
    [("resnet18", 0.2), ("mobilenetv2", 0.2), ("rexnet-1.0", 0.2), ("efficientnet-b0", 0.1875)],
)  # EfficientNet's reaches 0.2 behind the last of 16 blocks
def test_stochastic_depth_rises_to_the_last_block_and_dropout_is_in_the_head(name, last):
    with torch.device("meta"):
        network = task_of(
            network=name, data_set="imagenet", stochastic_depth=0.2, dropout=0.35
        ).model()
    rates = [m.rate for m in network.modules() if isinstance(m, StochasticDepth)]
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(last))
    steps = torch.tensor(rates).diff()
    assert torch.allclose(steps, steps.mean().expand_as(steps))
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.35]


def test_channels_are_rounded_to_multiples_of_eight_but_never_by_more_than_a_tenth():
    assert [divisible(32 * width) for width in (0.35, 0.75, 1.0, 1.1, 1.2)] == [16, 24, 32, 32, 40]
    assert all(divisible(x) % 8 == 0 and divisible(x) >= 0.9 * x for x in range(1, 400))


@pytest.mark.parametrize(("sign", "found"), [(1, FOR), (-1, AGAINST)])
def test_the_claims_about_large_batches_go_either_way(sign, found):
    step = {"batch 32": 0, "batch 96": 1, "batch 288": 2}
    items = []
    for trial in find_study("d3").trials(Plan("full", real=True), Runs()):
        batch, gains = step[trial.place.condition], trial.place.arm == "AdamP"
        score = 80 + sign * batch * (3 * gains - 5) + 0.1 * ((trial.spec.seed + batch) % 3)
        spec = replace(trial.spec, probes=())  # no records to be read
        items.append(result(trial.place, 0, spec, test=score, validation=score))
    decided = {
        each.claim.name: each.verdict for each in find_study("d3").decide_claims(Runs(items))
    }
    assert decided["gain-grows"] in found
    assert decided["adamw-falls"] in found
