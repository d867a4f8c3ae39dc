"""Table G.1: the Grassmann optimizers' hyper-parameters, and a search with equal trials for all."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import Arm, Condition
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial, select_by_validation
from spherenorm_experiments.tables import (
    Cell,
    Row,
    Table,
    mean_of,
    paper_columns,
    parse_cells,
    parse_table,
    subtract_printed,
)
from spherenorm_experiments.verdict import Claim
from spherenorm_paper.norms import grid
from spherenorm_paper.norms.grid import higher, points

ROWS = parse_table("""
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
"""The regularization, the clipping, the rates elsewhere and on the sphere, and the accuracy. The
first three rows of an optimizer have its authors' rates, the first six those that the paper tried
before it tuned further."""

GRASSMANN = {"SGDG": ("SGD", "SGDP"), "AdamG": ("AdamW", "AdamP")}
"""The baseline of each, and the projected optimizer."""

RATES = {
    "SGDG": (0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 2.0, 5.0),
    "AdamG": (0.001, 0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0),
    **dict.fromkeys(("SGD", "SGDP"), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    **dict.fromkeys(("AdamW", "AdamP"), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3)),
}
"""Eight for every optimizer."""

BEST = dict(zip(("SGD", "SGDP", "AdamW", "AdamP", "SGDG", "AdamG"),
                parse_cells("70.47 70.70 70.39 70.82 70.39 69.45"), strict=True))  # fmt: skip
"""The paper's best accuracies."""

