"""Table G.1: the Grassmann optimizers' hyper-parameters, and a search with equal trials for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import MARGIN, Claim, slug
from spherenorm_experiments.comparison import Arm, Condition
from spherenorm_experiments.paper.norms import grid
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial, choose
from spherenorm_experiments.tables import Row, Table, gap, mean_of, paper, printed, table_of

ROWS = table_of("""
    optimizer  α    ν     elsewhere  sphere  accuracy
    SGDG       0.1  0.1   0.01       0.2     66.00
    SGDG       0    0.1   0.01       0.2     67.85
    SGDG       0.1  None  0.01       0.2     66.35
    SGDG       0    0.1   0.1        2       63.28
    SGDG       0    0.1   0.005      0.1     68.73
    SGDG       0    0.1   0.1        0.1     69.74
    SGDG       0    0.1   0.3        0.3     68.33
    SGDG       0    0.1   0.03       0.03    70.39
    SGDG       0    0.1   0.01       0.01    69.21
    AdamG      0.1  0.1   0.01       0.05    67.40
    AdamG      0    0.1   0.01       0.05    68.43
    AdamG      0.1  None  0.01       0.05    67.36
    AdamG      0    0.1   0.001      0.005   66.97
    AdamG      0    0.1   0.0002     0.001   55.9
    AdamG      0    0.1   0.001      0.001   59.36
    AdamG      0    0.1   0.03       0.15    63.96
    AdamG      0    0.1   0.003      0.015   69.45
    AdamG      0    0.1   0.1        0.5     59.39
""")
"""The regularization, the clipping, the rates elsewhere and on the sphere, and the accuracy."""

GRASSMANN = {"SGDG": ("SGD", "SGDP"), "AdamG": ("AdamW", "AdamP")}
"""The baseline of each, and the projected optimizer."""

RATES = {
    "SGDG": (0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 2.0, 5.0),
    "AdamG": (0.001, 0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0),
    **dict.fromkeys(("SGD", "SGDP"), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    **dict.fromkeys(("AdamW", "AdamP"), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3)),
}
"""Eight for every optimizer."""

BEST = {"SGD": "70.47", "SGDP": "70.70", "AdamW": "70.39", "AdamP": "70.82", "SGDG": "70.39",
        "AdamG": "69.45"}  # fmt: skip
"""The paper's best accuracies."""

