"""Figure 1: the two-dimensional toy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.pictures import DASHES, Picture, color_of, lines, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Result, Runs, Trial, align_seeds
from spherenorm_experiments.study import Study, trials_of
from spherenorm_experiments.tables import Cell, Heading, Row, Table, paper_columns
from spherenorm_experiments.verdict import Claim
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.shared.starts import (
    PAPERS_START,
    TIMED,
    at_best,
    at_rate,
    beside,
    from_papers_start,
    is_at_edge,
    largest_norm,
    over_steps,
)
from spherenorm_paper.statements import says

METHODS = {
    "GD": ("sgd", 0.0),
    "GDM 0.9": ("sgd", 0.9),
    "GDM 0.99": ("sgd", 0.99),
    "GDP 0.9": ("sgdp", 0.9),
    "GDP 0.99": ("sgdp", 0.99),
}
"""The recipe and the momentum of each."""

OTHER_METHODS = ("GD", "GDM 0.9", "GDM 0.99")
"""The methods without a projection."""

COLORS = {name: color_of(recipe) for name, (recipe, _) in METHODS.items()} | {"GD": "#777777"}
DASHED = {name: DASHES[momentum == 0.99] for name, (_, momentum) in METHODS.items()}
PAPER_MAX_NORM = {"GDM 0.9": 2.93, "GDM 0.99": 27.87}
LR = 0.02
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
    return trials_of(
        Place("", name), "cosine", recipe, {"lr": list(rates), "momentum": momentum}, starts,
        options={"path": PAPERS_START in starts}, probes=(), epochs=steps, batch_size=1,
        schedule="constant",
    )  # fmt: skip


def _at(runs: Runs, name: str, best: bool = False) -> pd.DataFrame:
    """The descents of a method at the rate of Figure 1, or at the method's own best rate."""
    all_runs = runs.all_runs("", name)
    return at_best(all_runs, SOLVED) if best else at_rate(all_runs, LR)


def _steps_over(runs: Runs, method: str, *baselines: str, best: bool = False) -> pd.Series:
    """The steps of one method over those of the fastest of others."""
    fastest = align_seeds(beside(_at(runs, name, best), SOLVED) for name in baselines).min(axis=1)
    return beside(_at(runs, method, best), SOLVED) / fastest


def _end(runs: Runs, name: str, best: bool = False) -> pd.Series:
    """log10 of the final gap."""
    return np.log10(beside(_at(runs, name, best), "final_gap").clip(lower=FLOOR))


def _norms(name: str, statement: str) -> Claim:
    words = f"gradient descent with momentum {METHODS[name][1]}"
    return largest_norm(
        name, PAPER_MAX_NORM[name], 0.03, lambda runs: _at(runs, name), words, says(statement)
    )


def _of_speed(*, best: bool) -> list[Claim]:
    """The claims at the rate of Figure 1, or with each method at its own best rate."""
    at = "each at its own best rate" if best else f"at the rate {LR}"
    end = "best-rate" if best else "one-rate"

    def gap_below(runs: Runs) -> pd.Series:
        best_of_others = align_seeds(_end(runs, name, best) for name in OTHER_METHODS).min(axis=1)
        return _end(runs, "GDP 0.9", best) - best_of_others

    return [
        Claim(f"fastest.{end}", "< 1",
              lambda runs: _steps_over(runs, "GDP 0.9", *OTHER_METHODS, best=best),
              f"The projected method is the fastest to a gap of 0.001, {at}: steps of GDP 0.9 over "
              "those of the fastest of GD, GDM 0.9 and GDM 0.99", says("b.fastest"), ratio=True,
              primary=True, **TIMED),
        Claim(f"faster-than-momentum.{end}", "< 1",
              lambda runs: _steps_over(runs, "GDP 0.9", "GDM 0.9", best=best),
              f"The projection speeds momentum up, {at}: steps of GDP over GDM, momentum 0.9",
              says("1.slows"), ratio=True, **TIMED),
        Claim(f"smallest-gap.{end}", "< 0", gap_below,
              f"The projected method ends at the smallest gap, {at}: log₁₀ of its gap minus that "
              "of the best other", says("1.terminal"), unit="decades",
              note=f"gaps below {FLOOR:g} are rounding, and count as that", **TIMED),
    ]  # fmt: skip


CLAIMS = [
    _norms("GDM 0.9", "b.norm.9"),
    _norms("GDM 0.99", "b.norm.99"),
    Claim("largest-norm.larger-momentum", "> 1",
          lambda runs: (beside(_at(runs, "GDM 0.99"), "max_norm")
                        / beside(_at(runs, "GDM 0.9"), "max_norm")),
          "The largest norm is larger with momentum 0.99 than with 0.9", says("b.larger"),
          ratio=True, paper="27.87 / 2.93 = 9.5", deterministic=True),
    *_of_speed(best=False),
    Claim("momentum-fails", "> 1", lambda runs: _steps_over(runs, "GDM 0.9", "GD"),
          f"Momentum fails to optimize: at the rate {LR} GDM 0.9 needs more steps to a gap of "
          "0.001 than plain GD", says("b.fails"), ratio=True,
          note="a method that fails would not arrive at all; Section 1 says of the same figure "
          "that the norm growth reduces the acceleration; at best rates see the table",
          primary=True, **TIMED),
    Claim("larger-momentum-slower", "> 1", lambda runs: _steps_over(runs, "GDM 0.99", "GDM 0.9"),
          "Momentum 0.99 is slower than 0.9 without the projection: steps", ratio=True, **TIMED),
    Claim("momentum-arrives", "< -3", lambda runs: _end(runs, "GDM 0.9"),
          "Momentum 0.9 without the projection arrives: final log₁₀ gap below -3", unit="decades",
          **TIMED),
    *_of_speed(best=True),
]  # fmt: skip


