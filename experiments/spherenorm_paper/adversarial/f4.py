"""Figure 4 and Table E.2: adversarial training under four threat models."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.runs import RecordedNumber, Result, Runs
from spherenorm_experiments.tables import parse_table
from spherenorm_experiments.verdict import BEYOND_PAPER, Claim, slug
from spherenorm_paper.shared.claims import gain, of_metric, projection
from spherenorm_paper.shared.detection import DETECTED
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.statements import says

PAIR = ("Adam", "AdamP")
WIDE = {"data_set": "cifar10", "depth": 34, "width": 10, "stem": 16}
FIELDS = {"epochs": 200, "batch_size": 128, "schedule": "step-50-75"}

PIXEL_STEP = 2 / 255
"""The length of a step of Madry et al. on CIFAR-10; the paper gives none."""

ROWS = parse_table("""
    row          metric                    Adam   AdamP
    linf 8/255   attacked accuracy         56.58  66.28
    linf 8/255   clean accuracy            80.12  89.85
    linf 8/255   harder attacked accuracy  29.00  35.76
    l2 1/2       attacked accuracy         70.33  83.59
    l2 1/2       clean accuracy            84.14  93.46
    linf 16/255  attacked accuracy         39.48  42.42
    linf 16/255  clean accuracy            69.76  85.74
    linf 16/255  attacked, Madry et al.    45.8   None
""")
"""Accuracies of Adam and of AdamP (Table E.2), and of the model of Madry et al."""


FIGURE = {"validation": "Figure 4"}
"""The paper's curves are of these two threats."""


def _condition(
    label: str,
    paper_network: str,
    spread: float,
    embedded: dict[str, Any],
    real: dict[str, Any],
    **more: Any,
) -> Condition:
    """A row of Table E.2: our threat, and the paper's."""
    accuracies = {r["metric"]: {name: r[name] for name in PAIR if r[name]}
           for r in ROWS if r["row"] == label}  # fmt: skip
    return Condition(
        label, "adversarial", embedded, Setup({**WIDE, **real}, fields=FIELDS),
        tiers={"smoke": Setup({"stem": 4})}, paper_setup=f"WRN-34-10, {paper_network}",
        paper=accuracies,
        benchmark="CIFAR-10 attacked", cites=says("f4.table"), spread=spread, **more,
    )  # fmt: skip


CONDITIONS = (
    _condition(
        "linf 8/255", "linf 4/255, n = 10", 2.7,
        {"radius": 8 / 255, "harder_radius": 16 / 255, "harder_steps": 4},
        {"radius": 4 / 255, "steps": 10, "step": PIXEL_STEP, "test_step": PIXEL_STEP,
         "harder_radius": 8 / 255, "harder_steps": 20},
        figures=FIGURE,
    ),
    _condition(
        "l2 1/2", "l2 80/255, n = 10", 1.4,
        {"norm": "l2", "radius": 0.5},
        {"norm": "l2", "radius": 80 / 255, "steps": 10},
        figures=FIGURE,
    ),
    _condition(
        "linf 16/255", "linf 8/255, n = 7, tested with n = 20", 11.0,
        {"radius": 16 / 255, "test_steps": 4},
        {"radius": 8 / 255, "steps": 7, "step": PIXEL_STEP, "test_steps": 20},
    ),
)  # fmt: skip


def _gap(condition: Condition, metric: str) -> Claim:
    """The gain in an accuracy of one of the two settings of Section 4.3, which says "in all"."""
    return Claim(
        f"gap.{slug(condition.label)}.{slug(metric)}", "> 9.3",
        partial(gain, label=condition.label, metric=metric, pair=PAIR),
        f"AdamP's {metric} is more than 9.3 points higher ({condition.label})", says("f4.gap"),
        unit="pp", is_performance=True, note="the paper's four gaps: 9.70, 9.73, 13.26, 9.32",
    )  # fmt: skip


DECAY = {"weight_decay": 2e-4}

F4 = Comparison(
    "f4",
    """Figure 4 and Table E.2: adversarial training

    A wide residual network learns from images that PGD has changed against it, and is scored on
    attacked and on clean ones. The model of the first threat is also attacked twice as far, in
    twice as many steps, which is the second row of Table E.2. Figure 4 is the training loss.

    In a pre-activation network only the convolutions that feed BatchNorm alone are scale-invariant:
    a third of the weights here, not nearly all.
    """,
    arms=[Arm(name, fixed=DECAY, paper={"lr": 0.01, **DECAY}) for name in PAIR],
    tune={"lr": [0.01, 0.02, 0.04, 0.08]},
    conditions=CONDITIONS,
    claims=[
        *projection(CONDITIONS, PAIR),
        *(
            replace(of_metric(condition, metric, *PAIR), cites=BEYOND_PAPER)  # of other columns
            for metric in ("clean accuracy", "harder attacked accuracy")
            for condition in CONDITIONS
            if metric in condition.paper
        ),
        *(_gap(condition, metric) for condition in CONDITIONS[:2]
          for metric in ("attacked accuracy", "clean accuracy")),
    ],
    first_seed=400,
    measures=DETECTED,
    departures=departures("f4"),
)  # fmt: skip


@F4.claim(
    "faster", "< 0.5", limits=(0.0, 1.0), is_performance=True, cites=says("f4.faster"),
    text="AdamP comes to Adam's last training loss in less than half of the steps of Adam: the "
    "median of the threat models", note="1 for a run that does not come there",
)  # fmt: skip
def _sooner(runs: Runs) -> pd.Series:
    parts = []
    for condition in CONDITIONS:
        adam, adamp = (runs.selected(condition.label, name).run for name in PAIR)
        last = {seed: smoothed_loss(run)[-1] for seed, run in adam.items() if not run.diverged}
        shares = {
            seed: _share_until(run, last[seed]) for seed, run in adamp.items() if seed in last
        }
        parts += [pd.Series(shares, dtype=float)] if shares else []
    if not parts:
        return pd.Series(dtype=float)
    return pd.concat(parts, axis=1).median(axis=1, skipna=False)


def _share_until(run: Result, loss: float) -> float:
    """Return the share of a run's steps until its smoothed loss is at most this one."""
    if run.diverged:
        return math.inf
    smoothed, before = np.array(smoothed_loss(run)), run.summary["steps_per_epoch"] - 1
    (reached,) = np.nonzero(smoothed <= loss)
    return float((reached[0] + 1 + before) / (len(smoothed) + before)) if len(reached) else 1.0


def _smoothed_loss(run: Result) -> list[float]:
    """Return means of the loss over an epoch, one for each step after the first epoch.

    Six digits are kept.
    """
    losses = [record["loss"] for record in run.metrics]
    window = min(run.summary["steps_per_epoch"], len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return [float(f"{loss:.6g}") for loss in means]


smoothed_loss = RecordedNumber("smoothed loss", _smoothed_loss)
