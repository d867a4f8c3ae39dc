"""The classification networks: parameters and operations as published, and what the audit finds."""

from typing import get_args

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spherenorm import audit
from spherenorm_experiments.paper.imagenet.classification import Name
from spherenorm_experiments.paper.imagenet.networks import (
    FULL,
    SCALES,
    SMALL,
    divisible,
)
from spherenorm_experiments.paper.shared.layers import StochasticDepth
from spherenorm_experiments.paper.shared.resnet import ResNet

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


@pytest.mark.parametrize(
    ("name", "share"), [("resnet18", 95.5), pytest.param("resnet50", 91.8, marks=pytest.mark.long)]
)
def test_the_audit_finds_the_papers_share_of_scale_invariant_parameters(name, share):
    torch.manual_seed(0)
    found = audit(FULL[name](), torch.randn(8, 3, 32, 32), views=("channel",))
    assert [finding.name for finding in found if finding.view is None] == ["head.3.weight"]
    assert round(100 * found.share, 1) == share


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenetv2", "efficientnet-b3",
                                  "rexnet-1.3"])  # fmt: skip
def test_every_convolution_of_a_small_network_before_a_normalization_is_invariant(name):
    torch.manual_seed(0)
    network = SMALL[name](classes=10)
    assert 2_000 < size(network) < 60_000
    views = {finding.name: finding.view for finding in audit(network, torch.randn(16, 3, 12, 12))}
    convolutions = [n for n, m in network.named_modules() if isinstance(m, nn.Conv2d)]
    gates = [n for n in convolutions if ".gate." in n]
    free = gates if name.startswith("eff") else [n for n in gates if n.endswith("gate.4")]
    expected = {f"{n}.weight": None if n in free else "channel" for n in convolutions}
    assert views == {**expected, "head.3.weight": None}


def test_small_networks_keep_the_side_in_the_stem_and_grow_as_the_large_ones_do():
    assert set(SMALL) == set(FULL)
    assert SMALL["rexnet-1.0"]().layers[0](torch.zeros(1, 3, 12, 12)).shape[2:] == (12, 12)
    small = ResNet("bottleneck", (1, 1), 4, "small", 10)
    assert [x.shape[1:] for x in small.maps(torch.zeros(1, 3, 16, 16))] == [
        (16, 16, 16),
        (32, 8, 8),
    ]
    sizes = [size(SMALL[f"efficientnet-{scale}"]()) for scale in SCALES]
    assert sizes == sorted(set(sizes))


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


def test_a_dropped_block_leaves_its_input():
    torch.manual_seed(0)
    network = ResNet("basic", (2,), 4, "small", 10, stochastic_depth=1.0).train()
    stage, x = network.stages[0], torch.rand(3, 4, 8, 8)
    assert stage[1].drop.rate == 1.0
    stage[1].drop.rate = 1 - 1e-9
    torch.testing.assert_close(stage[1](x), x)


def test_channels_are_rounded_to_multiples_of_eight_but_never_by_more_than_a_tenth():
    assert [divisible(32 * width) for width in (0.35, 0.75, 1.0, 1.1, 1.2)] == [16, 24, 32, 32, 40]
    assert all(divisible(x) % 8 == 0 and divisible(x) >= 0.9 * x for x in range(1, 400))
