"""Table 3: object detection with CenterNet and SSD, from a random and from a pretrained start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.tables import parse_table
from spherenorm_paper.shared.claims import projection
from spherenorm_paper.shared.detection import DETECTED
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.statements import says

ROWS = parse_table("""
    detector   start       Adam   AdamP  theirs               spread  rate    epochs  schedule
    centernet  random      26.57  27.11  CenterNet, random    0.9     2.5e-4  140     cosine
    centernet  pretrained  28.29  29.05  CenterNet, ImageNet  1.1     2.5e-4  140     cosine
    ssd        random      27.10  27.97  SSD, random          0.4     1e-4    110     step-70-90
    ssd        pretrained  28.39  28.67  SSD, ImageNet        2.4     1e-4    110     step-70-90
""")
"""COCO's average precision, our spread, and the paper's budget of each detector (Appendix E.3)."""


def _condition(row: Mapping[str, Any]) -> Condition:
    options = {"detector": row["detector"], "start": row["start"]}
    fields = {"epochs": int(row["epochs"].value), "batch_size": 64, "schedule": row["schedule"]}
    return Condition(
        f"{row['detector']} {row['start']}",
        "detection",
        options,
        Setup({**options, "data_set": "coco"}, {}, {"lr": float(row["rate"])}, fields),
        tiers={"smoke": Setup({"side": 16})},
        paper_setup=row["theirs"],
        benchmark="MS-COCO",
        paper={"AP": {name: row[name] for name in ("Adam", "AdamP")}},
        cites=says("t3.boosts"),
        spread=float(row["spread"].value),
    )


CONDITIONS = [_condition(row) for row in ROWS]
DECAY = {"weight_decay": 1e-5}
ADAM, ADAMP = (Arm(name, fixed=DECAY, paper=DECAY) for name in ("Adam", "AdamP"))

T3 = Comparison(
    "t3",
    """Table 3: object detection

    CenterNet and SSD train from a random trunk and from one that is pretrained on classification.
    The score is COCO's average precision.

    Most of SSD's weights are not scale-invariant: its heads, and the convolutions between VGG and
    them, have no BatchNorm. In CenterNet, transposed convolutions before BatchNorm have their units
    on the second dimension, so that only the layer view finds them; the convolutions that decide
    the offsets of deformable ones are not invariant.
    """,
    arms=[ADAM, ADAMP],
    tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
    conditions=CONDITIONS,
    claims=[*projection(CONDITIONS, ("Adam", "AdamP"))],
    first_seed=300,
    seeds={"evidence": 6},
    measures=DETECTED,
    departures=departures("t3"),
)
