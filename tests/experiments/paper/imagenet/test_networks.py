"""The classification networks: parameters and operations as published, and what the audit finds."""

from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from spherenorm_experiments.paper.adversarial.wide_resnet import WideResNet
from spherenorm_experiments.paper.imagenet.classification import Name
from spherenorm_experiments.paper.imagenet.networks import (
    FULL,
    divisible,
)
from spherenorm_experiments.paper.shared.layers import StochasticDepth
from tests.harness import refuses

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


@pytest.mark.parametrize("name", get_args(Name))
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
def test_the_rate_of_stochastic_depth_rises_from_zero_to_the_last_block(name, last):
    with torch.device("meta"):
        network = FULL[name](stochastic_depth=0.2)
    rates = [m.rate for m in network.modules() if isinstance(m, StochasticDepth)]
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(last))
    steps = torch.tensor(rates).diff()
    assert torch.allclose(steps, steps.mean().expand_as(steps))


def test_channels_are_rounded_to_multiples_of_eight_but_never_by_more_than_a_tenth():
    assert [divisible(32 * width) for width in (0.35, 0.75, 1.0, 1.1, 1.2)] == [16, 24, 32, 32, 40]
    assert all(divisible(x) % 8 == 0 and divisible(x) >= 0.9 * x for x in range(1, 400))


def test_wide_residual_networks_have_the_published_parameters():
    with torch.device("meta"):
        assert size(WideResNet(34, 10)) == 46_160_474  # the paper's
        assert size(WideResNet(28, 10, classes=100)) == 36_536_884  # Zagoruyko and Komodakis
    with refuses("depth", 35):
        WideResNet(35)
