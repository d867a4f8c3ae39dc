"""Table G.1: the Grassmann optimizers' hyper-parameters, and a search with equal trials for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

from spherenorm_experiments.analysis import (
    MARGIN,
    Arm,
    Cell,
    Claim,
    Heading,
    Results,
    Row,
    Sample,
    Table,
    Trial,
    at_best,
    at_point,
    grid_of,
    paper,
    slug,
)
from spherenorm_experiments.paper.norms._sweeps import columns, over_rates
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import Picture, color_of, drawn
from spherenorm_experiments.study import Plan, Study


class PaperRow(NamedTuple):
    """A row of the paper's table."""

    alpha: float
    nu: float | None
    euclidean_lr: float
    lr: float
    score: Decimal


def _rows(text: str) -> list[PaperRow]:
    rows = [line.split() for line in text.strip().splitlines()]
    return [
        PaperRow(float(a), None if nu == "None" else float(nu), float(e), float(lr), Decimal(score))
        for a, nu, e, lr, score in rows
    ]


PAPER = {
    "SGDG": _rows("""
        0.1 0.1 0.01 0.2 66.00
        0 0.1 0.01 0.2 67.85
        0.1 None 0.01 0.2 66.35
        0 0.1 0.1 2 63.28
        0 0.1 0.005 0.1 68.73
        0 0.1 0.1 0.1 69.74
        0 0.1 0.3 0.3 68.33
        0 0.1 0.03 0.03 70.39
        0 0.1 0.01 0.01 69.21
    """),
    "AdamG": _rows("""
        0.1 0.1 0.01 0.05 67.40
        0 0.1 0.01 0.05 68.43
        0.1 None 0.01 0.05 67.36
        0 0.1 0.001 0.005 66.97
        0 0.1 0.0002 0.001 55.9
        0 0.1 0.001 0.001 59.36
        0 0.1 0.03 0.15 63.96
        0 0.1 0.003 0.015 69.45
        0 0.1 0.1 0.5 59.39
    """),
}
RECOMMENDED = {"SGDG": 0.2, "AdamG": 0.05}
"""The learning rate on the sphere, by the authors of the optimizers."""

CANDIDATES = {"SGDG": (0.2, 2.0, 0.1), "AdamG": (0.05, 0.005, 0.001)}
"""The rates on the sphere of the paper's four candidates, before it tuned further."""

RATES = {
    "SGDG": (0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 2.0, 5.0),
    "AdamG": (0.001, 0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0),
    **dict.fromkeys(("SGD", "SGDP"), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    **dict.fromkeys(("AdamW", "AdamP"), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3)),
}
"""Eight for every optimizer."""

BASELINE, PROJECTED = {"SGDG": "SGD", "AdamG": "AdamW"}, {"SGDG": "SGDP", "AdamG": "AdamP"}


def _arm(optimizer: str, clip: bool = True) -> Arm:
    label = optimizer if clip else f"{optimizer}, no clip"
    return Arm(label, optimizer.lower(), {"optimizer": optimizer, "clip": clip})


class G1(Study):
    """Table G.1: the Grassmann optimizers need tuning; tuned with equal trials

    Eight learning rates for every optimizer; for the Grassmann ones with and without their
    regularization, and their clipping. Every row starts at norm 1, for which their rates and their
    clipping are meant. The classifier is fixed at its start, so that every weight that trains is on
    the sphere, and there is one learning rate, not two.
    """

    name = "g1"
    first_seed = 300
    departures = (
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("classifier", "trained, with a learning rate of its own", "fixed",
         "all rates and seeds train as one sweep of one recipe"),
        ("start", "the sphere's for SGDG and AdamG, He's for the others", "rows of norm 1 for all",
         "one start for every optimizer"),
        ("on the sphere", "convolutions, chosen by name", "every scale-invariant matrix",
         "the audit finds them"),
        ("learning rates", "nine rows, by hand", "eight for each of all optimizers",
         "equal tuning"),
        ("weight decay", "1e-4 (SGD, AdamW), less for SGDP and AdamP", "none",
         "the sphere has none"),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        settings: dict[Arm, dict[str, Any]] = {}
        for name, rates in RATES.items():
            momentum = {"momentum": 0.9} if name.startswith("SGD") else {}
            if name in PAPER:
                points = columns("alpha lr", list(product((0.0, 0.1), rates)))
                for clip in (True, False):
                    settings[_arm(name, clip)] = {**points, "nu": 0.1 if clip else None, **momentum}
            else:
                nesterov = {"nesterov": True} if momentum else {}
                points = {"lr": list(rates)}
                settings[_arm(name)] = {**points, "weight_decay": 0.0, **momentum, **nesterov}
        return [self.swept(plan, arm, given, sphere=True) for arm, given in settings.items()]

    def tables(self, results: Results) -> list[Table]:
        tables = [*(_at_papers_values(results, name) for name in PAPER), _tuned(results)]
        return [table for table in tables if table.rows]

    def pictures(self, results: Results) -> list[Picture]:
        series: dict[str, dict[float, Sample]] = {}
        colors = {}
        for arm in results.arms:
            grid = grid_of(results, arm)
            tried = {grid.points[i]["lr"]: i for i in grid.where(alpha=0.0)}
            series[arm.label] = {rate: grid.sample("test", i) for rate, i in tried.items()}
            colors[arm.label] = color_of(arm.recipe)
        caption = "Test accuracy against the learning rate, without regularization."
        return drawn([over_rates(series, "accuracy (%)", caption, colors, log_y=False)])

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for name in RECOMMENDED for claim in (*_of_parts(name), *_of_tuned(name))]


