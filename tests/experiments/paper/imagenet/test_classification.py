"""Image classification: networks as published, CutMix, Tables 2, D.2 and D.3."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from spherenorm_experiments.claims import AGAINST, FOR
from spherenorm_experiments.comparing import find_study
from spherenorm_experiments.lookup import find_task
from spherenorm_experiments.paper.adversarial.adversarial import WideResNet
from spherenorm_experiments.paper.imagenet.classification import GLYPHS, Name
from spherenorm_experiments.paper.imagenet.networks import FULL, divisible
from spherenorm_experiments.paper.shared.augmentation import cutmix
from spherenorm_experiments.paper.shared.layers import StochasticDepth
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from tests.experiments.fabricated import result
from tests.harness import refuses


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


def real_trials(name):
    return find_study(name).trials(Plan("full", real=True), Runs())


def results_of(name, score):
    """Runs with a score for each setting, optimizer and seed: made, not run."""
    items = []
    for trial in real_trials(name):
        value = score(*trial.place, trial.spec.seed)
        spec = replace(trial.spec, probes=())  # no records to be read
        items.append(result(trial.place, 0, spec, test=value, validation=value))
    return Runs(items)


def verdict(name, text, score):
    claims = find_study(name).decided(results_of(name, score))
    (claim,) = (claim for claim in claims if claim.claim.text.startswith(text))
    return claim.verdict


def noise(seed):
    return 0.1 * (seed % 3)


def test_the_papers_runs_of_table_2_have_its_settings():
    specs = {(t.place.condition, t.spec.recipe): t.spec for t in real_trials("t2")}
    assert len(specs) == 20
    decays = {recipe: specs["ResNet-50", recipe].hyper_parameters for _, recipe in specs}
    assert {recipe: given["weight_decay"] for recipe, given in decays.items()} == {
        "sgd": 1e-4, "sgdp": 1e-5, "adam": 1e-4, "adamw": 1e-4, "adamp": 1e-6
    }  # fmt: skip
    assert decays["sgd"] == {"momentum": 0.9, "nesterov": True, "lr": 0.1, "weight_decay": 1e-4}
    assert decays["adamp"]["lr"] == 1e-3
    for trial in find_study("t2").trials(Plan("full"), Runs()):  # ten times on embedded data
        ours = trial.spec.hyper_parameters["weight_decay"]
        assert ours == pytest.approx(10 * decays[trial.spec.recipe]["weight_decay"])
    mobile, mixed = specs["MobileNetV2", "sgd"], specs["ResNet-50 + CutMix", "sgd"]
    assert (mobile.epochs, mobile.batch_size, mobile.options["label_smoothing"]) == (150, 1024, 0.1)
    assert (mixed.epochs, mixed.batch_size, mixed.options["cutmix"]) == (150, 256, 1.0)
    plain = specs["ResNet-18", "sgd"]
    assert (plain.epochs, plain.batch_size, plain.schedule) == (100, 256, "cosine")
    assert {spec.options["data_set"] for spec in specs.values()} == {"imagenet"}
    assert not any(spec.regime.warmup for spec in specs.values())


def test_every_batch_of_table_d3_has_micro_batches_of_one_size():
    for plan, size in ((Plan("small", real=True), 256), (Plan("full"), 32)):
        specs = [trial.spec for trial in find_study("d3").trials(plan, Runs())]
        assert len({spec.batch_size for spec in specs}) == 3
        assert {spec.batch_size / spec.regime.micro_batches for spec in specs} == {size}
        assert len({spec.epochs for spec in specs} - {3, 100}) == 0


def test_table_d2_has_the_techniques_of_its_title():
    for trial in find_study("d2").trials(Plan("full"), Runs()):
        options = trial.spec.options
        assert options["augmentation"] == "randaugment"
        assert options["dropout"] == options["stochastic_depth"] == 0.2
    assert {t.spec.options["network"] for t in real_trials("d2")} == {
        *(f"efficientnet-b{scale}" for scale in range(4)), "rexnet-1.0", "rexnet-1.3"
    }  # fmt: skip


@pytest.mark.parametrize(("sign", "found"), [(1, FOR), (-1, AGAINST)])
def test_the_claims_about_large_batches_go_either_way(sign, found):
    place = {"batch 32": 0, "batch 96": 1, "batch 288": 2}

    def gains(setting, arm, seed):
        step = place[setting] * (arm == "AdamP")
        return 80 + 3 * sign * step + noise(seed + step)

    def losses(setting, arm, seed):
        return 80 - 5 * sign * place[setting] + noise(seed + place[setting])

    text = "AdamP's gain in accuracy is larger at batch 288 than at batch 32"
    assert verdict("d3", text, gains) in found
    assert verdict("d3", "AdamW's accuracy falls from batch 32 to batch 288", losses) in found
