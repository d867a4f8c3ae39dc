"""Figure 4 and Table E.2: adversarial training under four threat models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.paper.shared.claims import of_metric, projection, scores
from spherenorm_experiments.paper.shared.detection import DETECTED
from spherenorm_experiments.paper.shared.facts import departures
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.runs import Result, Runs
from spherenorm_experiments.tables import table_of

PAIR = ("Adam", "AdamP")
WIDE = {"data_set": "cifar10", "depth": 34, "width": 10, "stem": 16}
FIELDS = {"epochs": 200, "batch_size": 128, "schedule": "step-50-75"}

PIXEL_STEP = 2 / 255
"""The length of a step of Madry et al. on CIFAR-10; the paper gives none."""

ROWS = table_of("""
    row          theirs                                           metric                    Adam   AdamP
    linf 8/255   WRN-34-10, linf 4/255, n = 10                    attacked accuracy         56.58  66.28
    linf 8/255   WRN-34-10, linf 4/255, n = 10                    clean accuracy            80.12  89.85
    linf 8/255   WRN-34-10, linf 4/255, n = 10                    harder attacked accuracy  29.00  35.76
    l2 1/2       WRN-34-10, l2 80/255, n = 10                     attacked accuracy         70.33  83.59
    l2 1/2       WRN-34-10, l2 80/255, n = 10                     clean accuracy            84.14  93.46
    linf 16/255  WRN-34-10, linf 8/255, n = 7, tested with n = 20  attacked accuracy        39.48  42.42
    linf 16/255  WRN-34-10, linf 8/255, n = 7, tested with n = 20  clean accuracy           69.76  85.74
""")  # noqa: E501
"""Accuracies of Adam and of AdamP (Table E.2); of the last model Madry et al. have 45.8 on attacked
images."""

SET_UPS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "linf 8/255": (
        {"radius": 8 / 255, "harder_radius": 16 / 255, "harder_steps": 4},
        {"radius": 4 / 255, "steps": 10, "step": PIXEL_STEP, "harder_radius": 8 / 255,
         "harder_steps": 20, "test_step": PIXEL_STEP},
        2.7,
    ),
    "l2 1/2": (
        {"norm": "l2", "radius": 0.5},
        {"norm": "l2", "radius": 80 / 255, "steps": 10},
        1.4,
    ),
    "linf 16/255": (
        {"radius": 16 / 255, "test_steps": 4},
        {"radius": 8 / 255, "steps": 7, "step": PIXEL_STEP, "test_steps": 20},
        11.0,
    ),
}  # fmt: skip
"""Our threat and the paper's, and our spread of the score."""

CONDITIONS = tuple(
    Condition(
        label,
        "adversarial",
        embedded,
        Setup({**WIDE, **real}, fields=FIELDS),
        tiers={"smoke": Setup({"stem": 4})},
        theirs=next(row["theirs"] for row in ROWS if row["row"] == label),
        benchmark="CIFAR-10 attacked",
        paper={r["metric"]: {n: r[n] for n in PAIR} for r in ROWS if r["row"] == label},
        cites=says("f4.table"),
        spread=spread,
    )
    for label, (embedded, real, spread) in SET_UPS.items()
)
DECAY = {"weight_decay": 2e-4}

F4 = Comparison(
    "f4",
    """Figure 4 and Table E.2: adversarial training

    A wide residual network learns from images that PGD has changed against it, and is scored on
    attacked and on clean ones. The model of the first threat is also attacked twice as far, in
    twice as many steps, which is the second row of Table E.2. Figure 4 is the training loss.

    In a pre-activation network only the convolutions that feed BatchNorm alone are scale-invariant:
    half of the weights, not nearly all.
    """,
    arms=[Arm(name, fixed=DECAY, paper={"lr": 0.01, **DECAY}) for name in PAIR],
    tune={"lr": [0.01, 0.02, 0.04, 0.08]},
    conditions=CONDITIONS,
    claims=[
        *projection(CONDITIONS, PAIR),
        *(
            of_metric(condition, metric, *PAIR)
            for metric in ("clean accuracy", "harder attacked accuracy")
            for condition in CONDITIONS
            if metric in condition.paper
        ),
    ],
    first_seed=400,
    measures=DETECTED,
    departures=departures("f4"),
)


def _claim_gap(condition: Condition, metric: str) -> None:
    """The gain in an accuracy of one of the two settings of Section 4.3, which says "in all"."""

    @F4.claim(
        f"gap.{slug(condition.label)}.{slug(metric)}", "> 9.3", unit="pp", score=True,
        text=f"AdamP's {metric} is more than 9.3 points higher ({condition.label})",
        cites=says("f4.gap"), note="the paper's four gaps: 9.70, 9.73, 13.26, 9.32",
    )  # fmt: skip
    def gain(runs: Runs) -> pd.Series:
        theirs, ours = (scores(runs, condition, name, metric) for name in PAIR)
        return ours - theirs


for each in CONDITIONS[:2]:
    _claim_gap(each, "attacked accuracy")
    _claim_gap(each, "clean accuracy")


@F4.claim(
    "faster", "< 0.5", limits=(0.0, 1.0), score=True, cites=says("f4.faster"),
    text="AdamP comes to Adam's last training loss in less than half of the steps of Adam: the "
    "median of the threat models", note="1 for a run that does not come there",
)  # fmt: skip
def _sooner(runs: Runs) -> pd.Series:
    parts = []
    for condition in CONDITIONS:
        theirs, ours = (runs.best(condition.label, name).run for name in PAIR)
        last = {seed: _smoothed(item)[-1] for seed, item in theirs.items() if not item.diverged}
        both = {seed: item for seed, item in ours.items() if seed in last}
        shares = {seed: _share_until(item, last[seed]) for seed, item in both.items()}
        parts += [pd.Series(shares, dtype=float)] if shares else []
    return (
        pd.concat(parts, axis=1).median(axis=1, skipna=False) if parts else pd.Series(dtype=float)
    )


def _share_until(item: Result, loss: float) -> float:
    """The share of a run's steps until its smoothed loss is at most this one."""
    if item.diverged:
        return math.inf
    smoothed = _smoothed(item)
    (there,) = np.nonzero(smoothed <= loss)
    skipped = len(item.metrics) - len(smoothed)
    return float((there[0] + 1 + skipped) / len(item.metrics)) if len(there) else 1.0


def _smoothed(item: Result) -> Any:
    """Means of the loss over an epoch, one for each step after the first epoch."""
    losses = [record["loss"] for record in item.metrics]
    window = min(item.summary["steps_per_epoch"], len(losses))
    return np.convolve(losses, np.full(window, 1 / window), mode="valid")
