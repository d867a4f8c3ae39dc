"""Table 2: image classification, five optimizers on MobileNetV2 and ResNets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.analysis import Claim, Results, performance, printed
from spherenorm_experiments.paper.imagenet._photographs import (
    ADAM_RATES,
    GLYPHS,
    SGD_RATES,
    WARM_UP,
    on_glyphs,
    on_imagenet,
)
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.study import Benchmark, Contender, Setting, arm_of

__all__ = ["T2"]

OPTIMIZERS = ("SGD", "SGDP", "Adam", "AdamW", "AdamP")
NESTEROV = {"momentum": 0.9, "nesterov": True}
SMOOTHED = {"label_smoothing": 0.1}


def _scores(numbers: str) -> dict[str, Any]:
    """The paper's top-1 accuracies, in the order of `OPTIMIZERS`."""
    return {"accuracy": dict(zip(OPTIMIZERS, printed(numbers), strict=True))}


def _contender(name: str, rate: float, decay: float) -> Contender:
    """A contender with the paper's rate and weight decay."""
    more: Mapping[str, Any] = NESTEROV if name.startswith("SGD") else {}
    rates = SGD_RATES if more else ADAM_RATES
    given = {**more, "lr": rate, "weight_decay": decay}
    return Contender(name, rates, {**more, "weight_decay": 10 * decay}, given)


class T2(Benchmark):
    """Table 2: image classification

    The paper's five optimizers on small networks of its families. Glyphs of fonts that training
    does not have are to be told apart; after three epochs the networks are far from perfect, so
    that optimizers can differ.
    """

    name = "t2"
    first_seed = 120
    tuned_on = 1
    table = (
        Setting(
            "ResNet-18",
            "ResNet-18, ImageNet",
            "ImageNet",
            "classification",
            on_glyphs("resnet18"),
            on_imagenet("resnet18", epochs=100, batch_size=256),
            _scores("70.47 70.70 68.05 70.39 70.82"),
            "t2.outperform",
        ),
        Setting(
            "MobileNetV2",
            "MobileNetV2, ImageNet",
            "ImageNet",
            "classification",
            on_glyphs("mobilenetv2", regime=SMOOTHED),
            on_imagenet("mobilenetv2", regime=SMOOTHED, epochs=150, batch_size=1024),
            _scores("71.55 72.09 69.32 71.21 72.45"),
            "t2.outperform",
        ),
        Setting(
            "ResNet-50",
            "ResNet-50, ImageNet",
            "ImageNet",
            "classification",
            on_glyphs("resnet50"),
            on_imagenet("resnet50", epochs=100, batch_size=256),
            _scores("76.57 76.66 71.87 76.54 76.92"),
            "t2.outperform",
        ),
        Setting(
            "ResNet-50 + CutMix",
            "ResNet-50 + CutMix, ImageNet",
            "ImageNet",
            "classification",
            on_glyphs("resnet50", options={"cutmix": 0.5}),
            on_imagenet("resnet50", options={"cutmix": 1.0}, epochs=150, batch_size=256),
            _scores("77.69 77.77 76.35 78.04 78.22"),
            "t2.cutmix",
        ),
    )
    contenders = (
        _contender("SGD", 0.1, 1e-4),
        _contender("SGDP", 0.1, 1e-5),
        _contender("Adam", 1e-3, 1e-4),
        _contender("AdamW", 1e-3, 1e-4),
        _contender("AdamP", 1e-3, 1e-6),
    )
    pairs = (("SGD", "SGDP"), ("AdamW", "AdamP"))
    departures = (
        *GLYPHS,
        WARM_UP,
        ("networks", "18 or 50 layers, 3.5 to 25.6 million parameters",
         "3 to 5 blocks of the same kinds, about 10,000 parameters", "a small machine"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam); searched for MobileNetV2, results not given",
         "best of three for each arm; with --data the former for all",
         "equal tuning for every optimizer"),
        ("batch, length", "256 or 1024 (MobileNetV2), 100 or 150 epochs", "32, 3 epochs",
         "a small machine"),
        ("CutMix", "of every batch", "of every second one",
         "three epochs are too few to learn from mixed images alone"),
    )  # fmt: skip

    def claims(self, results: Results) -> list[Claim]:
        return [*super().claims(results), *(_of_decay(results, each) for each in self.table)]


def _of_decay(results: Results, setting: Setting) -> Claim:
    ours, other = (results.arm(arm_of(setting, name)).values("test") for name in ("AdamW", "Adam"))
    text = f"AdamW scores higher than Adam ({setting.label})"
    theirs = setting.gap("AdamW", "Adam") or ""
    return performance(text, ours, other, source=says("t2.adamw"), paper=theirs)
