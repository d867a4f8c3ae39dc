"""Tables 2, D.2 and D.3: optimizers, training techniques and batches on photographs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup, score_claim
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.tables import parse_table, subtract_printed
from spherenorm_experiments.verdict import EQUIVALENCE_MARGIN
from spherenorm_paper.shared.claims import projection
from spherenorm_paper.shared.detection import DETECTED
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.shared.photographs import on_imagenet
from spherenorm_paper.statements import says

SMOOTHED = {"label_smoothing": 0.1}
NESTEROV = {"momentum": 0.9, "nesterov": True}
SGD_RATES, ADAM_RATES = (0.08, 0.4, 2.0), (1e-2, 3e-2, 9e-2)

Row = Mapping[str, Any]


def _arm(name: str, rate: float, decay: float, against: Sequence[str] | None = None) -> Arm:
    """An optimizer with the paper's rate and weight decay; ours is ten times that."""
    sgd = name.startswith("SGD")
    common: dict[str, Any] = NESTEROV if sgd else {}
    embedded, paper = ({**common, "weight_decay": factor * decay} for factor in (10, 1))
    tune = {"lr": SGD_RATES if sgd else ADAM_RATES}
    return Arm(name, tune, embedded, against, {**paper, "lr": rate})


PLAIN_ADAMW: dict[str, Any] = {
    **{"fixed": {"weight_decay": 1e-3}, "paper": {"lr": 1e-3, "weight_decay": 1e-4}}
}
PLAIN_ADAMP = Arm("AdamP", fixed={"weight_decay": 1e-5}, paper={"lr": 1e-3, "weight_decay": 1e-6})
"""The arms of Tables D.2 and D.3, which share the search of the table."""


def _select_integers(row: Row, *names: str) -> dict[str, Any]:
    """The whole numbers of a row."""
    return {name: int(row[name].value) for name in names}


def _condition(row: Row, cites: str, embedded: Setup, real: Setup, **more: Any) -> Condition:
    """A row on glyphs and on ImageNet."""
    options = {"cites": says(cites), "spread": float(row["spread"].value), **more}
    return Condition(row["row"], "classification", embedded, real, **options)


def _in_small_tier(epochs: int | None) -> dict[str, Setup | None]:
    """The small tier with so many epochs, or without a row whose runs could not find the effect."""
    return {"small": Setup(fields={"epochs": epochs}) if epochs else None}


SGD, SGDP, ADAM, ADAMW, ADAMP = T2_ARMS = (
    _arm("SGD", 0.1, 1e-4),
    _arm("SGDP", 0.1, 1e-5),
    _arm("Adam", 1e-3, 1e-4, against=()),
    _arm("AdamW", 1e-3, 1e-4, against=()),
    _arm("AdamP", 1e-3, 1e-6, against=("AdamW",)),
)

T2_ROWS = parse_table("""
    row                 network      batch_size  epochs  smoothed  ours  theirs  cites          SGD         SGDP        Adam        AdamW       AdamP       spread
    ResNet-18           resnet18     256         100     False     None  None    t2.outperform  70.47±0.16  70.70±0.06  68.05±0.06  70.39±0.07  70.82±0.06  2.7
    MobileNetV2         mobilenetv2  1024        150     True      None  None    t2.outperform  71.55±0.14  72.09±0.11  69.32±0.04  71.21±0.16  72.45±0.16  11
    ResNet-50           resnet50     256         100     False     None  None    t2.outperform  76.57±0.06  76.66±0.08  71.87±0.12  76.54±0.06  76.92±0.02  6
    ResNet-50 + CutMix  resnet50     256         150     False     0.5   1.0     t2.cutmix      77.69±0.11  77.77±0.05  76.35±0.08  78.04±0.09  78.22±0.09  13
""")  # noqa: E501
"""Our share of batches with CutMix and the paper's; its top-1 accuracies with their deviations over
three seeds (Table H.1); our spread."""


