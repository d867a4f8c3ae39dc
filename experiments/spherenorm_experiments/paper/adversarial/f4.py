"""Figure 4 and Table E.2: adversarial training under four threat models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.paper.shared.claims import of_metric, projection, scores
from spherenorm_experiments.paper.shared.departures import departures
from spherenorm_experiments.paper.shared.detection import DETECTED
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.runs import Result, Runs
from spherenorm_experiments.tables import Cell, printed, table_of

WIDE = {"data_set": "cifar10", "depth": 34, "width": 10, "stem": 16}
FIELDS = {"epochs": 200, "batch_size": 128, "schedule": "step-50-75"}

PIXEL_STEP = 2 / 255
"""The length of a step of Madry et al. on CIFAR-10; the paper gives none."""


ROWS = {row["row"]: row for row in table_of("""
    row          attacked     clean        harder
    linf 8/255   56.58 66.28  80.12 89.85  29.00 35.76
    l2 1/2       70.33 83.59  84.14 93.46  -
    linf 16/255  39.48 42.42  69.76 85.74  -
""")}  # fmt: skip
"""Accuracies of Adam and of AdamP on attacked, clean and harder attacked images (Table E.2); of
the last model Madry et al. have 45.8 on attacked images."""

PAIR = ("Adam", "AdamP")


def _paper(label: str) -> Mapping[str, Mapping[str, Cell]]:
    """The paper's numbers by metric."""
    names = {"attacked accuracy": "attacked", "clean accuracy": "clean",
             "harder attacked accuracy": "harder"}  # fmt: skip
    return {
        metric: dict(zip(PAIR, printed(ROWS[label][name]), strict=True))
        for metric, name in names.items()
        if ROWS[label][name] is not None
    }


def _condition(
    label: str,
    theirs: str,
    embedded: Mapping[str, Any],
    real: Mapping[str, Any],
    spread: float,
) -> Condition:
    return Condition(
        label,
        "adversarial",
        embedded,
        Setup({**WIDE, **real}, fields=FIELDS),
        tiers={"smoke": Setup({"stem": 4})},
        theirs=f"WRN-34-10, {theirs}",
        benchmark="CIFAR-10 attacked",
        paper=_paper(label),
        cites=says("f4.table"),
        spread=spread,
    )


CONDITIONS = (
    _condition(
        "linf 8/255",
        "linf 4/255, n = 10",
        {"radius": 8 / 255, "harder_radius": 16 / 255, "harder_steps": 4},
        {"radius": 4 / 255, "steps": 10, "step": PIXEL_STEP, "harder_radius": 8 / 255,
         "harder_steps": 20, "test_step": PIXEL_STEP},
        2.7,
    ),
    _condition(
        "l2 1/2",
        "l2 80/255, n = 10",
        {"norm": "l2", "radius": 0.5},
        {"norm": "l2", "radius": 80 / 255, "steps": 10},
        1.4,
    ),
    _condition(
        "linf 16/255",
        "linf 8/255, n = 7, tested with n = 20",
        {"radius": 16 / 255, "test_steps": 4},
        {"radius": 8 / 255, "steps": 7, "step": PIXEL_STEP, "test_steps": 20},
        11.0,
    ),
)  # fmt: skip
DECAY = {"weight_decay": 2e-4}
GAINS = ("attacked accuracy", "clean accuracy")


def _gap(condition: Condition, metric: str) -> Claim:
    """The gain in an accuracy of one of the two settings of Section 4.3, which says "in all"."""

    def gain(runs: Runs) -> pd.Series:
        ours, theirs = (scores(runs, condition, name, metric) for name in PAIR[::-1])
        return ours - theirs

    return Claim(
        f"gap.{slug(condition.label)}.{slug(metric)}", "> 9.3", gain,
        f"AdamP's {metric} is more than 9.3 points higher ({condition.label})", says("f4.gap"),
        unit="pp", score=True, note="the paper's four gaps: 9.70, 9.73, 13.26, 9.32",
    )  # fmt: skip


def _sooner(runs: Runs) -> pd.Series:
    """The median over the threat models of AdamP's share of steps to Adam's last loss."""
    parts = [_shares(runs, condition.label) for condition in CONDITIONS]
    known = [part for part in parts if len(part)]
    if not known:
        return pd.Series(dtype=float)
    return pd.concat(known, axis=1).median(axis=1, skipna=False)


def _shares(runs: Runs, condition: str) -> pd.Series:
    """The share of AdamP's steps until its loss is at most the last of Adam's, by seed."""
    theirs, ours = (runs.best(condition, name).run for name in PAIR)
    reached = {seed: _last(item) for seed, item in theirs.items() if not item.diverged}
    return pd.Series(
        {
            seed: math.inf if item.diverged else _share_until(item, reached)
            for seed, item in ours.items()
            if seed in reached
        },
        dtype=float,
    )


def _smoothed(item: Result) -> Any:
    """Means of the loss over an epoch, one for each step after the first epoch."""
    losses = [record["loss"] for record in item.metrics]
    window = min(item.summary["steps_per_epoch"], len(losses))
    return np.convolve(losses, np.full(window, 1 / window), mode="valid")


def _last(item: Result) -> float:
    return float(_smoothed(item)[-1])


def _share_until(item: Result, reached: Mapping[int, float]) -> float:
    """The share of a run's steps until its loss is at most that of the seed's other run."""
    smoothed = _smoothed(item)
    (there,) = np.nonzero(smoothed <= reached[item.spec.seed])
    skipped = len(item.metrics) - len(smoothed)
    return float((there[0] + 1 + skipped) / len(item.metrics)) if len(there) else 1.0


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
        *(_gap(condition, metric) for condition in CONDITIONS[:2] for metric in GAINS),
        Claim(
            "faster",
            "< 0.5",
            _sooner,
            "AdamP comes to Adam's last training loss in less than half of the steps of Adam: the "
            "median of the threat models",
            says("f4.faster"),
            limits=(0.0, 1.0),
            score=True,
            note="1 for a run that does not come there",
        ),
    ],
    first_seed=400,
    measures=DETECTED,
    departures=departures("f4"),
)
