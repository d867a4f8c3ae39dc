"""Table D.2: EfficientNet and ReXNet, trained with augmentation, dropout and stochastic depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.paper.shared.claims import projection
from spherenorm_experiments.paper.shared.detection import DETECTED
from spherenorm_experiments.paper.shared.photographs import GLYPHS, on_glyphs, on_imagenet
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.tables import table_of

ROWS = table_of("""
    row              size  parameters  paper  baseline  AdamP  spread
    EfficientNet-B0  224   5.3         77.3   77.7      78.1   4.3
    EfficientNet-B1  240   7.8         79.2   78.7      79.9   1.5
    EfficientNet-B2  260   9.1         80.3   80.4      80.5   13
    EfficientNet-B3  300   12.2        81.7   81.5      81.9   1.9
    ReXNet-1.0       224   4.8         77.9   77.9      78.1   4.5
    ReXNet-1.3       224   6.4         79.5   79.5      79.7   6.1
""")
"""Side in pixels, millions of parameters, and top-1 accuracies: of the networks' own papers, as
the paper's authors reproduced them, and with AdamP; our spread."""

COMMON = {"augmentation": "randaugment", "stochastic_depth": 0.2, "label_smoothing": 0.1}


def _condition(row: Mapping[str, Any]) -> Condition:
    label = row["row"]
    network = label.lower()
    ours, theirs = {**COMMON, "dropout": 0.2}, {**COMMON, "averaged": 0.9999}
    warm = {"warmup": 5.0}
    return Condition(
        label,
        "classification",
        on_glyphs(network, options=ours, regime={"warmup": 0.5}),
        on_imagenet(network, options=theirs, regime=warm, epochs=400, batch_size=512),
        # These networks take twice as long as those of Table 2.
        tiers={"small": Setup(fields={"epochs": 2}) if label == "EfficientNet-B1" else None},
        theirs=f"{label}, ImageNet",
        paper={"accuracy": {name: row[name] for name in ("baseline", "AdamP")}},
        cites=says("d2.effective"),
        spread=float(row["spread"].value),
    )


CONDITIONS = [_condition(row) for row in ROWS]
BASELINE = Arm(
    "baseline",
    fixed={"weight_decay": 1e-3},
    paper={"lr": 1e-3, "weight_decay": 1e-4},
    recipe="adamw",
)
ADAMP = Arm("AdamP", fixed={"weight_decay": 1e-5}, paper={"lr": 1e-3, "weight_decay": 1e-6})
DEPARTURES = (
    *GLYPHS,
    ("baseline", "the optimizer of the codebase, not named", "AdamW, with --data too",
     "the projection is then the only difference"),
    ("networks", "16 to 26 blocks, 4.8 to 12.2 million parameters", "2 to 4 blocks of the same "
     "kinds, widened and deepened by the same factors", "a small machine"),
    ("parameters of ReXNet-1.3", "6.4 million", "7.56 million with --data",
     "what its authors released"),
    ("techniques", "augmentation, stochastic depth, dropout, by the codebase",
     "RandAugment (two operations of magnitude 4; 9 with --data), 0.2, 0.2; smoothed labels",
     "their settings are not given"),
    ("batch, length, warm-up", "not given", "32, 2 epochs, half an epoch; with --data 512, 400 "
     "epochs, 5 epochs", "the former of a small machine; batch and epochs are ReXNet's own"),
    ("weights (--data)", "not given", "averaged with decay 0.9999", "ReXNet's own"),
    ("training set (--data)", "all", "without 10 images of each class", "see Table 2"),
    ("learning rate", "not given", "tuned; with --data 0.001",
     "equal tuning for every optimizer"),
)  # fmt: skip

D2 = Comparison(
    "d2",
    """Table D.2: training with various techniques

    Networks with squeeze-and-excitation, trained with RandAugment, dropout, stochastic depth and
    smoothed labels.
    """,
    arms=[BASELINE, ADAMP],
    tune={"lr": [4e-3, 1e-2, 2.5e-2]},
    conditions=CONDITIONS,
    claims=[*projection(CONDITIONS, ("baseline", "AdamP"))],
    first_seed=1220,
    measures=DETECTED,
    departures=DEPARTURES,
)
