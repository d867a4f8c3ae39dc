"""Table 1: norms at the first and the last epoch, and scores, on digits and on music tagging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.pictures import DASHES, Picture, color_of, drawn
from experiments.results import (
    Arm,
    Cell,
    Claim,
    Heading,
    Results,
    Row,
    Sample,
    Table,
    Trial,
    combined,
    paired,
    paired_values,
    paper,
    performance,
    printed,
    sample,
    spread,
)
from experiments.studies._bands import Curve, over_rates, over_steps
from experiments.studies._grid import Grid, grid_of
from experiments.studies._paper import says
from experiments.studies._plan import Plan
from experiments.studies._study import Study

__all__ = ["T1"]

SGD_RATES, ADAM_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
DECAY_SCALE = 100
"""Our weight decay per one of the paper's: 240 steps instead of 500,000 would not feel 1e-4."""

DECAYS = {"0": 0.0, "1e-6": 1e-6, "1e-5": 1e-5, "1e-4": 1e-4}
SHARED = ("0", "1e-6", "1e-5")
"""The paper's weight decays, and those that both of its arms have."""

ARMS = {
    name: Arm(name, recipe, {"data": data})
    for name, recipe, data in (
        ("SGD", "sgd", "digits"),
        ("SGDP", "sgdp", "digits"),
        ("AdamW", "adamw", "digits"),
        ("AdamP", "adamp", "digits"),
        ("tagging: AdamW", "adamw", "tagging"),
        ("tagging: AdamP", "adamp", "tagging"),
    )
}
PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"), ("tagging: AdamW", "tagging: AdamP"))

PAPER = {
    ("SGD", "0"): printed("1.35 4.34 67.94"),
    ("SGD", "1e-6"): printed("1.35 4.08 67.89"),
    ("SGD", "1e-5"): printed("1.33 2.70 69.06"),
    ("SGD", "1e-4"): printed("1.21 1.02 70.43"),
    ("SGDP", "0"): printed("1.25 2.10 70.21"),
    ("SGDP", "1e-6"): printed("1.25 1.96 70.27"),
    ("SGDP", "1e-5"): printed("1.25 1.19 70.57"),
    ("AdamW", "0"): printed("1.70 10.41 68.38"),
    ("AdamP", "0"): printed("1.29 3.02 70.55"),
    ("tagging: AdamW", "0"): printed("7.35 11.56 90.86"),
    ("tagging: AdamP", "0"): printed("7.30 7.62 91.19"),
}
"""Norm after the first epoch, norm after the last, score."""