def _t2_condition(row: Row) -> Condition:
    embedded, paper = (
        {
            **(SMOOTHED if row["smoothed"] else {}),
            **({"cutmix": float(row[share].value)} if row[share] else {}),
        }
        for share in ("ours", "theirs")
    )
    return _condition(
        row, row["cites"],
        Setup({"network": row["network"], **embedded}, {"warmup": 1.0}),
        on_imagenet(row["network"], options=paper, **_select_integers(row, "epochs", "batch_size")),
        tiers=_in_small_tier(9 if row["row"] == "ResNet-18" else None),
        paper_setup=f"{row['row']}, ImageNet", benchmark="ImageNet",
        paper={"accuracy": {arm.name: row[arm.name] for arm in T2_ARMS}},
    )  # fmt: skip


T2_CONDITIONS = [_t2_condition(row) for row in T2_ROWS]
OF_DECAY: dict[str, Any] = {
    "cites": says("t2.adamw"),
    "unit": "pp",
    "equivalence_margin": EQUIVALENCE_MARGIN,
}
T2 = Comparison(
    "t2",
    """Table 2: image classification

    The paper's five optimizers on small networks of its families. Glyphs of fonts that training
    does not have are to be told apart.
    """,
    arms=T2_ARMS,
    tune={"lr": SGD_RATES},
    conditions=T2_CONDITIONS,
    claims=[
        *projection(T2_CONDITIONS, ("SGD", "SGDP"), ("AdamW", "AdamP")),
        *(
            score_claim(condition, ADAM, ADAMW, primary=False, **OF_DECAY)
            for condition in T2_CONDITIONS
        ),
    ],
    first_seed=120,
    measures=DETECTED,
    departures=departures("t2"),
)

D2_ROWS = parse_table("""
    row              network          side  parameters  paper  baseline  AdamP  epochs  spread
    EfficientNet-B0  efficientnet-b0  224   5.3         77.1   77.7      78.1   None    4.3
    EfficientNet-B1  efficientnet-b1  240   7.8         79.1   78.7      79.9   2       1.5
    EfficientNet-B2  efficientnet-b2  260   9.1         80.1   80.4      80.5   None    13
    EfficientNet-B3  efficientnet-b3  300   12.2        81.6   81.5      81.9   None    1.9
    ReXNet-1.0       rexnet-1.0       224   4.8         77.9   77.9      78.1   None    4.5
    ReXNet-1.3       rexnet-1.3       224   6.4         79.5   79.5      79.7   None    6.1
""")
"""Side in pixels, millions of parameters, and top-1 accuracies: of the networks' own papers, as
the paper's authors reproduced them, and with AdamP; our epochs, as these networks take twice as
long as those of Table 2, None where runs could not find the paper's effect; our spread."""

TECHNIQUES = {"augmentation": "randaugment", "stochastic_depth": 0.2, **SMOOTHED}


def _d2_condition(row: Row) -> Condition:
    return _condition(
        row, "d2.effective",
        Setup({"network": row["network"], **TECHNIQUES, "dropout": 0.2}, {"warmup": 0.5}),
        on_imagenet(row["network"], options={**TECHNIQUES, "averaged": 0.9999},
                    regime={"warmup": 5.0}, epochs=400, batch_size=512),
        tiers=_in_small_tier(_select_integers(row, "epochs")["epochs"] if row["epochs"] else None),
        paper_setup=f"{row['row']}, ImageNet",
        paper={
            "accuracy": {name: row[name] for name in ("baseline", "AdamP")},
            "accuracy, by the network's authors": {"baseline": row["paper"]},
        },
    )  # fmt: skip


