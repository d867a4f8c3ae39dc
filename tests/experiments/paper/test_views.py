"""The audit finds in each network which weights its normalization makes scale-invariant."""

import re

import pytest
import torch

from spherenorm import audit
from spherenorm_experiments.lookup import find_task
from spherenorm_paper.adversarial.adversarial import WideResNet
from spherenorm_paper.detection.centernet import CenterNet
from spherenorm_paper.detection.ssd import SSD, Defaults
from spherenorm_paper.imagenet.networks import FULL, SMALL
from spherenorm_paper.language.transformer_xl import TransformerXL
from spherenorm_paper.retrieval.retrieval import Embedding
from spherenorm_paper.shared.resnet import ResNet

NONE = "(?!)"


BYTES = "spherenorm_experiments.byte_model:ByteModel"


def of_task(name, **options):
    def built():
        task = find_task(name, options)
        return task.model(), *task.audit_inputs()

    return built


def small(name):
    return lambda: (SMALL[name](classes=10), torch.randn(16, 3, 12, 12))


def embedding(**options):
    trunk = ResNet("basic", (1, 1), 4, stem="small", classes=3)
    return Embedding(trunk, 6, **options), torch.randn(16, 3, 8, 8)


def transformer(weight_norm):
    sizes = {"layers": 2, "width": 8, "heads": 2, "inner": 12, "cutoffs": (5, 9), "dropout": 0.0}
    model = TransformerXL(14, memory=6, weight_norm=weight_norm, **sizes).double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model, torch.randint(14, (8, 11))


# A network with inputs, and patterns of the weights that are invariant by channel and by layer.
ROWS = {
    # Only the sum of two convolutions of a block is normalized, not the second one.
    "wide-resnet": (
        lambda: (WideResNet(10, 2, stem=4, classes=3), torch.rand(16, 3, 8, 8)),
        r"stem|blocks\.\d\.conv1", NONE,
    ),
    # Units of a transposed convolution are on its second dimension.
    "centernet": (
        lambda: (CenterNet(2, ResNet("basic", (1, 1), 4, stem="small"), widths=(8,), head=4),
                 torch.randn(8, 3, 12, 12)),
        r"trunk.*|up\.0\.0", r"up\.0\.3",
    ),
    "ssd": (
        lambda: (SSD(2, ((4,), (4,)), 8, 1, (), Defaults((0.2, 0.45, 0.8), ((2,), ()))),
                 torch.randn(8, 3, 12, 12)),
        r"trunk\.\d\.0", NONE,
    ),
    "embedding": (lambda: embedding(bias=False), "trunk.*", "linear"),
    "embedding, bias": (lambda: embedding(bias=True), "trunk.*", NONE),
    "embedding, frozen": (lambda: embedding(frozen_statistics=True, bias=True), NONE, NONE),
    "transformer": (lambda: transformer(False), NONE, NONE),
    "transformer, weight norm": (lambda: transformer(True), r"layers\..*", NONE),
    "digits": (of_task("digits", variant="plain"), r"[012]\.0", NONE),
    "digits, residual": (of_task("digits", variant="residual"), r"(?!3).*", NONE),
    "bytes": (of_task(BYTES, windows=24), NONE, r"blocks\.\d\.(query|key)"),
    "debiasing, digits": (of_task("debiasing"), r"(?!.*head).*", NONE),
    "debiasing, stripes": (of_task("debiasing", data_set="stripes"), r"(?!.*head).*", NONE),
    "tagging": (of_task("tagging"), r"(?!head|.*filters).*", NONE),
    "events": (of_task("events"), r"(?!head|.*filters).*", NONE),
    "resnet50": (small("resnet50"), r"(?!head).*", NONE),
    "mobilenetv2": (small("mobilenetv2"), r"(?!head).*", NONE),
    "efficientnet": (small("efficientnet-b3"), r"(?!head|.*\.gate\.).*", NONE),
    "rexnet": (small("rexnet-1.3"), r"(?!head|.*gate\.4).*", NONE),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_audit_finds_what_normalization_makes_invariant(name):
    built, channel, layer = ROWS[name]
    torch.manual_seed(0)
    module, *inputs = built()
    found = {x.name: x.view for x in audit(module, *inputs, views=("channel", "layer"))}

    def expected(weight):
        stem = weight.removesuffix(".weight")
        by_channel, by_layer = (re.fullmatch(pattern, stem) for pattern in (channel, layer))
        return "channel" if by_channel else "layer" if by_layer else None

    assert found == {weight: expected(weight) for weight in found}
    matrices = {n for n, weight in module.named_parameters() if weight.ndim > 1}
    assert {weight for weight, view in found.items() if view} <= matrices <= {*found}


@pytest.mark.parametrize(
    ("name", "share"), [("resnet18", 95.5), pytest.param("resnet50", 91.8, marks=pytest.mark.long)]
)
def test_the_share_of_scale_invariant_parameters_is_the_papers(name, share):
    torch.manual_seed(0)
    found = audit(FULL[name](), torch.randn(8, 3, 32, 32), views=("channel",))
    assert round(100 * found.invariant_share, 1) == share
