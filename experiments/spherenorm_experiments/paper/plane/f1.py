"""Figure 1: the two-dimensional toy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from spherenorm_experiments.claims import Claim, Side, derive, slug
from spherenorm_experiments.paper.shared.grid import PAPERS_START, Grid, at_best, at_point, grid_of
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import DASHES, Picture, color_of, lines, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Arm, Result, Results, Trial
from spherenorm_experiments.samples import Sample, Values, best_of
from spherenorm_experiments.study import Study, trials_of
from spherenorm_experiments.tables import Cell, Heading, Table, paper

LR = 0.02
ARMS = {
    label: Arm(label, recipe, {"momentum": momentum})
    for label, recipe, momentum in (
        ("GD", "sgd", 0.0),
        ("GDM 0.9", "sgd", 0.9),
        ("GDM 0.99", "sgd", 0.99),
        ("GDP 0.9", "sgdp", 0.9),
        ("GDP 0.99", "sgdp", 0.99),
    )
}
PAPER_MAX_NORM = {"GDM 0.9": 2.93, "GDM 0.99": 27.87}
LEVELS = ("0.1", "0.01", "0.001")
RATES = tuple(LR * 10 ** (k / 3) for k in range(-6, 10))
"""From a hundredth of the rate of Figure 1 to a thousand times that."""
STARTS = {"smoke": 3, "small": 7, "full": 13}
SOLVED = "steps_to_0.001"
FLOOR = 1e-14
"""A gap below this is rounding."""
SHOWN_STEPS = 700


def descent(
    arm: Arm, steps: int, rates: Sequence[float] = (LR,), starts: Sequence[int] = (PAPERS_START,)
) -> list[Trial]:
    """Descents at these rates from the paper's start, or from others at its side.

    The path from the paper's start is kept.
    """
    setting = {"lr": list(rates), "momentum": arm.settings["momentum"]}
    common: dict[str, Any] = {"epochs": steps, "batch_size": 1, "schedule": "constant"}
    options = {"path": PAPERS_START in starts}
    return trials_of(arm, "cosine", setting, starts, options=options, probes=(), **common)


class F1(Study):
    """Figure 1: momentum slows descent on a circle by growing the norm

    Minimize -cos(w, w*) in the plane, from (0.001, 1) to the direction of w* = (0, -1). Nothing is
    random: claims rest on starts at the side of the paper's. Each method is also compared at the
    rate that is best for it from the paper's start.
    """

    name = "f1"
    departures = (
        ("loss", "cos(w, w*), minimized", "-cos(w, w*)", "as printed its start is the optimum"),
        ("learning rate", "not given", f"{LR}, and each method's best of {len(RATES)}",
         f"{LR} gives the paper's norm of 2.93 at momentum 0.9"),
        ("start", "(0.001, 1)", "the same, and six at its side", "one run cannot vary"),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        steps = self.budget(plan, "cosine").epochs
        starts = range(1, STARTS[plan.budgets])
        made = [descent(arm, steps, RATES) for arm in ARMS.values()]
        made += [descent(arm, steps, RATES, starts) for arm in ARMS.values()]
        return [trial for part in made for trial in part]

    def tables(self, results: Results) -> list[Table]:
        headings: list[Heading] = [
            *("arm", "max norm"),
            *paper("max norm"),
            *("steps to gap 0.1", *LEVELS[1:], "gap at the end"),
            *("best rate", "steps to 0.001 there"),
        ]
        note = (
            f"At the rate {LR} from the paper's start. The gap is 1 - cos(w, w*); a number of "
            "steps is that after which it stays below."
        )
        rows = [_row(arm, _grid(results, arm)) for arm in results.arms]
        return [Table("Norm and speed", headings, rows, note)]

    def pictures(self, results: Results) -> list[Picture]:
        shown = [_shown(_grid(results, arm)) for arm in results.arms]
        items = [item for item in shown if item is not None]
        if not items:
            return []
        colors = {item.arm.label: _color(item.arm) for item in items}
        dashes = {item.arm.label: DASHES[_fast(item)] for item in items}
        pictures = [_in_the_plane([item for item in items if not _fast(item)])]
        for key, y, caption in (
            ("norm", "norm ‖w‖", "The norm against steps."),
            ("gap", "gap 1 - cos(w, w*)", "The distance to the optimum against steps."),
        ):
            values = {x.arm.label: np.maximum(x.arrays[key][:SHOWN_STEPS], 1e-12) for x in items}
            curves = {label: (range(len(curve)), curve) for label, curve in values.items()}
            pictures.append(lines(curves, "step", y, caption, colors, log_y=True, dashes=dashes))
        return pictures

    @property
    def claims(self) -> Sequence[Claim]:
        return [*_of_norms(), *_of_speed(best=False), *_of_speed(best=True)]


def _grid(results: Results, arm: Arm) -> Grid:
    return grid_of(results, arm, PAPERS_START)


def _row(arm: Arm, grid: Grid) -> tuple[Any, ...]:
    shown = _shown(grid)
    if shown is None:
        return (arm.label, Cell(None, missing="diverged"), *[""] * 7)
    summary, best = shown.summary, grid.tuned(SOLVED, min)
    fastest = grid.start(best.index)
    return (
        arm.label,
        Cell(summary["max_norm"], ".2f"),
        Cell(PAPER_MAX_NORM.get(arm.label), ".2f", missing=""),
        *(_steps(summary[f"steps_to_{level}"]) for level in LEVELS),
        Cell(summary["final_gap"], ".1e"),
        *(best.cell, _steps(None if fastest is None else fastest.summary[SOLVED])),
    )


def _steps(count: float | None) -> Cell:
    return Cell(None if count is None else int(count), missing="not reached")


def _shown(grid: Grid) -> Result | None:
    """The run at the rate of Figure 1, or at the nearest one that did not diverge."""
    known = [grid.start(index) for index in range(len(grid.points))]
    alive = [item for item in known if item is not None and not item.diverged]

    def distance(item: Result) -> float:
        return abs(math.log(item.spec.hyper_parameters.get("lr", LR) / LR))

    return min(alive, key=distance, default=None)


def _of_norms() -> Iterator[Claim]:
    for label, source in (("GDM 0.9", says("b.norm.9")), ("GDM 0.99", says("b.norm.99"))):
        momentum, theirs = ARMS[label].settings["momentum"], PAPER_MAX_NORM[label]
        yield Claim(
            f"largest-norm.{slug(label)}",
            f"The largest norm under gradient descent with momentum {momentum} is {theirs}",
            partial(_largest_norm, label=label), "=", theirs, tolerance=0.03, format=".4g",
            cites=source, paper=Cell(theirs, "g"),
        )  # fmt: skip
    large, small = (
        at_point(ARMS[name], "max_norm", tuning=PAPERS_START, lr=LR)
        for name in ("GDM 0.99", "GDM 0.9")
    )
    yield Claim(
        "largest-norm.larger-momentum",
        "The largest norm is larger with momentum 0.99 than with 0.9",
        large, ">", small, how="ratio", behind="left", cites=says("b.larger"),
        paper="27.87 / 2.93 = 9.5",
    )  # fmt: skip


def _largest_norm(results: Results, label: str) -> float | None:
    """From the paper's start, without randomness."""
    grid = _grid(results, ARMS[label])
    item = grid.start(grid.at(lr=LR))
    return None if item is None else item.summary["max_norm"]