D2_CONDITIONS = [_d2_condition(row) for row in D2_ROWS]
D2 = Comparison(
    "d2",
    """Table D.2: training with various techniques

    Networks with squeeze-and-excitation, trained with RandAugment, dropout, stochastic depth and
    smoothed labels.
    """,
    arms=[Arm("baseline", recipe="adamw", **PLAIN_ADAMW), PLAIN_ADAMP],
    tune={"lr": [4e-3, 1e-2, 2.5e-2]},
    conditions=D2_CONDITIONS,
    claims=[*projection(D2_CONDITIONS, ("baseline", "AdamP"))],
    first_seed=1220,
    measures=DETECTED,
    departures=departures("d2"),
)

D3_ROWS = parse_table("""
    row        ours  parts  theirs                       batch_size  large parts  AdamW  AdamP  spread
    batch 32   32    1      ResNet-50, ImageNet, batch 4k   4096        16     72.41  73.75  4.8
    batch 96   96    3      ResNet-50, ImageNet, batch 8k   8192        32     69.74  71.36  4.9
    batch 288  288   9      ResNet-50, ImageNet, batch 16k  16384       64     63.79  66.89  2.6
""")  # noqa: E501
"""Our batch, in micro-batches of 32, over which BatchNorm takes its statistics; the paper's, in
micro-batches of 256, with its accuracies; our spread."""


def _d3_condition(row: Row) -> Condition:
    numbers = _select_integers(row, "ours", "parts", "large parts", "batch_size")
    regime = {"warmup": 1.0, "micro_batches": numbers["parts"]}
    return _condition(
        row, "d3.table",
        Setup({"network": "resnet50"}, regime, fields={"batch_size": numbers["ours"]}),
        on_imagenet("resnet50", regime={"micro_batches": numbers["large parts"]}, epochs=100,
                    batch_size=numbers["batch_size"]),
        tiers={"smoke": Setup(fields={"batch_size": 256})},
        paper_setup=row["theirs"],
        paper={"accuracy": {name: row[name] for name in ("AdamW", "AdamP")}},
    )  # fmt: skip


D3_CONDITIONS = [_d3_condition(row) for row in D3_ROWS]
D3 = Comparison(
    "d3",
    """Table D.3: large-batch training

    All batches see the data equally often, so that a batch three times as large has a third of the
    steps. Gradients of micro-batches of one size add up, so that BatchNorm is the same in all, but
    for the last batch of an epoch.
    """,
    arms=[Arm("AdamW", **PLAIN_ADAMW), PLAIN_ADAMP],
    tune={"lr": [1e-2, 2e-2, 4e-2, 8e-2]},
    conditions=D3_CONDITIONS,
    claims=[*projection(D3_CONDITIONS, ("AdamW", "AdamP"))],
    first_seed=1300,
    measures=DETECTED,
    departures=departures("d3"),
)
SMALL, *_, LARGE = D3_ROWS


@D3.claim(
    "gain-grows", "> 0", unit="pp", equivalence_margin=1.0, is_performance=True, spread=5.4,
    cites=says("d3.greater"),
    text="AdamP's gain in accuracy is larger at batch 288 than at batch 32, which stands for the "
    "regular one",
    paper=subtract_printed(
        subtract_printed(LARGE["AdamP"], LARGE["AdamW"]),
        subtract_printed(SMALL["AdamP"], SMALL["AdamW"]),
    ),
)  # fmt: skip
def _grows(runs: Runs) -> pd.Series:
    small, large = (
        runs.selected(label, "AdamP").test - runs.selected(label, "AdamW").test
        for label in ("batch 32", "batch 288")
    )
    return large - small


@D3.claim(
    "adamw-falls", "> 0", unit="pp", is_performance=True, cites=says("d3.decrease"),
    text="AdamW's accuracy falls from batch 32 to batch 288",
    paper=subtract_printed(SMALL["AdamW"], LARGE["AdamW"]),
)  # fmt: skip
def _falls(runs: Runs) -> pd.Series:
    return runs.selected("batch 32", "AdamW").test - runs.selected("batch 288", "AdamW").test