EUCLIDEAN = {"recipe": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
"""Recipe of the weights that are not on the sphere, with the paper's data; a row has their rate."""


def _name(optimizer: str, alpha: float = 0.0, clip: bool = True) -> str:
    return optimizer + ", α = 0.1" * bool(alpha) + ", no clip" * (not clip)


def _arm(optimizer: str, alpha: float = 0.0, clip: bool = True) -> Arm:
    name, rates = _name(optimizer, alpha, clip), RATES[optimizer]
    if optimizer in grid.DECAYS:
        paper_settings = {"weight_decay": grid.DECAYS[optimizer]}
        return grid.arm(optimizer, name, rates, (), paper_settings, weight_decay=0.0)
    momentum: dict[str, Any] = {"momentum": 0.9} if optimizer == "SGDG" else {}
    against, nu = GRASSMANN[optimizer][:1], 0.1 if clip else None
    return grid.arm(optimizer, name, rates, against, alpha=alpha, nu=nu, **momentum)


def _of_row(row: dict[str, Any]) -> str:
    """The arm of a row of the paper's, which is a point of it."""
    return _name(row["optimizer"], float(row["α"].value), row["ν"] is not None)


def _minus(a: Cell, b: Cell) -> str:
    return f"{a} - {b} = {subtract_printed(a, b)}"


def _claims(name: str) -> list[Claim]:
    """The claims about an optimizer."""
    baseline, projected = GRASSMANN[name]
    rows = [row for row in ROWS if row["optimizer"] == name][:6]
    paper_rates = [float(row["sphere"].value) for row in rows]
    regularized, clipped, free = (row["accuracy"] for row in rows[:3])
    start, best = name.lower(), BEST[name]

    def at(runs: Runs, **variant: Any) -> pd.Series:
        return runs.at_point("", _name(name, **variant), lr=paper_rates[0]).test

    def best_tried(runs: Runs) -> pd.Series:
        complete = runs.complete_grid("", name)
        is_paper_rate = np.isclose(
            complete.lr.astype(float).to_numpy()[:, None], paper_rates, rtol=1e-6
        ).any(axis=1)
        return select_by_validation(complete[is_paper_rate]).test

    return [
        higher(f"{start}.regularization", lambda runs: at(runs) - at(runs, alpha=0.1),
               f"{name}: the regularization lowers the score at the recommended rate", "g.alpha",
               paper=subtract_printed(clipped, regularized)),
        points(f"{start}.clipping", "= 0 ± 1",
               lambda runs: at(runs, alpha=0.1) - at(runs, alpha=0.1, clip=False),
               f"{name}: the clipping has no effect on the score, within 1 pp, at the recommended "
               "rate", "g.nu", paper=subtract_printed(regularized, free)),
        higher(f"{start}.tuning", lambda runs: runs.selected("", name).test - at(runs),
               f"{name}: tuning its rate raises the score over the recommended rate",
               "g.essential", paper=_minus(best, clipped)),
        points(f"{start}.as-baseline", "= 0 ± 1",
               lambda runs: grid.gain(runs, "", name, baseline),
               f"Tuned {name} and tuned {baseline} score alike, within 1 pp", "g.comparable",
               paper=f"{best} against {BEST[baseline]}", primary=True),
        higher(f"{start}.candidates",
               lambda runs: runs.selected("", projected).test - best_tried(runs),
               f"{projected} scores higher than {name} at the best of the paper's three rates",
               "g.lower",
               paper=_minus(BEST[projected], max((r["accuracy"] for r in rows), key=str))),
        higher(f"{start}.projected", lambda runs: grid.gain(runs, "", projected, name),
               f"Tuned {projected} scores higher than tuned {name}", "g.higher",
               paper=_minus(BEST[projected], best), primary=True),
    ]  # fmt: skip


class TableG1(grid.Grid):
    """Table G.1, with the scores at the paper's values; with its data, each of its rows."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials = super().trials(plan, runs)
        if not plan.real:
            return trials
        fields = {**grid.RESNET18.fields, "options": grid.RESNET18.options, "probe_every": 100}
        table_trials = [trial for trial in trials if trial.place.arm in grid.DECAYS]
        for row in ROWS:
            elsewhere, sphere, alpha = (float(row[k].value) for k in ("elsewhere", "sphere", "α"))
            point = {"lr": sphere, "alpha": alpha, "nu": row["ν"] and float(row["ν"].value)}
            point |= {"momentum": 0.9} if row["optimizer"] == "SGDG" else {}
            euclidean, place = {**EUCLIDEAN, "lr": elsewhere}, Place("", _of_row(row))
            recipe = row["optimizer"].lower()
            table_trials += self.make_trials(
                plan, place, grid.RESNET18.task, recipe, point, rest=euclidean, **fields
            )
        return table_trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for row in ROWS:
            row_runs = runs.at_point("", _of_row(row), lr=float(row["sphere"].value))
            elsewhere = (item.spec.rest and item.spec.rest["lr"] for item in row_runs.run)
            row_runs = row_runs[
                [rate in (None, float(row["elsewhere"].value)) for rate in elsewhere]
            ]
            if len(row_runs):
                *settings, paper_accuracy = row.values()
                texts = ("None" if cell is None else cell for cell in settings)
                rows.append((*texts, mean_of(row_runs.test, ".2f"), paper_accuracy))
        headings = ("optimizer", "α", "ν", "lr Euclidean (--data)", "lr Grassmann", "accuracy")
        note = "Rows whose rate on the sphere is one of our eight."
        table = Table("At the paper's values", [*headings, *paper_columns("accuracy")], rows, note)
        tables = super().tables(runs)
        if any(item.spec.rest for item in runs):  # of two rates, equal ones are not equal points
            tables = [table for table in tables if table.title != "At equal points"]
        return [*tables, *([table] if rows else [])]


G1 = TableG1(
    "g1",
    """Table G.1: the Grassmann optimizers, at the paper's rates and tuned

    Eight learning rates for every optimizer, and more where the best one is at an end; for the
    Grassmann ones with and without their regularization, and their clipping. Every row starts at
    norm 1, for which their rates and their clipping are meant. The classifier is fixed at its
    start, so that every weight that trains is on the sphere, and there is one learning rate, not
    two.
    """,
    arms=[*map(_arm, grid.DECAYS),
          *(_arm(*variant) for variant in product(GRASSMANN, (0.0, 0.1), (True, False)))],
    tune={"lr": RATES["SGD"]},
    conditions=[
        Condition("", "network", {"sphere": True}, grid.RESNET18, paper_setup="ResNet-18, ImageNet",
                  paper={"score": BEST})
    ],
    claims=[*_claims("SGDG"), *_claims("AdamG")],
    first_seed=300,
)  # fmt: skip
