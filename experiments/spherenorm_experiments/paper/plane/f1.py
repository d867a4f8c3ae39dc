"""Figure 1: the two-dimensional toy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.paper.shared.starts import PAPERS_START, Descents
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import DASHES, Picture, color_of, lines, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Result, Runs, Trial, across
from spherenorm_experiments.study import Study, trials_of
from spherenorm_experiments.tables import Cell, Heading, Table, paper

LR = 0.02
METHODS = {
    "GD": ("sgd", 0.0),
    "GDM 0.9": ("sgd", 0.9),
    "GDM 0.99": ("sgd", 0.99),
    "GDP 0.9": ("sgdp", 0.9),
    "GDP 0.99": ("sgdp", 0.99),
}
"""The recipe and the momentum of each."""

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
    name: str, steps: int, rates: Sequence[float] = (LR,), starts: Sequence[int] = (PAPERS_START,)
) -> list[Trial]:
    """Descents of a method at these rates from the paper's start, or from others at its side.

    The path from the paper's start is kept.
    """
    recipe, momentum = METHODS[name]
    setting = {"lr": list(rates), "momentum": momentum}
    common: dict[str, Any] = {"epochs": steps, "batch_size": 1, "schedule": "constant"}
    options = {"path": PAPERS_START in starts}
    return trials_of(
        Place("", name), "cosine", recipe, setting, starts, options=options, probes=(), **common
    )


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

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        steps = self.budget(plan, "cosine").epochs
        starts = range(1, STARTS[plan.budgets])
        made = [descent(name, steps, RATES) for name in METHODS]
        made += [descent(name, steps, RATES, starts) for name in METHODS]
        return [trial for part in made for trial in part]

    def tables(self, runs: Runs) -> list[Table]:
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
        rows = [_row(name, _of(runs, name)) for name in _ran(runs)]
        return [Table("Norm and speed", headings, rows, note)]

    def pictures(self, runs: Runs) -> list[Picture]:
        shown = {name: _shown(_of(runs, name)) for name in _ran(runs)}
        items = {name: item for name, item in shown.items() if item is not None}
        if not items:
            return []
        colors = {name: _color(name) for name in items}
        dashes = {name: DASHES[_is_fast(name)] for name in items}
        slow = {name: item for name, item in items.items() if not _is_fast(name)}
        pictures = [_in_the_plane(slow)]
        for key, y, caption in (
            ("norm", "norm ‖w‖", "The norm against steps."),
            ("gap", "gap 1 - cos(w, w*)", "The distance to the optimum against steps."),
        ):
            values = {name: np.maximum(item.arrays[key][:SHOWN_STEPS], 1e-12)
                      for name, item in items.items()}  # fmt: skip
            curves = {name: (range(len(curve)), curve) for name, curve in values.items()}
            pictures.append(lines(curves, "step", y, caption, colors, log_y=True, dashes=dashes))
        return pictures

    @property
    def claims(self) -> Sequence[Claim]:
        return [*_of_norms(), *_of_speed(best=False), *_of_speed(best=True)]


def _ran(runs: Runs) -> list[str]:
    """The methods that have runs."""
    return [name for name in METHODS if Place("", name) in runs.places]


def _of(runs: Runs, name: str) -> Descents:
    return Descents(runs, "", name)


def _row(name: str, descents: Descents) -> tuple[Any, ...]:
    shown = _shown(descents)
    if shown is None:
        return (name, Cell(None, missing="diverged"), *[""] * 7)
    summary, best = shown.summary, descents.best(SOLVED)
    fastest = descents.start(best.point)
    return (
        name,
        Cell(summary["max_norm"], ".2f"),
        Cell(PAPER_MAX_NORM.get(name), ".2f", missing=""),
        *(_steps(summary[f"steps_to_{level}"]) for level in LEVELS),
        Cell(summary["final_gap"], ".1e"),
        *(best.cell, _steps(None if fastest is None else fastest.summary[SOLVED])),
    )


def _steps(count: float | None) -> Cell:
    return Cell(None if count is None else int(count), missing="not reached")


def _shown(descents: Descents) -> Result | None:
    """The run at the rate of Figure 1, or at the nearest one that did not diverge."""
    alive = [item for item in descents.first.run if not item.diverged]

    def distance(item: Result) -> float:
        return abs(math.log(item.spec.hyper_parameters.get("lr", LR) / LR))

    return min(alive, key=distance, default=None)


def _number(runs: Runs, name: str, key: str, *, best: bool = False) -> pd.Series:
    """A number of a method by start, at the rate of Figure 1 or at the method's own best rate."""
    own = _of(runs, name)
    return own.values(key, own.best(SOLVED).point if best else own.at(LR))


def _largest_norm(runs: Runs, name: str) -> float | None:
    """From the paper's start, without randomness."""
    own = _of(runs, name)
    item = own.start(own.at(LR))
    return None if item is None else item.summary["max_norm"]


