"""Table D.3: batches that grow, at a fixed number of epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.paper.shared.claims import projection
from spherenorm_experiments.paper.shared.detection import DETECTED
from spherenorm_experiments.paper.shared.photographs import (
    GLYPHS,
    WARM_UP,
    on_glyphs,
    on_imagenet,
)
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.tables import gap, table_of

MICRO, LARGE_MICRO = 32, 256
"""Items of a micro-batch, over which BatchNorm takes its statistics: ours, and with `--data`."""

ROWS = table_of("""
    ours  theirs  AdamW  AdamP  spread
    32    4096    72.41  73.75  4.8
    96    8192    69.74  71.36  4.9
    288   16384   63.79  66.89  2.6
""")
"""Our batch; the paper's, with its accuracies; our spread."""

PAIR = ("AdamW", "AdamP")


def _condition(row: Mapping[str, Any]) -> Condition:
    batch, theirs = int(row["ours"].value), int(row["theirs"].value)
    ours = {"micro_batches": batch // MICRO}
    large = {"micro_batches": theirs // LARGE_MICRO}
    return Condition(
        f"batch {batch}",
        "classification",
        on_glyphs("resnet50", regime=ours, batch_size=batch),
        on_imagenet("resnet50", regime=large, epochs=100, batch_size=theirs),
        tiers={"smoke": Setup(fields={"batch_size": 256})},
        theirs=f"ResNet-50, ImageNet, batch {theirs // 1024}k",
        paper={"accuracy": {name: row[name] for name in PAIR}},
        cites=says("d3.table"),
        spread=float(row["spread"].value),
    )


CONDITIONS = [_condition(row) for row in ROWS]
ADAMW = Arm("AdamW", fixed={"weight_decay": 1e-3}, paper={"lr": 1e-3, "weight_decay": 1e-4})
ADAMP = Arm("AdamP", fixed={"weight_decay": 1e-5}, paper={"lr": 1e-3, "weight_decay": 1e-6})


DEPARTURES = (
    *GLYPHS,
    WARM_UP,
    ("network", "ResNet-50", "three bottleneck blocks", "a small machine"),
    ("batch", "4k, 8k, 16k: 31,000 to 8,000 steps", "32, 96, 288: 180 to 21 steps",
     "a small machine"),
    ("micro-batches", "not given", "of 32 (of 21 or 22 in every seventh batch of 288, the rest "
     "of an epoch); with --data of 256", "BatchNorm sees one of them"),
    ("learning rate", "not given", "tuned; with --data 0.001",
     "equal tuning for every optimizer"),
    ("training set (--data)", "all", "without 10 images of each class", "see Table 2"),
    ("length", "100 epochs", "3 epochs", "a small machine"),
)  # fmt: skip

D3 = Comparison(
    "d3",
    """Table D.3: large-batch training

    All batches see the data equally often, so that a batch three times as large has a third of the
    steps. Gradients of micro-batches of one size add up, so that BatchNorm is the same in all, but
    for the last batch of an epoch.
    """,
    arms=[ADAMW, ADAMP],
    tune={"lr": [1e-2, 2e-2, 4e-2, 8e-2]},
    conditions=CONDITIONS,
    claims=[*projection(CONDITIONS, PAIR)],
    first_seed=1300,
    measures=DETECTED,
    departures=DEPARTURES,
)


SMALL, *_, LARGE = CONDITIONS


def _gain(runs: Runs, condition: Condition) -> pd.Series:
    adamw, adamp = (runs.best(condition.label, name).test for name in PAIR)
    return adamp - adamw


@D3.claim(
    "gain-grows",
    "> 0",
    unit="pp",
    margin=1.0,
    score=True,
    spread=5.4,
    cites=says("d3.greater"),
    text=f"AdamP's gain in accuracy is larger at {LARGE.label} than at {SMALL.label}",
    paper=gap(gap(ROWS[2]["AdamP"], ROWS[2]["AdamW"]), gap(ROWS[0]["AdamP"], ROWS[0]["AdamW"])),
)
def _grows(runs: Runs) -> pd.Series:
    return _gain(runs, LARGE) - _gain(runs, SMALL)


@D3.claim(
    "adamw-falls",
    "> 0",
    unit="pp",
    score=True,
    cites=says("d3.decrease"),
    text=f"AdamW's accuracy falls from {SMALL.label} to {LARGE.label}",
    paper=gap(ROWS[0]["AdamW"], ROWS[2]["AdamW"]),
)
def _falls(runs: Runs) -> pd.Series:
    return runs.best(SMALL.label, "AdamW").test - runs.best(LARGE.label, "AdamW").test