class F1(Study):
    """Figure 1: norms and speed of descents on a circle

    Minimize -cos(w, w*) in the plane, from (0.001, 1) to the direction of w* = (0, -1). Nothing is
    random: claims rest on starts at the side of the paper's, seeds from 1 on. Each method is also
    compared at the rate that is best for it from the paper's start, seed 0.
    """

    name = "f1"
    claims = CLAIMS
    departures = departures("f1")

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        steps = self.budget(plan, "cosine").epochs
        groups = [PAPERS_START], range(1, STARTS[plan.budget_tier])
        return [trial for starts in groups for name in METHODS
                for trial in descent(name, steps, RATES, starts)]  # fmt: skip

    def tables(self, runs: Runs) -> list[Table]:
        headings: list[Heading] = [
            "arm",
            "max norm",
            *paper_columns("max norm"),
            "steps to gap 0.1",
        ]
        headings += ["0.01", "0.001", "gap at the end", "best rate", "steps to 0.001 there"]
        note = (
            f"At the rate {LR} from the paper's start. The gap is 1 - cos(w, w*); a number of "
            "steps is that after which it stays below."
        )
        rows = [_row(runs, name) for name in METHODS if Place("", name) in runs.places]
        return [Table("Norm and speed", headings, rows, note)]

    def pictures(self, runs: Runs) -> list[Picture]:
        items = {name: item for name in METHODS if (item := _run_to_show(runs, name)) is not None}
        if not items:
            return []
        shown_steps = np.arange(
            min(SHOWN_STEPS, *(len(item.arrays["norm"]) for item in items.values()))
        )
        captions = {
            "norm": ("norm ‖w‖", "The norm against steps.", "Figure 1, the norms"),
            "gap": ("gap 1 - cos(w, w*)", "The distance to the optimum against steps."),
        }
        curves = over_steps(items, shown_steps, 1e-12, captions, colors=COLORS, dashes=DASHED)
        return [_in_the_plane(items), *curves]


def _run_to_show(runs: Runs, name: str) -> Result | None:
    """The run at the rate of Figure 1, or at the nearest one that did not diverge."""
    all_runs = runs.all_runs("", name)
    alive = all_runs[(all_runs.seed == PAPERS_START) & np.isfinite(all_runs.max_norm.astype(float))]
    return None if alive.empty else alive.run.iloc[int(np.log(alive.lr / LR).abs().argmin())]


def _row(runs: Runs, name: str) -> Row:
    run, all_runs = _run_to_show(runs, name), runs.all_runs("", name)
    if run is None:
        return (name, Cell(None, missing="diverged"), *[""] * 7)
    best = at_best(all_runs, SOLVED)
    fastest = from_papers_start(best)
    solved = None if fastest is None else fastest.summary[SOLVED]
    rate = Cell(best.lr.iloc[0], ".3g", unit="(edge)" if is_at_edge(all_runs, best) else "")
    at = [*(run.summary[f"steps_to_{level}"] for level in ("0.1", "0.01", "0.001")), solved]
    *steps, steps_at_best = (Cell(count, ".0f", missing="not reached") for count in at)
    return (
        name, Cell(run.summary["max_norm"], ".2f"),
        Cell(PAPER_MAX_NORM.get(name), ".2f", missing=""), *steps,
        Cell(run.summary["final_gap"], ".1e"),
        Cell(None, missing="none") if solved is None else rate, steps_at_best,
    )  # fmt: skip


def _in_the_plane(items: Mapping[str, Result]) -> Picture:
    """Draw w in the plane, from the start until the slowest is at the optimum.

    Those of the larger momentum are left out.
    """
    slow = {name: item for name, item in items.items() if DASHED[name] == DASHES[0]}
    last = 2 + int(max((item.summary[SOLVED] or 0 for item in slow.values()), default=0))
    series: dict[str, Any] = {name: item.arrays["w"][:last].T for name, item in slow.items()}
    caption = (
        "The weight itself: from the top to the direction straight down. GDM swings far out and "
        "then crawls; GDP stays near the circle."
    )
    picture = lines(series, "w₁", "w₂", caption, COLORS)
    angle = np.linspace(0, 2 * np.pi, 90)
    circle = {"x": rounded(np.cos(angle)), "y": rounded(np.sin(angle)), "name": "‖w‖ = 1"}
    picture.figure.add_scatter(**circle, line={"color": "#999", "dash": "dot", "width": 1})
    picture.figure.update_yaxes(scaleanchor="x", scaleratio=1)
    return replace(picture, height=560, wide=True, shows="Figure 1")