def _of_norms() -> Iterator[Claim]:
    for name, source in (("GDM 0.9", "b.norm.9"), ("GDM 0.99", "b.norm.99")):
        theirs = PAPER_MAX_NORM[name]
        yield Claim(
            f"largest-norm.{slug(name)}", f"= {theirs} ± {0.03 * theirs:.4g}",
            partial(_largest_norm, name=name),
            f"The largest norm under gradient descent with momentum {METHODS[name][1]} is {theirs}",
            says(source), format=".4g", paper=Cell(theirs, "g"),
        )  # fmt: skip
    yield Claim(
        "largest-norm.larger-momentum", "> 1",
        lambda runs: _number(runs, "GDM 0.99", "max_norm") / _number(runs, "GDM 0.9", "max_norm"),
        "The largest norm is larger with momentum 0.99 than with 0.9", says("b.larger"),
        ratio=True, paper="27.87 / 2.93 = 9.5", deterministic=True,
    )  # fmt: skip


OTHERS = ("GD", "GDM 0.9", "GDM 0.99")
"""The methods without a projection."""


def _steps_over(runs: Runs, ours: str, *theirs: str, best: bool = False) -> pd.Series:
    """The steps of one method over those of the fastest of others."""
    fastest = across(_number(runs, name, SOLVED, best=best) for name in theirs).min(axis=1)
    return _number(runs, ours, SOLVED, best=best) / fastest


def _end(runs: Runs, name: str, *, best: bool = False) -> pd.Series:
    """log10 of the final gap."""
    return np.log10(_number(runs, name, "final_gap", best=best).clip(lower=FLOOR))


def _gap_below(runs: Runs, best: bool) -> pd.Series:
    others = across(_end(runs, name, best=best) for name in OTHERS).min(axis=1)
    return _end(runs, "GDP 0.9", best=best) - others


def _of_speed(*, best: bool) -> Iterator[Claim]:
    """The claims at the rate of Figure 1, or with each method at its own best rate."""
    at = "each at its own best rate" if best else f"at the rate {LR}"
    where = "best-rate" if best else "one-rate"
    given: dict[str, Any] = {"score": True, "deterministic": True}
    yield Claim(
        f"fastest.{where}", "< 1", lambda runs: _steps_over(runs, "GDP 0.9", *OTHERS, best=best),
        f"The projected method is the fastest to a gap of 0.001, {at}: its steps over those of "
        "the fastest other, momentum 0.9", says("b.fastest"), ratio=True, primary=True, **given,
    )  # fmt: skip
    yield Claim(
        f"faster-than-momentum.{where}", "< 1",
        lambda runs: _steps_over(runs, "GDP 0.9", "GDM 0.9", best=best),
        f"The projection speeds momentum up, {at}: steps of GDP over GDM, momentum 0.9",
        says("1.slows"), ratio=True, **given,
    )  # fmt: skip
    yield Claim(
        f"smallest-gap.{where}", "< 0", lambda runs: _gap_below(runs, best),
        f"The projected method ends at the smallest gap, {at}: log₁₀ of its gap minus that of "
        "the best other", says("1.terminal"), unit="decades", **given,
    )  # fmt: skip
    if best:
        return
    yield Claim(
        "momentum-fails", "> 1", lambda runs: _steps_over(runs, "GDM 0.9", "GD"),
        "Momentum fails to optimize: GDM 0.9 needs more steps to a gap of 0.001 than plain GD",
        says("b.fails"), ratio=True, note="a method that fails would not arrive at all",
        primary=True, **given,
    )  # fmt: skip
    yield Claim(
        "larger-momentum-slower", "> 1", lambda runs: _steps_over(runs, "GDM 0.99", "GDM 0.9"),
        "Momentum 0.99 is slower than 0.9 without the projection: steps", ratio=True, **given,
    )  # fmt: skip
    yield Claim(
        "momentum-arrives", "< -3", lambda runs: _end(runs, "GDM 0.9"),
        "Momentum 0.9 without the projection arrives: final log₁₀ gap below -3", unit="decades",
        **given,
    )  # fmt: skip


def _is_fast(name: str) -> bool:
    """True of the larger momentum."""
    return METHODS[name][1] == 0.99


def _color(name: str) -> str:
    return "#777777" if name == "GD" else color_of(METHODS[name][0])


def _in_the_plane(items: Mapping[str, Result]) -> Picture:
    """Draw w in the plane, from the start until the slowest is at the optimum."""
    last = 2 + int(max((item.summary[SOLVED] or 0 for item in items.values()), default=0))
    paths = {name: item.arrays["w"][:last] for name, item in items.items()}
    series = {label: (path[:, 0], path[:, 1]) for label, path in paths.items()}
    caption = (
        "The weight itself: from the top to the direction straight down. GDM swings far out and "
        "then crawls; GDP stays near the circle."
    )
    colors = {name: _color(name) for name in items}
    picture = lines(series, "w₁", "w₂", caption, colors)
    angle = np.linspace(0, 2 * np.pi, 90)
    circle = {"x": rounded(np.cos(angle)), "y": rounded(np.sin(angle)), "name": "‖w‖ = 1"}
    picture.figure.add_scatter(**circle, line={"color": "#999", "dash": "dot", "width": 1})
    picture.figure.update_yaxes(scaleanchor="x", scaleratio=1)
    return replace(picture, height=560, wide=True)
