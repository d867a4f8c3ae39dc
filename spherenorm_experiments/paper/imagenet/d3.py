"""Table D.3: batches that grow, at a fixed number of epochs."""

from __future__ import annotations

from spherenorm_experiments.analysis import Claim, Results, Sample, advantage, paired, printed
from spherenorm_experiments.paper.imagenet._photographs import (
    GLYPHS,
    WARM_UP,
    on_glyphs,
    on_imagenet,
)
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.study import Benchmark, Contender, Setting, arm_of

__all__ = ["D3"]

MICRO, LARGE_MICRO = 32, 256
"""Items of a micro-batch, over which BatchNorm takes its statistics: ours, and with `--data`."""

RATES = (1e-2, 2e-2, 4e-2, 8e-2, 0.16)

PAPER = {32: (4096, "72.41 73.75"), 96: (8192, "69.74 71.36"), 288: (16384, "63.79 66.89")}
"""Our batch; the paper's, with its accuracies of AdamW and AdamP."""

PAIR = ("AdamW", "AdamP")


def _setting(batch: int, theirs: int, numbers: str) -> Setting:
    ours = {"micro_batches": batch // MICRO}
    large = {"micro_batches": theirs // LARGE_MICRO}
    return Setting(
        f"batch {batch}",
        f"ResNet-50, ImageNet, batch {theirs // 1024}k",
        "",
        "classification",
        on_glyphs("resnet50", regime=ours, batch_size=batch),
        on_imagenet("resnet50", regime=large, epochs=100, batch_size=theirs),
        {"accuracy": dict(zip(PAIR, printed(numbers), strict=True))},
        "d3.table",
    )


class D3(Benchmark):
    """Table D.3: large-batch training

    All batches see the data equally often, so that a batch three times as large has a third of the
    steps. Gradients of micro-batches of one size add up, so that BatchNorm is the same in all, but
    for the last batch of an epoch.
    """

    name = "d3"
    first_seed = 1300
    table = tuple(_setting(batch, *row) for batch, row in PAPER.items())
    contenders = (
        Contender("AdamW", RATES, {"weight_decay": 1e-3}, {"lr": 1e-3, "weight_decay": 1e-4}),
        Contender("AdamP", RATES, {"weight_decay": 1e-5}, {"lr": 1e-3, "weight_decay": 1e-6}),
    )
    pairs = (PAIR,)
    departures = (
        *GLYPHS,
        WARM_UP,
        ("network", "ResNet-50", "three bottleneck blocks", "a small machine"),
        ("batch", "4k, 8k, 16k: 31,000 to 8,000 steps", "32, 96, 288: 180 to 21 steps",
         "a small machine"),
        ("micro-batches", "not given", "of 32 (of 21 or 22 in every seventh batch of 288, the rest "
         "of an epoch); with --data of 256", "BatchNorm sees one of them"),
        ("learning rate", "not given", "best of five for each arm; with --data 0.001",
         "equal tuning for every optimizer"),
        ("length", "100 epochs", "3 epochs", "a small machine"),
    )  # fmt: skip

    def claims(self, results: Results) -> list[Claim]:
        small, *_, large = self.table
        grown, begun = (_gain(results, setting) for setting in (large, small))
        least, most = (_scores(results, setting, "AdamW") for setting in (large, small))
        return [
            *super().claims(results),
            paired(
                f"AdamP's gain in accuracy is larger at {large.label} than at {small.label}",
                grown, begun, ">", source=says("d3.greater"), equivalence=1.0,
                paper="3.10 - 1.34 = +1.76", unit="pp", detail="equivalent means within ±1 pp",
            ),
            paired(
                f"AdamW's accuracy falls from {small.label} to {large.label}", most, least, ">",
                source=says("d3.decrease"), paper="72.41 - 63.79 = +8.62", unit="pp",
                performance=True,
            ),
        ]  # fmt: skip


def _scores(results: Results, setting: Setting, name: str) -> Sample:
    return results.arm(arm_of(setting, name)).values("test")


def _gain(results: Results, setting: Setting) -> Sample:
    """AdamP's score minus AdamW's, by seed."""
    theirs, ours = (_scores(results, setting, name) for name in PAIR)
    return advantage(ours, theirs)