def _at_papers_values(results: Results, name: str) -> Table:
    rows: list[Row] = []
    for row in PAPER[name]:
        grid = grid_of(results, _arm(name, clip=row.nu is not None))
        index = grid.at(lr=row.lr, alpha=row.alpha)
        if index is not None:
            *point, theirs = row
            values = (Cell(value, "g", missing="none") for value in point)
            rows.append((*values, grid.cell("test", index, ".2f"), theirs))
    hyper_parameters = ("α", "ν", "lr Euclidean (paper only)", "lr Grassmann")
    headings: list[Heading] = [*hyper_parameters, "accuracy", *paper("accuracy")]
    note = "Rows whose rate on the sphere is one of our eight."
    return Table(f"{name} at the paper's values", headings, rows, note)


def _tuned(results: Results) -> Table:
    rows = []
    for arm in results.arms:
        grid = grid_of(results, arm)
        choice = grid.tuned(alpha=0.0)
        score, norm = grid.cell("test", choice.index, ".2f"), grid.cell("norm_last", choice.index)
        rows.append((arm.label, choice.cell, score, norm))
    headings = ("optimizer", "best lr", "test accuracy", "last norm")
    note = "Of eight rates, chosen on seeds of their own; means over seeds ± standard deviation."
    return Table("Tuned with equal trials", headings, rows, note)


def _of_parts(name: str) -> Iterator[Claim]:
    rate = RECOMMENDED[name]
    with_, without = (at_point(_arm(name), "test", lr=rate, alpha=a) for a in (0.1, 0.0))
    free = at_point(_arm(name, clip=False), "test", lr=rate, alpha=0.1)
    theirs = {(row.alpha, row.nu): row.score for row in PAPER[name] if row.lr == rate}
    yield Claim(
        f"{slug(name)}.regularization",
        f"{name}: the regularization lowers the score at the recommended rate",
        without, ">", with_, cites=says("g.alpha"), unit="pp", equivalent=MARGIN,
        paper=Cell(theirs[0.0, 0.1] - theirs[0.1, 0.1], "+.2f"),
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.clipping",
        f"{name}: the clipping has no effect on the score, within 1 pp, at the recommended rate",
        with_, "=", free, margin=1.0, cites=says("g.nu"), unit="pp",
        paper=Cell(theirs[0.1, 0.1] - theirs[0.1, None], "+.2f"),
    )  # fmt: skip


QUOTED = {
    "SGDG": ("70.39 - 67.85 = +2.54", "70.39 against 70.47", "70.70 - 69.74 = +0.96",
             "70.70 - 70.39 = +0.31"),
    "AdamG": ("69.45 - 68.43 = +1.02", "69.45 against 70.39", "70.82 - 68.43 = +2.39",
              "70.82 - 69.45 = +1.37"),
}  # fmt: skip


def _of_tuned(name: str) -> Iterator[Claim]:
    baseline, ours = BASELINE[name], PROJECTED[name]
    best = {n: at_best(_arm(n), alpha=0.0) for n in (name, baseline, ours)}
    recommended = at_point(_arm(name), "test", lr=RECOMMENDED[name], alpha=0.0)
    candidate = at_best(_arm(name), among=CANDIDATES[name], alpha=0.0)
    yield Claim(
        f"{slug(name)}.tuning",
        f"{name}: tuning its rate raises the score over the recommended rate",
        best[name], ">", recommended, cites=says("g.essential"), unit="pp", equivalent=MARGIN,
        paper=QUOTED[name][0],
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.as-baseline",
        f"Tuned {name} and tuned {baseline} score alike, within 1 pp",
        best[name], "=", best[baseline], margin=1.0, cites=says("g.comparable"), unit="pp",
        paper=QUOTED[name][1], primary=True,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.candidates",
        f"{ours} scores higher than {name} at the best of the paper's three rates",
        best[ours], ">", candidate, cites=says("g.lower"), unit="pp", equivalent=MARGIN,
        paper=QUOTED[name][2],
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.projected",
        f"Tuned {ours} scores higher than tuned {name}",
        best[ours], ">", best[name], cites=says("g.higher"), unit="pp", equivalent=MARGIN,
        paper=QUOTED[name][3], primary=True,
    )  # fmt: skip