EUCLIDEAN = {"recipe": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
"""Of the weights that are not on the sphere, with the paper's data; their rate is a row's own."""


def _name(optimizer: str, alpha: float = 0.0, clip: bool = True) -> str:
    return optimizer + ", α = 0.1" * bool(alpha) + ", no clip" * (not clip)


def _arm(optimizer: str, alpha: float = 0.0, clip: bool = True) -> Arm:
    name, rates = _name(optimizer, alpha, clip), RATES[optimizer]
    if optimizer in grid.DECAYS:
        theirs = {"weight_decay": grid.DECAYS[optimizer]}
        return grid.arm(optimizer, name, rates, (), theirs, weight_decay=0.0)
    momentum: dict[str, Any] = {"momentum": 0.9} if optimizer == "SGDG" else {}
    against = GRASSMANN[optimizer][:1]
    return grid.arm(
        optimizer, name, rates, against, alpha=alpha, nu=0.1 if clip else None, **momentum
    )


def _row_name(row: Mapping[str, Any]) -> str:
    """The arm of a row of the paper's, with its data."""
    rates = f"lr {row['elsewhere']} and {row['sphere']}"
    return f"{row['optimizer']}, α {row['α']}, ν {row['ν']}, {rates}"


def _best(runs: Runs, name: str, among: Collection[float]) -> pd.Series:
    """The score of each seed at its best one of some rates."""
    own = runs.of("", name)
    known = [bool(np.isclose(lr, [*among], rtol=1e-6).any()) for lr in own.lr]
    return choose(own[np.array(known, dtype=bool)]).test


def _claims(
    name: str, rate: float, candidates: Collection[float], quoted: tuple[str, str, str, str]
) -> list[Claim]:
    """The claims about an optimizer.

    Args:
        rate: on the sphere, by the authors of the optimizer.
        candidates: the rates on the sphere of the paper's four, before it tuned further.
    """
    regularized, clipped, free = (row["accuracy"] for row in ROWS if row["optimizer"] == name
                                  if float(row["sphere"].value) == rate)  # fmt: skip
    baseline, ours = GRASSMANN[name]
    given: dict[str, Any] = {"unit": "pp", "score": True}
    higher: dict[str, Any] = {**given, "margin": MARGIN}

    def at(runs: Runs, **variant: Any) -> pd.Series:
        return runs.at("", _name(name, **variant), lr=rate).test

    return [
        Claim(f"{slug(name)}.regularization", "> 0", lambda runs: at(runs) - at(runs, alpha=0.1),
              f"{name}: the regularization lowers the score at the recommended rate",
              says("g.alpha"), paper=gap(clipped, regularized), **higher),
        Claim(f"{slug(name)}.clipping", "= 0 ± 1",
              lambda runs: at(runs, alpha=0.1) - at(runs, alpha=0.1, clip=False),
              f"{name}: the clipping has no effect on the score, within 1 pp, at the recommended "
              "rate", says("g.nu"), paper=gap(regularized, free), **given),
        Claim(f"{slug(name)}.tuning", "> 0", lambda runs: runs.best("", name).test - at(runs),
              f"{name}: tuning its rate raises the score over the recommended rate",
              says("g.essential"), paper=quoted[0], **higher),
        Claim(f"{slug(name)}.as-baseline", "= 0 ± 1",
              lambda runs: grid.gain(runs, "", name, baseline),
              f"Tuned {name} and tuned {baseline} score alike, within 1 pp", says("g.comparable"),
              paper=quoted[1], primary=True, **given),
        Claim(f"{slug(name)}.candidates", "> 0",
              lambda runs: runs.best("", ours).test - _best(runs, name, candidates),
              f"{ours} scores higher than {name} at the best of the paper's three rates",
              says("g.lower"), paper=quoted[2], **higher),
        Claim(f"{slug(name)}.projected", "> 0", lambda runs: grid.gain(runs, "", ours, name),
              f"Tuned {ours} scores higher than tuned {name}", says("g.higher"), paper=quoted[3],
              primary=True, **higher),
    ]  # fmt: skip


class TableG1(grid.Grid):
    """Table G.1, with the scores at the paper's values; with its data, each of its rows."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        made = super().trials(plan, runs)
        if not plan.real:
            return made
        fields = {**grid.RESNET18.fields, "options": grid.RESNET18.options, "probe_every": 100}
        kept = [trial for trial in made if trial.place.arm in grid.DECAYS]
        for row in ROWS:
            elsewhere, sphere, alpha = (float(row[k].value) for k in ("elsewhere", "sphere", "α"))
            point = {"lr": sphere, "alpha": alpha, "nu": row["ν"] and float(row["ν"].value)}
            if row["optimizer"] == "SGDG":
                point["momentum"] = 0.9
            rest, place = {**EUCLIDEAN, "lr": elsewhere}, Place("", _row_name(row))
            recipe = row["optimizer"].lower()
            kept += self.seeded(plan, place, grid.RESNET18.task, recipe, point, rest=rest, **fields)
        return kept

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for row in ROWS:
            label = _name(row["optimizer"], float(row["α"].value), row["ν"] is not None)
            of_both = (
                runs.at("", name, lr=float(row["sphere"].value)).test
                for name in (_row_name(row), label)  # with the paper's data, and embedded
            )
            if scores := [each for each in of_both if len(each)]:
                *settings, theirs = row.values()
                shown = ("None" if cell is None else cell for cell in settings)
                rows.append((*shown, mean_of(scores[0], ".2f"), theirs))
        headings = ("optimizer", "α", "ν", "lr Euclidean (--data)", "lr Grassmann", "accuracy")
        note = "Rows whose rate on the sphere is one of our eight."
        table = Table("At the paper's values", [*headings, *paper("accuracy")], rows, note)
        return [*super().tables(runs), *([table] if rows else [])]


G1 = TableG1(
    "g1",
    """Table G.1: the Grassmann optimizers need tuning; tuned with equal trials

    Eight learning rates for every optimizer; for the Grassmann ones with and without their
    regularization, and their clipping. Every row starts at norm 1, for which their rates and their
    clipping are meant. The classifier is fixed at its start, so that every weight that trains is on
    the sphere, and there is one learning rate, not two.
    """,
    arms=[
        *map(_arm, grid.DECAYS),
        *(
            _arm(name, alpha, clip)
            for name in GRASSMANN
            for alpha in (0.0, 0.1)
            for clip in (True, False)
        ),
    ],
    tune={"lr": RATES["SGD"]},
    conditions=[
        Condition(
            "",
            "network",
            {"sphere": True},
            grid.RESNET18,
            theirs="ResNet-18, ImageNet",
            paper={"score": {name: printed(score)[0] for name, score in BEST.items()}},
        )
    ],
    claims=[
        *_claims(
            "SGDG",
            0.2,
            (0.2, 2.0, 0.1),
            (
                "70.39 - 67.85 = +2.54",
                "70.39 against 70.47",
                "70.70 - 69.74 = +0.96",
                "70.70 - 70.39 = +0.31",
            ),
        ),
        *_claims(
            "AdamG",
            0.05,
            (0.05, 0.005, 0.001),
            (
                "69.45 - 68.43 = +1.02",
                "69.45 against 70.39",
                "70.82 - 68.43 = +2.39",
                "70.82 - 69.45 = +1.37",
            ),
        ),
    ],
    first_seed=300,
)