def _of_speed(*, best: bool) -> Iterator[Claim]:
    """The claims at the rate of Figure 1, or with each method at its own best rate."""

    def side(name: str, key: str) -> Side:
        if best:
            return at_best(
                ARMS[name], key, tuning=PAPERS_START, performance=True, by=SOLVED, best=min
            )
        return at_point(ARMS[name], key, tuning=PAPERS_START, performance=True, lr=LR)

    def end(name: str) -> Side:
        logarithm = partial(Sample.map, function=lambda gap: math.log10(max(gap, FLOOR)))
        return derive(logarithm, side(name, "final_gap"))

    def fastest(*parts: Values) -> Sample:
        return best_of(min, parts)

    others = ("GD", "GDM 0.9", "GDM 0.99")
    steps = {name: side(name, SOLVED) for name in (*others, "GDP 0.9")}
    at = "each at its own best rate" if best else f"at the rate {LR}"
    where = "best-rate" if best else "one-rate"
    yield Claim(
        f"fastest.{where}",
        f"The projected method is the fastest to a gap of 0.001, {at}: its steps over those of "
        "the fastest other, momentum 0.9",
        steps["GDP 0.9"], "<", derive(fastest, *(steps[name] for name in others)),
        how="ratio", cites=says("b.fastest"), primary=True,
    )  # fmt: skip
    yield Claim(
        f"faster-than-momentum.{where}",
        f"The projection speeds momentum up, {at}: steps of GDP over GDM, momentum 0.9",
        steps["GDP 0.9"], "<", steps["GDM 0.9"], how="ratio", cites=says("1.slows"),
    )  # fmt: skip
    yield Claim(
        f"smallest-gap.{where}",
        f"The projected method ends at the smallest gap, {at}: log₁₀ of its gap minus that of "
        "the best other",
        end("GDP 0.9"), "<", derive(fastest, *map(end, others)), cites=says("1.terminal"),
        unit="decades",
    )  # fmt: skip
    if best:
        return
    yield Claim(
        "momentum-fails",
        "Momentum fails to optimize: GDM 0.9 needs more steps to a gap of 0.001 than plain GD",
        steps["GDM 0.9"], ">", steps["GD"], how="ratio", behind="left", cites=says("b.fails"),
        caveat="a method that fails would not arrive at all", primary=True,
    )  # fmt: skip
    yield Claim(
        "larger-momentum-slower",
        "Momentum 0.99 is slower than 0.9 without the projection: steps",
        steps["GDM 0.99"], ">", steps["GDM 0.9"], how="ratio", behind="left",
    )  # fmt: skip
    yield Claim(
        "momentum-arrives",
        "Momentum 0.9 without the projection arrives: final log₁₀ gap below -3",
        end("GDM 0.9"), "<", -3.0, unit="decades",
    )  # fmt: skip


