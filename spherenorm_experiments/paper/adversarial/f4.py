"""Figure 4 and Table E.2: adversarial training under four threat models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from spherenorm_experiments.analysis import Claim, Result, Results, printed, sample
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import Picture, curves, drawn
from spherenorm_experiments.study import (
    Benchmark,
    Conditions,
    Contender,
    Setting,
    arm_of,
    claims_of_metric,
)

__all__ = ["F4"]

WIDE = {"data_set": "cifar10", "depth": 34, "width": 10, "stem": 16}
FIELDS = {"epochs": 200, "batch_size": 128, "schedule": "step-50-75"}
RATES = (0.01, 0.02, 0.04, 0.08)

PIXEL_STEP = 2 / 255
"""The length of a step of Madry et al. on CIFAR-10; the paper gives none."""


def _paper(**metrics: str) -> Mapping[str, Mapping[str, Decimal]]:
    """The paper's numbers of Adam and AdamP, by metric."""
    return {
        name.replace("_", " "): dict(zip(("Adam", "AdamP"), printed(numbers), strict=True))
        for name, numbers in metrics.items()
    }


def _setting(
    label: str,
    theirs: str,
    embedded: Mapping[str, Any],
    real: Mapping[str, Any],
    paper: Mapping[str, Mapping[str, Decimal]],
) -> Setting:
    return Setting(
        label,
        f"WRN-34-10, {theirs}",
        "CIFAR-10 attacked",
        "adversarial",
        Conditions(embedded),
        Conditions({**WIDE, **real}, fields=FIELDS),
        paper,
        "f4.gap",
    )


class F4(Benchmark):
    """Figure 4 and Table E.2: adversarial training

    A wide residual network learns from images that PGD has changed against it, and is scored on
    attacked and on clean ones. The model of the first threat is also attacked twice as far, in
    twice as many steps, which is the second row of Table E.2.

    In a pre-activation network only the convolutions that feed BatchNorm alone are scale-invariant:
    half of the weights, not nearly all.
    """

    name = "f4"
    first_seed = 400
    table = (
        _setting(
            "linf 8/255",
            "linf 4/255, n = 10",
            {"radius": 8 / 255, "harder_radius": 16 / 255, "harder_steps": 4},
            {"radius": 4 / 255, "steps": 10, "step": PIXEL_STEP, "harder_radius": 8 / 255,
             "harder_steps": 20, "test_step": PIXEL_STEP},
            _paper(attacked_accuracy="56.58 66.28", clean_accuracy="80.12 89.85",
                   harder_attacked_accuracy="29.00 35.76"),
        ),
        _setting(
            "l2 1/2",
            "l2 80/255, n = 10",
            {"norm": "l2", "radius": 0.5},
            {"norm": "l2", "radius": 80 / 255, "steps": 10},
            _paper(attacked_accuracy="70.33 83.59", clean_accuracy="84.14 93.46"),
        ),
        _setting(
            "linf 16/255",
            "linf 8/255, n = 7, tested with n = 20",
            {"radius": 16 / 255, "test_steps": 4},
            {"radius": 8 / 255, "steps": 7, "step": PIXEL_STEP, "test_steps": 20},
            _paper(attacked_accuracy="39.48 42.42", clean_accuracy="69.76 85.74"),
        ),
    )  # fmt: skip
    contenders = tuple(
        Contender(name, RATES, {"weight_decay": 2e-4}, {"lr": 0.01, "weight_decay": 2e-4})
        for name in ("Adam", "AdamP")
    )
    pairs = (("Adam", "AdamP"),)
    departures = (
        ("data", "CIFAR-10", "640 glyphs of 12 x 12 pixels; other fonts in the test",
         "a small machine"),
        ("network", "WRN-34-10", "WRN-10-1 with half as many channels, 20,000 parameters",
         "a small machine"),
        ("threats", "linf 4/255 and 8/255, l2 80/255; 7 or 10 steps",
         "linf 8/255 and 16/255, l2 1/2; 2 steps", "glyphs are easier, and steps cost"),
        ("length of a step", "not given", "2.5 radius / steps; with --data 2/255 for linf, as "
         "Madry et al.", "for l2 along the normalized gradient; public copies of the code that the "
         "paper used step along its sign"),
        ("learning rate", "0.01", "best of four for each arm", "equal tuning"),
        ("length", "200 epochs of 50,000, steps at 1/2 and 3/4", "9 epochs of 640, cosine",
         "a small machine"),
        ("validation", "none", "200 glyphs of the training's fonts; with --data 1,000 training "
         "images are held out", "rates are not chosen on the test set"),
    )  # fmt: skip

    def claims(self, results: Results) -> list[Claim]:
        others = ("clean accuracy", "harder attacked accuracy")
        more = [claim for name in others for claim in claims_of_metric(self, results, name)]
        return [*super().claims(results), *more, *self._speeds(results)]

    def pictures(self, results: Results) -> list[Picture]:
        rates = self.measured(results).rates
        learning = drawn(
            curves(
                results.having(setting=setting.label, stage="final"), "loss",
                "loss of attacked images",
                f"Figure 4: the loss in training, {setting.label}, each at {rates}.",
            )
            for setting in self.table
        )  # fmt: skip
        return [*learning, *super().pictures(results)]

    def _speeds(self, results: Results) -> Iterator[Claim]:
        adam, adamp = self.contenders
        for setting in self.table:
            ours, theirs = (results.arm(arm_of(setting, each)) for each in (adamp, adam))
            reached = {item.spec.seed: _last(item) for item in theirs.finished}
            known = ours.where(partial(_is_known, reached=reached))  # diverged ones count against
            shares = known.values(partial(_share_until, reached=reached), performance=True)
            text = "AdamP comes to Adam's last training loss in less than half of the steps of Adam"
            yield sample(
                f"{text} ({setting.label})", shares, "<", 0.5, source=says("f4.faster"),
                limits=(0.0, 1.0), detail="1 for a run that does not come there",
            )  # fmt: skip


def _smoothed(item: Result) -> Any:
    """Means of the loss over an epoch, one for each step after the first epoch."""
    losses = [record["loss"] for record in item.metrics]
    window = min(item.summary["steps_per_epoch"], len(losses))
    return np.convolve(losses, np.full(window, 1 / window), mode="valid")


def _last(item: Result) -> float:
    return float(_smoothed(item)[-1])


def _is_known(item: Result, reached: Mapping[int, float]) -> bool:
    """True if the seed's other run has a last loss."""
    return item.spec.seed in reached


def _share_until(item: Result, reached: Mapping[int, float]) -> float | None:
    """The share of a run's steps until its loss is at most that of the seed's other run."""
    if item.spec.seed not in reached:
        return None
    smoothed = _smoothed(item)
    (there,) = np.nonzero(smoothed <= reached[item.spec.seed])
    skipped = len(item.metrics) - len(smoothed)
    return float((there[0] + 1 + skipped) / len(item.metrics)) if len(there) else 1.0
