"""Table 1: norms at the first and the last epoch, and scores, on digits and on music tagging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Claim,
    Grid,
    Heading,
    Results,
    Row,
    Table,
    Trial,
    grid_of,
    mean_of,
    paper,
)
from spherenorm_experiments.paper.norms._growth import (
    ADAM_RATES,
    ARMS,
    DECAY_SCALE,
    DECAYS,
    NORMS,
    PAIRS,
    PAPER,
    SGD_RATES,
    SHARED,
    claims_of_growth,
    decay_of,
    growth_of,
    ratios_of,
)
from spherenorm_experiments.paper.norms._sweeps import STEP, Curve, decayed, over_rates, over_steps
from spherenorm_experiments.report.pictures import DASHES, Picture, color_of, drawn
from spherenorm_experiments.study import Plan, Study


class T1(Study):
    """Table 1: momentum makes norms grow, the projection holds them

    All learning rates, weight decays and seeds of an optimizer train at once. The norms and paths
    of two optimizers are compared at every learning rate that both have; scores at the rate that is
    best for each on seeds of its own. Growth is the paper's: from the first epoch to the last.
    SGDP's decay of an invariant weight is a tenth of what it is given, by default; `wd ratio 1`
    gives it the whole.
    """

    name = "t1"
    departures = (
        ("data", "ImageNet; MagnaTagATune", "1,797 digits of 8 x 8 pixels; synthetic clips",
         "a small machine"),
        ("network", "ResNet-18; Harmonic CNN", "three hidden layers with BatchNorm",
         "all rates and seeds train as one sweep"),
        ("learning rate", "0.1 (SGD), 0.001 (Adam)", "best of six for each arm",
         "equal tuning for every optimizer"),
        ("batch, length", "256, 100 epochs", "64, 15 epochs", "the data are a thousandth"),
        ("weight decay", "1e-6 to 1e-4", "100 times that", "a run is 2000 times shorter"),
        ("norm", "not defined", "mean of the 2-norms of all scale-invariant rows", ""),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [
            self.swept(plan, arm, _points(name), data=arm.settings["data"])
            for name, arm in ARMS.items()
        ]

    def tables(self, results: Results) -> list[Table]:
        rows = [row for arm in results.arms for row in _rows(grid_of(results, arm), arm)]
        headings: list[Heading] = [
            *("arm", "best lr", "norm¹", "normˡᵃˢᵗ", "growth"),
            *paper("norm¹", "normˡᵃˢᵗ", "growth"),
            "score",
            *paper("score"),
            "path on sphere",
        ]
        note = (
            "At the best rate of each arm; means over seeds, scores ± standard deviation. Growth "
            "is the last norm minus that after the first epoch. Score: test accuracy on digits, "
            "ROC-AUC on tagging; ImageNet top-1 and ROC-AUC in the paper. Weight decay is the "
            f"paper's, ours is {DECAY_SCALE} times that."
        )
        return [Table("Norms and scores", headings, rows, note), *_at_every_rate(results)]

    def headline(self, results: Results) -> Table:
        """The optimizers on digits, without weight decay."""
        rows: list[Row] = []
        for name in ("SGD", "SGDP", "AdamW", "AdamP"):
            grid = grid_of(results, ARMS[name])
            index = grid.tuned(weight_decay=0.0, wd_ratio=0.1).index
            first, last = (grid.cell(key, index, spread=False) for key in reversed(NORMS))
            grown = replace(mean_of(growth_of(grid, index), "+.3f"), spread=None)
            score, path = grid.cell("test", index, ".2f"), grid.cell("path", index, ".2f")
            rows.append((name, first, last, grown, score, replace(path, spread=None)))
        headings = ("optimizer", "norm¹", "normˡᵃˢᵗ", "growth", "score", "path on sphere")
        return Table("Without weight decay, each at its best rate", headings, rows)

    def pictures(self, results: Results) -> list[Picture]:
        curves = [
            Curve(arm.label, grid_of(results, arm), _common(results, arm))
            for arm in results.arms
            if arm.settings["data"] == "digits"
        ]
        grid = grid_of(results, ARMS["SGD"])
        bends = [
            Curve(f"SGD, wd {name}", grid, grid.at(lr=0.1, weight_decay=decay_of(name)), DASHES[i])
            for i, name in enumerate(DECAYS)
        ]
        ratios = {f"{b} over {a}": ratios_of(results, a, b, "path") for a, b in PAIRS}
        colors = {f"{b} over {a}": color_of(ARMS[b].recipe) for a, b in PAIRS[:2]}
        without = "Digits without weight decay at one rate: norm of the scale-invariant rows."
        steps = "The effective step sizes of the same runs."
        longer = "Paths on the sphere at every learning rate: longer with the projection above 1."
        return drawn(
            [
                over_steps(curves, "norm", "norm ‖w‖", without),
                over_steps(curves, "effective_step", STEP, steps, log_y=True),
                over_steps(bends, "norm", "norm ‖w‖", "Weight decay bends the norm of SGD."),
                over_rates(ratios, "ratio of the paths", longer, colors),
            ]
        )

    @property
    def claims(self) -> Sequence[Claim]:
        return claims_of_growth()


def _points(name: str) -> dict[str, Any]:
    if not name.startswith("SGD"):
        return {"lr": list(ADAM_RATES), "weight_decay": [0.0] * len(ADAM_RATES)}
    decays = [(decay_of(d), 0.1) for d in (DECAYS if name == "SGD" else SHARED)]
    decays += [(decay_of(d), 1.0) for d in SHARED[1:]] if name == "SGDP" else []
    return decayed(name, SGD_RATES, decays)


def _common(results: Results, arm: Arm) -> int | None:
    """The point without weight decay at the rate that is drawn."""
    grid = grid_of(results, arm)
    rates = [point.get("lr", 0.1) for point in grid.points]
    wanted = 0.1 if 0.1 in rates and 1.0 in rates else 0.01
    return grid.at(lr=wanted, weight_decay=0.0) if rates else None


def _rows(grid: Grid, arm: Arm) -> list[tuple[Any, ...]]:
    """A row for each weight decay of an arm, at the rate that is best there."""
    decays = {(point.get("weight_decay", 0.0), point.get("wd_ratio", 0.1)) for point in grid.points}
    rows = []
    for decay, ratio in sorted(decays, key=lambda pair: (pair[1], pair[0])):
        choice = grid.tuned(weight_decay=decay, wd_ratio=ratio)
        name = next((n for n in DECAYS if np.isclose(decay_of(n), decay)), f"{decay:g}")
        quoted = PAPER.get((arm.label, name)) if ratio < 1 else None
        first, last, score = quoted or (None, None, None)
        grown = growth_of(grid, choice.index)
        rows.append(
            (
                f"{arm.label}, wd {name}{', wd ratio 1' if ratio == 1 and decay else ''}",
                choice.cell,
                grid.cell("norm_first_epoch", choice.index),
                grid.cell("norm_last", choice.index),
                mean_of(grown, "+.3f"),
                *(first, last, None if first is None or last is None else last - first),
                grid.cell("test", choice.index, ".2f"),
                score,
                grid.cell("path", choice.index, ".2f"),
            )
        )
    return rows


def _at_every_rate(results: Results) -> list[Table]:
    rows: list[Row] = []
    for a, b in PAIRS:
        parts = [ratios_of(results, a, b, key) for key in ("growth", "path")]
        for rate in parts[0]:
            cells = [mean_of(part[rate], ".3f") for part in parts]
            if any(cell.known or cell.diverged for cell in cells):
                rows.append((f"{b} over {a}", Cell(rate, "g"), *cells))
    note = "Without weight decay. Means over seeds of the ratio of the two, ± deviation."
    headings = ("arms", "lr", "growth", "path on sphere")
    return [Table("At every learning rate", headings, rows, note)] if rows else []