class T1(Study):
    """Table 1: momentum makes norms grow, the projection holds them

    One sweep per optimizer trains every learning rate, weight decay and seed. The norms and paths
    of two optimizers are compared at every learning rate that both have; scores at the rate that is
    best for each on seeds of its own. Growth is the paper's: from the first epoch to the last.
    SGDP's decay of an invariant weight is a tenth of what it is given, by default; `wd ratio 1`
    gives it the whole.
    """

    name = "t1"
    aliases = ("norm-growth",)
    compared = {}  # noqa: RUF012  (every arm has a row)
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
        rows = [row for arm in results.arms for row in _rows(Grid(_item(results, arm)), arm)]
        columns: list[Heading] = [
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
        return [Table("Norms and scores", columns, rows, note), *_at_every_rate(results)]

    def pictures(self, results: Results) -> list[Picture]:
        curves = [
            Curve(arm.label, Grid(_item(results, arm)), _common(results, arm))
            for arm in results.arms
            if arm.settings["data"] == "digits"
        ]
        grid = grid_of(results, ARMS["SGD"])
        bends = [
            Curve(f"SGD, wd {name}", grid, grid.at(lr=0.1, weight_decay=_decay(name)), DASHES[i])
            for i, name in enumerate(DECAYS)
        ]
        ratios = {f"{b} over {a}": _ratios(results, a, b, "path") for a, b in PAIRS}
        colors = {f"{b} over {a}": color_of(ARMS[b].recipe) for a, b in PAIRS[:2]}
        without = "Digits without weight decay at one rate: norm of the scale-invariant rows."
        longer = "Paths on the sphere at every learning rate: longer with the projection above 1."
        return drawn(
            [
                over_steps(curves, "norm", "norm ‖w‖", without),
                over_steps(
                    curves, "effective_step", "effective step ‖Δŵ‖",
                    "The effective step sizes of the same runs.", log_y=True,
                ),
                over_steps(bends, "norm", "norm ‖w‖", "Weight decay bends the norm of SGD."),
                over_rates(ratios, "ratio of the paths", longer, colors),
            ]
        )  # fmt: skip

    def claims(self, results: Results) -> list[Claim]:
        grids = {name: grid_of(results, arm) for name, arm in ARMS.items()}
        return [
            *_claims_of_growth(results, grids),
            *_claims_of_path(results, grids),
            *_claims_of_decay(grids),
            *_claims_of_score(grids),
        ]


def _points(name: str) -> dict[str, Any]:
    if not name.startswith("SGD"):
        return {"lr": list(ADAM_RATES), "weight_decay": [0.0] * len(ADAM_RATES)}
    decays = [(_decay(d), 0.1) for d in (DECAYS if name == "SGD" else SHARED)]
    decays += [(_decay(d), 1.0) for d in SHARED[1:]] if name == "SGDP" else []
    rows = [(rate, decay, ratio) for rate in SGD_RATES for decay, ratio in decays]
    lr, decay, ratio = (list(column) for column in zip(*rows, strict=True))
    more = {"wd_ratio": ratio} if name == "SGDP" else {}
    return {"lr": lr, "weight_decay": decay, **more, "momentum": 0.9, "nesterov": True}


def _decay(name: str) -> float:
    return DECAY_SCALE * DECAYS[name]


def _item(results: Results, arm: Arm) -> Any:
    return grid_of(results, arm).item


def _common(results: Results, arm: Arm) -> int | None:
    """The point without weight decay at the rate that is drawn."""
    grid = grid_of(results, arm)
    rates = [point.get("lr", 0.1) for point in grid.points]
    wanted = 0.1 if 0.1 in rates and 1.0 in rates else 0.01
    return grid.at(lr=wanted, weight_decay=0.0) if rates else None


def _rows(grid: Grid, arm: Arm) -> list[tuple[Any, ...]]:
    """A row for each weight decay of an arm, at the rate that is best there."""
    decays = {(point.get("weight_decay", 0.0), point.get("wd_ratio", 0.1)) for point in grid.points}
    own = arm if arm.substitutes_for is None else arm.substitutes_for
    rows = []
    for decay, ratio in sorted(decays, key=lambda pair: (pair[1], pair[0])):
        choice = grid.tuned(weight_decay=decay, wd_ratio=ratio)
        name = next((n for n in DECAYS if np.isclose(_decay(n), decay)), f"{decay:g}")
        quoted = PAPER.get((own.label, name)) if arm == own and ratio < 1 else None
        first, last, score = quoted or (None, None, None)
        grown = _growth(grid, choice.index)
        mean = sum(grown.values()) / len(grown) if grown else float("nan")
        rows.append(
            (
                f"{arm.label}, wd {name}{', wd ratio 1' if ratio == 1 and decay else ''}",
                choice.cell,
                grid.cell("norm_first_epoch", choice.index),
                grid.cell("norm_last", choice.index),
                Cell(mean, "+.3f", diverged=len(grown.diverged)),
                *(first, last, None if first is None or last is None else last - first),
                grid.cell("test", choice.index, ".2f", spread=True),
                score,
                grid.cell("path", choice.index, ".2f"),
            )
        )
    return rows


def _growth(grid: Grid, index: int | None) -> Sample:
    """From the first epoch to the last, as in the paper's table."""
    last, first = (grid.sample(key, index) for key in ("norm_last", "norm_first_epoch"))
    return paired_values(last, first)


def _ratios(results: Results, a: str, b: str, key: str) -> dict[float, Sample]:
    """b over a at every rate without weight decay; of "growth", of that."""
    theirs, ours = (grid_of(results, ARMS[name]) for name in (a, b))
    found = {}
    for rate in SGD_RATES if a == "SGD" else ADAM_RATES:
        pair = [(grid, grid.at(lr=rate, weight_decay=0.0)) for grid in (ours, theirs)]
        one, other = (_growth(g, i) if key == "growth" else g.sample(key, i) for g, i in pair)
        found[rate] = paired_values(one, other, "ratio")
    return found


def _at_every_rate(results: Results) -> list[Table]:
    rows: list[Row] = []
    for a, b in PAIRS:
        parts = [_ratios(results, a, b, key) for key in ("growth", "path")]
        for rate in parts[0]:
            cells = [_cell(part[rate]) for part in parts]
            if any(cell.known for cell in cells):
                rows.append((f"{b} over {a}", Cell(rate, "g"), *cells))
    note = "Without weight decay. Means over seeds of the ratio of the two."
    columns = ("arms", "lr", "growth", "path on sphere")
    return [Table("At every learning rate", columns, rows, note)] if rows else []


def _cell(values: Sample) -> Cell:
    mean = sum(values.values()) / len(values) if values else None
    return Cell(mean, ".3f", n=len(values), diverged=len(values.diverged))


def _claims_of_growth(results: Results, grids: Mapping[str, Grid]) -> list[Claim]:
    quoted = ("0.85 / 2.99 = 0.28", "1.73 / 8.71 = 0.20", "0.32 / 4.21 = 0.08")
    claims = []
    for (a, b), theirs in zip(PAIRS, quoted, strict=True):
        worst = combined(max, list(_ratios(results, a, b, "growth").values()))
        text = f"{b} grows its norm less than half as much as {a}, at the rate that is worst for it"
        source = says("t1.restrain")
        claims.append(sample(text, worst, "<", 0.5, source=source, paper=theirs, of="ratio"))
        ours, baseline = (_growth(grids[n], grids[n].tuned(weight_decay=0.0).index) for n in (b, a))
        text = f"{b} grows its norm less than half as much as {a}, each at its best rate"
        claims.append(paired(text, ours, baseline, "<", how="ratio", bound=0.5, source=source,
                             paper=theirs, primary=True))  # fmt: skip
    a, b = PAIRS[2]
    adam, adamp = (_growth(grids[name], grids[name].tuned().index) for name in (a, b))
    text = "Tagging: Adam's growth is more than half of 13.2 times AdamP's, each at its best rate"
    claims.append(
        paired(
            text, adam, adamp, ">", how="ratio", bound=6.6, source=says("t1.tagging"), paper="13.2"
        )
    )
    index = grids["AdamW"].tuned().index
    factor = grids["AdamW"].sample("growth_over_moves", index)
    text = "Adam's squared norm grows by more than twice the sum of its squared steps"
    return [*claims, sample(text, factor, ">", 2.0, source=says("2.nesterov"), of="ratio")]


def _claims_of_path(results: Results, grids: Mapping[str, Grid]) -> list[Claim]:
    claims = []
    for a, b in PAIRS:
        every = list(_ratios(results, a, b, "path").values())
        source, least = says("3.steps"), combined(min, every)
        text = f"{b} travels further on the sphere than {a}, at the rate that is worst for it"
        claims.append(sample(text, least, ">", 1.0, source=source, of="ratio", primary=True))
        long, other = (
            grids[name].sample("path", grids[name].tuned(weight_decay=0.0).index) for name in (b, a)
        )
        text = f"{b} travels further on the sphere than {a}, each at its best rate"
        claims.append(paired(text, long, other, ">", how="ratio", source=source))
    return claims


def _claims_of_decay(grids: Mapping[str, Grid]) -> list[Claim]:
    rate = {name: grids[name].tuned(weight_decay=0.0).rate for name in ("SGD", "SGDP")}

    def over(name: str, key: str, decays: tuple[str, ...] = SHARED, ratio: float = 0.1) -> Any:
        grid = grids[name]
        return [
            grid.sample(key, grid.at(lr=rate[name], weight_decay=_decay(d),
                                     wd_ratio=ratio if DECAYS[d] else 0.1))
            for d in decays
        ]  # fmt: skip

    every = tuple(DECAYS)
    norms, scores = (over("SGD", key, every) for key in ("norm_last", "test"))
    growth = [paired_values(*pair) for pair in zip(norms, over("SGD", "norm_first_epoch", every),
                                                   strict=True)]  # fmt: skip
    claims = [
        paired("Weight decay mitigates SGD's growth: with 1e-4 minus without",
               growth[3], growth[0], "<", source=says("t1.mitigates"),
               paper=Cell(-0.19 - 2.99, "+.2f")),
        paired("SGD's score depends on weight decay: 1e-4 minus none", scores[3], scores[0], ">",
               equivalence=1.0, source=says("t1.sensitive"), paper=Cell(70.43 - 67.94, "+.2f"),
               unit="pp", detail="equivalent means within ±1 pp"),
        sample("Across SGD's weight decays a smaller last norm goes with a higher score: the "
               "correlation over four decays", _correlation(norms, scores), "<", 0.0,
               source=says("t1.smaller"), paper="-0.94", performance=True),
    ]  # fmt: skip
    for ratio in (0.1, 1.0):
        text = (
            "SGDP's last norm depends less on weight decay than SGD's: largest over smallest from "
            f"0 to 1e-5, SGDP's relative to SGD's, wd ratio {ratio:g}"
        )
        pair = spread(over("SGDP", "norm_last", SHARED, ratio), "ratio"), spread(norms[:3], "ratio")
        claims.append(
            paired(text, *pair, "<", how="ratio", source=says("t1.stable"),
                   paper="(2.10 / 1.19) / (4.34 / 2.70) = 1.10",
                   detail="the paper's own numbers say so of differences, not of ratios")
        )  # fmt: skip
        text = f"SGDP's score varies by less than 1 pp from 0 to 1e-5, wd ratio {ratio:g}"
        values = spread(over("SGDP", "test", SHARED, ratio))
        claims.append(
            sample(text, values, "<", 1.0, source=says("t1.stable"), paper="0.36", unit="pp")
        )
    return claims


def _correlation(xs: list[Sample], ys: list[Sample]) -> Sample:
    """The correlation over arms of two numbers, for each seed."""
    seeds = sorted(set.intersection(*(set(values) for values in (*xs, *ys))))
    found = {}
    for seed in seeds:
        pair = np.array([[values[seed] for values in part] for part in (xs, ys)])
        if (pair.std(axis=1) > 0).all():
            found[seed] = float(np.corrcoef(pair)[0, 1])
    return Sample(found, performance=True)


def _claims_of_score(grids: Mapping[str, Grid]) -> list[Claim]:
    claims = []
    decays = (("0", "0"), ("0", "0"), ("0", "0"), ("1e-4", "1e-5"))
    for (a, b), (theirs, ours) in zip((*PAIRS, PAIRS[0]), decays, strict=True):
        pair = [
            grids[name].sample(
                "test", grids[name].tuned(weight_decay=_decay(d), wd_ratio=0.1).index
            )
            for name, d in ((b, ours), (a, theirs))
        ]
        quoted = Cell(PAPER[b, ours][2] - PAPER[a, theirs][2], "+.2f")
        at = "" if ours == theirs else f" (wd {ours} and {theirs})"
        text = f"{b} scores higher than {a}{at}, each at its best rate"
        claims.append(performance(text, *pair, source=says("t1.score"), paper=quoted))
    return claims