def _fast(item: Result) -> bool:
    """True of the larger momentum."""
    return bool(item.arm.settings["momentum"] == 0.99)


def _color(arm: Arm) -> str:
    return "#777777" if arm == ARMS["GD"] else color_of(arm.recipe)


def _in_the_plane(items: Sequence[Result]) -> Picture:
    """Draw w in the plane, from the start until the slowest is at the optimum."""
    last = 2 + int(max((item.summary[SOLVED] or 0 for item in items), default=0))
    paths = {item.arm.label: item.arrays["w"][:last] for item in items}
    series = {label: (path[:, 0], path[:, 1]) for label, path in paths.items()}
    caption = (
        "The weight itself: from the top to the direction straight down. GDM swings far out and "
        "then crawls; GDP stays near the circle."
    )
    colors = {item.arm.label: _color(item.arm) for item in items}
    picture = lines(series, "w₁", "w₂", caption, colors)
    angle = np.linspace(0, 2 * np.pi, 90)
    circle = {"x": rounded(np.cos(angle)), "y": rounded(np.sin(angle)), "name": "‖w‖ = 1"}
    picture.figure.add_scatter(**circle, line={"color": "#999", "dash": "dot", "width": 1})
    picture.figure.update_yaxes(scaleanchor="x", scaleratio=1)
    return replace(picture, height=560, wide=True)
