"""Table C.1: the threshold of the scale-invariance test, also where the test errs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from spherenorm_experiments.analysis import (
    OURS,
    Arm,
    Cell,
    Claim,
    Grid,
    Heading,
    Results,
    Row,
    Sample,
    Side,
    Statement,
    Table,
    Trial,
    combined,
    derive,
    grid_of,
    mean,
    paper,
    printed,
    slug,
    spread,
)
from spherenorm_experiments.paper.norms._sweeps import at_rate_of, columns, of_all
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import Picture, drawn, empty_figure, rounded
from spherenorm_experiments.study import Plan, Study

PAPER = {
    1.0: printed("86.64 100 70.74"),
    0.2: printed("100 100 70.83"),
    0.1: printed("100 100 70.81"),
    0.05: printed("100 100 70.78"),
    0.02: printed("100 99.94 70.81"),
    0.01: printed("100 97.73 70.66"),
}
"""For each delta: scale-variant weights detected, scale-invariant ones detected, accuracy."""

DELTAS = (*PAPER, 1e-3, 1e-4, 1e-5, 1e-6)
RATES = (3e-3, 1e-2, 3e-2)

PAPER_COSINES = {"variant": (0.0028, 0.5660), "invariant": (5.5e-10, 4.4e-6)}

SHARE = 99.9
"""Percent of weights and steps that count as all of them."""

USUAL: dict[str, Any] = {"delta": 0.1}
"""The threshold at which the rate is chosen."""

NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"width": 64},
    "half precision": {"precision": "float16"},
    "prenorm": {"variant": "prenorm"},
}
"""Options of the task."""

COLORS = dict(zip(NETWORKS, ("#4c78a8", "#1b9e9e", "#e4572e", "#2e8b57"), strict=True))


def _arm(network: str) -> Arm:
    return Arm(network, "adamp", {"network": network})


class C1(Study):
    """Table C.1: the sensitivity of the scale-invariance test to its threshold

    AdamP trains with ten thresholds on networks where the test is easy, as the paper's, and where
    it errs: with gradients in half precision, with more inputs to a row, and with weights before a
    normalization that nearly all are scale-variant. Detection is read off the steps themselves: a
    step that was projected has no radial part. So detection and accuracy are of the same runs. A
    random gradient passes the test's layer view in 2 Phi(delta) - 1 of all steps (8 % at 0.1).
    """

    name = "c1"
    first_seed = 600
    departures = (
        ("data, network", "ImageNet, ResNet-18", "digits; four small networks",
         "a small machine; the paper's network has one scale-variant matrix"),
        ("thresholds", "1 to 0.01", "1 to 0.000001", "float32 does not err in the paper's range"),
        ("learning rate", "0.001", "best of three at 0.1", "Adam's best here is larger"),
        ("detection", "not defined", "projected steps, in percent of weights and steps after "
         "the tenth", "the first steps have no radial part"),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        deltas = (0.1, *(delta for delta in DELTAS if delta != 0.1))
        rows = [(rate, delta) for delta in deltas for rate in RATES]
        setting = {**columns("lr delta", rows), "weight_decay": 0.0}
        return [self.swept(plan, _arm(name), setting, **more) for name, more in NETWORKS.items()]

    def tables(self, results: Results) -> list[Table]:
        rows: list[Row] = []
        for arm in results.arms:
            grid = grid_of(results, arm)
            for delta in DELTAS if grid.items else ():
                index = _at(grid, delta)
                keys = ("projected_variant", "projected_invariant", "test")
                variant, *others = (grid.cell(key, index, ".2f") for key in keys)
                cells = (_left_alone(variant), *others)
                theirs = PAPER.get(delta) if arm == _arm("plain") else None
                beside = zip(cells, theirs or (None,) * 3, strict=True)
                rows.append(
                    (f"{arm.label}, δ = {delta:g}", *(cell for pair in beside for cell in pair))
                )
        headings: list[Heading] = [
            *("network", "variant left alone"),
            *paper("variant"),
            "invariant projected",
            *paper("invariant"),
            "accuracy",
            *paper("accuracy"),
        ]
        note = "Percent of weights and steps that the test gets right: means ± deviation."
        tables = [Table("Detection and accuracy", headings, rows, note), _cosines(results)]
        return [table for table in tables if table.rows]

    def pictures(self, results: Results) -> list[Picture]:
        figure = empty_figure("threshold δ", "taken for invariant", log_x=True, log_y=True)
        law = np.geomspace(1e-3, 1, 25)
        figure.add_scatter(
            x=rounded(law), y=rounded(_false_positives(d) for d in law),
            name="law: 2 Φ(δ) - 1", line={"color": "#888", "dash": "dash"},
        )  # fmt: skip
        for arm in results.arms:
            grid = grid_of(results, arm)
            for kind, dash in (("variant", "dot"), ("invariant", "solid")):
                shares = {
                    delta: mean(grid.sample(f"projected_{kind}", _at(grid, delta)).values()) / 100
                    for delta in sorted(DELTAS)
                }
                known = {delta: share for delta, share in shares.items() if share > 0}
                figure.add_scatter(
                    x=rounded(known), y=rounded(known.values()), name=f"{arm.label}, {kind}",
                    mode="lines+markers", line={"color": COLORS[arm.label], "dash": dash},
                )  # fmt: skip
        caption = (
            "The share of weights and steps that are projected: of scale-invariant weights (solid) "
            "all should be, of the others (dotted) none; and the law for random gradients."
        )
        return drawn([Picture(figure, caption)])

    @property
    def claims(self) -> Sequence[Claim]:
        return [*_of_detection(), *_of_errors(), *_of_cosines(), _of_accuracy()]


def _false_positives(delta: float) -> float:
    """The share of random gradients that pass the layer view: 2 Phi(delta) - 1, by a law."""
    from spherenorm_theory import false_positive_rate  # sympy takes a second to import

    return false_positive_rate(delta)


def _at(grid: Grid, delta: float) -> int | None:
    """The point at the rate that is best at 0.1."""
    return grid.at(lr=grid.tuned(**USUAL).rate, delta=delta)


def _left_alone(cell: Cell) -> Cell:
    return replace(cell, value=None if cell.number is None else 100 - float(cell.number))


def _right(network: str, delta: float, kind: str) -> Side:
    """Percent of weights and steps that are right, by seed."""
    projected = at_rate_of(_arm(network), USUAL, f"projected_{kind}", delta=delta)
    if kind == "invariant":
        return projected
    return derive(partial(Sample.map, function=lambda share: 100 - share), projected)


def _cosines(results: Results) -> Table:
    rows: list[Row] = []
    for arm in results.arms:
        if ends := _ends(grid_of(results, arm)):
            cells = [Cell(None, ".2g", interval=ends[kind]) for kind in PAPER_COSINES]
            rows.append((arm.label, *cells, "", ""))
    theirs = [Cell(None, ".2g", interval=ends) for ends in PAPER_COSINES.values()]
    rows += [("the paper's ResNet-18", "", "", *theirs)] if rows else []
    headings: list[Heading] = [
        *("network", "scale-variant", "scale-invariant"),
        *paper("variant", "invariant"),
    ]
    note = "|cos(w, g)| at the end of training: of a whole variant weight, of an invariant's rows."
    return Table("Cosines of weight and gradient, 99 % of them", headings, rows, note)


def _ends(grid: Grid) -> dict[str, tuple[float, float]]:
    """The range of 99 % of the cosines of each kind, at the first point; empty without a run."""
    found: dict[str, tuple[float, float]] = {}
    for kind in PAPER_COSINES if grid.runs else ():
        cosines = [item.arrays[f"cosines_{kind}"] for item in grid.runs[0].values()]
        low, high = np.quantile(cosines, (0.005, 0.995))
        found[kind] = float(low), float(high)
    return found


PERCENT: dict[str, Any] = {"unit": "%", "limits": (0.0, 100.0)}


def _of_detection() -> Iterator[Claim]:
    for kind, said in (("invariant", "projects every invariant weight"),
                       ("variant", "leaves every variant weight alone")):  # fmt: skip
        for name in ("plain", "prenorm"):
            every = [_right(name, delta, kind) for delta in (0.2, 0.1, 0.05)]
            yield Claim(
                f"detection.{kind}.{name}",
                f"From δ = 0.05 to 0.2 the test {said} ({name}; more than {SHARE} % right)",
                of_all(partial(combined, min), every), ">", SHARE,
                cites=says("c.discriminates" if name == "plain" else "3.delta"),
                paper="100 %", primary=name == "plain", **PERCENT,
            )  # fmt: skip
    yield Claim(
        "detection.separates",
        f"δ = 0.1 separates the two kinds on a network of mostly variant weights ({SHARE} %)",
        _right("prenorm", 0.1, "variant"), ">", SHARE, cites=says("c.suitable"), **PERCENT,
    )  # fmt: skip


class Error(NamedTuple):
    """A claim that the test errs on a network at a threshold."""

    text: str
    network: str
    delta: float
    kind: str = "invariant"
    cites: Statement = OURS
    paper: str = ""


ERRORS = (
    Error("At δ = 1 the test takes variant weights for invariant", "plain", 1.0, "variant",
          says("c.delta1"), "86.64 %"),
    Error("At δ = 0.01 the test misses invariant weights", "plain", 0.01, "invariant",
          says("c.delta.01"), "97.73 %"),
    Error("At δ = 0.01 it misses them with more inputs to a row", "wide", 0.01),
    Error("At δ = 0.01 it misses them with gradients in half precision", "half precision", 0.01),
    Error("At δ = 0.1 it misses them with gradients in half precision", "half precision", 0.1),
)  # fmt: skip


def _of_errors() -> Iterator[Claim]:
    for text, name, delta, kind, source, theirs in ERRORS:
        yield Claim(
            f"errors.{slug(name)}.delta-{delta:g}",
            f"{text}: less than {SHARE} % right ({name})",
            _right(name, delta, kind), "<", SHARE, cites=source, paper=theirs, **PERCENT,
        )  # fmt: skip


def _of_cosines() -> Iterator[Claim]:
    for name, source in (("plain", says("c.cosines")), ("half precision", OURS)):
        yield Claim(
            f"cosines-apart.{slug(name)}",
            "The cosines of the two kinds are apart: log₁₀ of the lower end of the variant over "
            f"the upper end of the invariant ({name})",
            partial(_decades_apart, network=name), ">", 0.0, margin=0.5, cites=source, paper="2.8",
        )  # fmt: skip


def _decades_apart(results: Results, network: str) -> float | None:
    """None if no gradient is left."""
    ends = _ends(grid_of(results, _arm(network)))
    if not ends or min(ends["variant"][0], ends["invariant"][1]) <= 0:
        return None
    return math.log10(ends["variant"][0] / ends["invariant"][1])


def _of_accuracy() -> Claim:
    every = [at_rate_of(_arm("plain"), USUAL, "test", delta=delta) for delta in PAPER]
    theirs = [number for *_, number in PAPER.values()]
    return Claim(
        "accuracy",
        "Accuracy hardly depends on δ: its range over the paper's six values is below 1 pp",
        of_all(spread, every), "<", 1.0, cites=says("c.performance"),
        paper=Cell(max(theirs) - min(theirs), unit="pp"), unit="pp", primary=True,
    )  # fmt: skip
