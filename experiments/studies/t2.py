"""Table 2 on digits: five optimizers on four networks, each at its own best rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from experiments.pictures import Picture, drawn
from experiments.results import (
    Arm,
    Cell,
    Claim,
    Heading,
    Results,
    Table,
    Trial,
    paired,
    paper,
    performance,
    printed,
)
from experiments.studies._bands import Curve, over_steps
from experiments.studies._grid import Grid, grid_of
from experiments.studies._paper import says
from experiments.studies._plan import Plan
from experiments.studies._study import Study

__all__ = ["T2"]

SGD_RATES, ADAM_RATES = (0.03, 0.1, 0.3, 1.0, 3.0), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": SGD_RATES, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
    "SGDP": {"lr": SGD_RATES, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    "Adam": {"lr": ADAM_RATES, "weight_decay": 1e-2},
    "AdamW": {"lr": ADAM_RATES, "weight_decay": 1e-2},
    "AdamP": {"lr": ADAM_RATES, "weight_decay": 1e-4},
}
"""Hyper-parameters, rates as points; the recipes have the names of the optimizers."""

PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"))


@dataclass(frozen=True)
class Network:
    """A network of ours for one of the paper's.

    Attributes:
        theirs: the paper's network.
        options: the task's.
        regime: the paper smooths the labels of MobileNetV2.
        paper: the paper's accuracy of each optimizer.
    """

    theirs: str
    options: Mapping[str, Any]
    paper: Sequence[Decimal]

    def gap(self, ours: str, baseline: str) -> Cell:
        """The paper's accuracy of one optimizer minus another's."""
        known = dict(zip(OPTIMIZERS, self.paper, strict=True))
        return Cell(known[ours] - known[baseline], "+.2f")


NETWORKS = {
    "bottleneck": Network(
        "MobileNetV2",
        {"variant": "bottleneck", "label_smoothing": 0.1},
        printed("71.55 72.09 69.32 71.21 72.45"),
    ),
    "plain": Network("ResNet-18", {"variant": "plain"}, printed("70.47 70.70 68.05 70.39 70.82")),
    "residual": Network(
        "ResNet-50", {"variant": "residual"}, printed("76.57 76.66 71.87 76.54 76.92")
    ),
    "residual + CutMix": Network(
        "ResNet-50 + CutMix",
        {"variant": "residual", "cutmix": True},
        printed("77.69 77.77 76.35 78.04 78.22"),
    ),
}
SMOKE = ("residual + CutMix",)
"""The networks of the smoke tier."""


def _arm(network: str, optimizer: str) -> Arm:
    settings = {"network": network, "optimizer": optimizer}
    return Arm(f"{network}: {optimizer}", optimizer.lower(), settings)


class T2(Study):
    """Table 2: image classification, on digits

    The paper's optimizers at the paper's weight decays (times 100, as in Table 1) on a network of
    each of its kinds, every optimizer at the best of five learning rates. All reach about 98 %,
    where one image of the test set is 0.2 points.
    """

    name = "t2"
    first_seed = 100
    compared = {}  # noqa: RUF012  (every arm has a row)
    departures = (
        ("data", "ImageNet", "1,797 digits of 8 x 8 pixels", "a small machine"),
        ("networks", "MobileNetV2, ResNet-18, ResNet-50", "fully connected ones of these forms, "
         "without depthwise convolutions", "all rates and seeds train as one sweep"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam)", "best of five for each arm",
         "equal tuning for every optimizer; Adam's best is ten times the paper's rate"),
        ("weight decay", "SGD 1e-4, SGDP 1e-5; AdamW 1e-4, AdamP 1e-6", "100 times that",
         "a run is 2000 times shorter"),
        ("batch, length", "256 or 1024, 100 or 150 epochs", "64, 15 epochs",
         "the data are a thousandth"),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [
            self.swept(plan, _arm(name, optimizer), _points(setting), **network.options)
            for name, network in NETWORKS.items()
            if plan.tier != "smoke" or name in SMOKE
            for optimizer, setting in OPTIMIZERS.items()
        ]

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for arm in results.arms:
            grid, network = grid_of(results, arm), NETWORKS[arm.settings["network"]]
            choice = grid.tuned()
            own = arm.substitutes_for is None
            theirs = dict(zip(OPTIMIZERS, network.paper, strict=True))
            rows.append(
                (
                    arm.label,
                    network.theirs,
                    choice.cell,
                    grid.cell("test", choice.index, ".2f", spread=True),
                    theirs[arm.settings["optimizer"]] if own else None,
                    grid.cell("norm_last", choice.index),
                    grid.cell("path", choice.index, ".2f"),
                )
            )
        columns: list[Heading] = [
            *("arm", "in place of", "best lr", "accuracy"),
            *paper("accuracy"),
            *("last norm", "path on sphere"),
        ]
        note = "Means over seeds ± standard deviation; the paper's accuracy is ImageNet top-1."
        return [Table("Accuracy, norm and path", columns, rows, note)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        return drawn(
            over_steps(
                [_curve(results, arm) for arm in results.arms if arm.settings["network"] == name],
                "effective_step", "effective step ‖Δŵ‖",
                f"Effective step sizes at each optimizer's best rate, {name}.", log_y=True,
            )
            for name in NETWORKS
        )  # fmt: skip

    def claims(self, results: Results) -> list[Claim]:
        claims = []
        for name, network in NETWORKS.items():
            grids = {o: grid_of(results, _arm(name, o)) for o in OPTIMIZERS}
            best = {o: grid.tuned().index for o, grid in grids.items()}
            score = {o: grid.sample("test", best[o]) for o, grid in grids.items()}
            path = {o: grid.sample("path", best[o]) for o, grid in grids.items()}
            source = says("t2.cutmix" if "CutMix" in name else "t2.outperform")
            for baseline, ours in PAIRS:
                text = f"{ours} scores higher than {baseline} ({name})"
                pair = score[ours], score[baseline]
                theirs = network.gap(ours, baseline)
                claims.append(performance(text, *pair, source=source, paper=theirs, primary=True))
                text = (
                    f"{ours} keeps larger effective steps than {baseline}: ratio of the paths on "
                    f"the sphere ({name})"
                )
                ratio = path[ours], path[baseline]
                claims.append(paired(text, *ratio, ">", how="ratio", source=says("3.steps")))
            text = f"AdamW scores higher than Adam ({name})"
            pair, theirs = (score["AdamW"], score["Adam"]), network.gap("AdamW", "Adam")
            claims.append(performance(text, *pair, source=says("t2.adamw"), paper=theirs))
        return claims


def _points(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {**setting, "lr": list(setting["lr"])}


def _curve(results: Results, arm: Arm) -> Curve:
    grid: Grid = grid_of(results, arm)
    label = arm.label.replace(f"{arm.settings['network']}: ", "")
    return Curve(label, grid, grid.tuned().index)
