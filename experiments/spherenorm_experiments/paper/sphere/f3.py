"""Figures 3, H.1, G.1 and G.2: the Rosenbrock function on a sphere in three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spherenorm_experiments.claims import Claim, Decision
from spherenorm_experiments.paper.sphere._descents import (
    FLOOR,
    METHODS,
    PAPER_MAX_NORM,
    PAPER_RATES,
    REFERENCE,
    SETTINGS,
    SHOWN,
    best_of_search,
    claims_of_norms,
    claims_of_speed,
    in_every_setting,
    known_settings,
    points,
    search_place,
    searched,
)
from spherenorm_experiments.paper.sphere._sphere import draw_sphere
from spherenorm_experiments.pictures import Picture, add_crosses, color_of, lines
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Result, Runs, Trial
from spherenorm_experiments.stats import mean
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, Heading, Row, Table, paper

STARTS = {"smoke": 3, "small": 7, "full": 13}
"""The paper's start, on which the rate is chosen, and those at its side."""

LEVELS = ("10", "1", "0.1")
"""Gaps to the optimum whose first step is shown."""


class F3(Study):
    """Figures 3, H.1, G.1 and G.2: norm growth slows descent on a sphere, for ten optimizers

    The Rosenbrock function of two angles under a linearly decaying learning rate. Learning rates
    (with weight decay, times seven decays) are searched as one vmap sweep per optimizer, and the
    lowest final gap from the paper's start decides. Claims rest on other starts at its side, at the
    rate so chosen. The paper's number of steps and scale of the loss are not known, so that every
    comparison of speed is repeated at three scales and two numbers of steps: it is decided by the
    mean over these settings, and only if each of them has the same sign.
    """

    name = "f3"
    departures = (
        ("loss", "as printed", "times 1e-5, 1e-4 or 1e-3", "as printed these rates explode: the "
         "gradient at the start is 3e4 long; at 1e-4 GDM's norm is the paper's 3.2"),
        ("steps", "not given", "1000 and 3000", "which optimizer is ahead depends on it"),
        ("learning rates", "0.001 to 0.1", "0.0001 to 10", "some best rates are at the paper's "
         "edge"),
        ("weight decay", "not given", "0.0001 to 1, searched", "the paper tuned it by hand"),
        ("angle", "ψ = arccos(x / z)", "ψ = atan2(x, z)", "as printed it is no angle"),
        ("start", "(-2, 2)", "the same, and six at its side", "one run cannot vary"),
    )  # fmt: skip

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        reference = self.budget(plan, "rosenbrock").epochs
        trials = []
        for name, method in METHODS.items():
            for steps, scale in SETTINGS if plan.tier != "smoke" else (REFERENCE,):
                setting = {**method.setting, **points(method, plan.budgets)}
                trials += self.seeded(
                    plan, search_place(name, (steps, scale)), "rosenbrock", method.recipe, setting,
                    range(STARTS[plan.budgets]), epochs=steps * reference // REFERENCE[0],
                    batch_size=1, schedule="linear", probes=(), options={"scale": scale},
                )  # fmt: skip
        found = (_best_descent(runs, name) for name in _searches(runs))
        return [*trials, *(trial for trial in found if trial is not None)]

    def tables(self, runs: Runs) -> list[Table]:
        return [_best_of_each(runs), *_gap_tables(runs)]

    def pictures(self, runs: Runs) -> list[Picture]:
        items = _descents(runs)
        searches = [_searched(runs)] if len(runs) else []
        if not items:
            return searches
        dashes = {name: METHODS[name].dash for name in items}
        colors = {name: color_of(METHODS[name].recipe) for name in items}
        longest = min(len(item.arrays["norm"]) for item in items.values()) - 1
        keep = np.unique(np.geomspace(1, longest, 120).astype(int))
        norms = {name: (keep, item.arrays["norm"][keep]) for name, item in items.items()}
        gaps = {name: (keep, np.maximum(item.arrays["gap"][keep], 1e-9))
                for name, item in items.items()}  # fmt: skip
        log: dict[str, Any] = {"log_x": True, "log_y": True, "dashes": dashes}
        surges = "Norm against steps. With weight decay it surges first, and collapses later."
        distance = "Distance to the optimum, each optimizer at its best learning rate."
        return [
            draw_sphere(items, dashes),
            lines(norms, "step", "norm ‖w‖", surges, colors, **log),
            lines(gaps, "step", "gap", distance, colors, **log),
            *searches,
        ]

    @property
    def claims(self) -> Sequence[Claim]:
        return [*claims_of_norms(), *claims_of_speed()]

    def evaluated(self, runs: Runs) -> list[Decision]:
        return [in_every_setting(decision, runs) for decision in super().evaluated(runs)]


def _searches(runs: Runs) -> list[str]:
    """The methods that were searched at the reference."""
    return [name for name in METHODS if search_place(name) in runs.places]


def _descents(runs: Runs) -> dict[str, Result]:
    """The best descent of each method, with its path."""
    return {item.place.arm: item for item in runs.on(SHOWN) if not item.diverged}


def _best_descent(runs: Runs, name: str) -> Trial | None:
    """The run of the search with the lowest final gap, with its path; None if all diverged."""
    descents = searched(runs, name)
    choice = best_of_search(descents, PAPER_RATES)
    best = None if choice.lost else descents.start(choice.point)
    if best is None:
        return None
    spec = replace(best.spec, options={**best.spec.options, "path": True})
    return Trial(Place(SHOWN, name), spec)


def _best_of_each(runs: Runs) -> Table:
    """The best of each search at the reference, in the paper's range of rates."""
    headings: list[Heading] = [
        *("arm", "best lr", "best wd", "max norm"),
        *paper("max norm"),
        *("last norm", "final gap", "steps to 10", "to 1", "to 0.1"),
    ]
    lost = [str(item.place) for item in runs if item.diverged]
    failed = [f"{place} ({lost.count(place)})" for place in dict.fromkeys(lost)]
    note = "Steps after which the gap stays below; – where it does not within the budget."
    note += f" Descents that diverged: {', '.join(failed)}." if failed else ""
    rows = [_row(item) for item in _descents(runs).values()]
    return Table("The best of each search", headings, rows, note)


def _row(item: Result) -> tuple[Any, ...]:
    point, summary = item.spec.hyper_parameters, item.summary
    steps = [summary[f"steps_to_{level}"] for level in LEVELS]
    return (
        item.place.arm,
        Cell(point["lr"], ".3g"),
        Cell(point.get("weight_decay"), ".3g", missing=""),
        Cell(summary["max_norm"], ".2f"),
        Cell(PAPER_MAX_NORM.get(item.place.arm), ".2f", missing=""),
        Cell(summary["last_norm"], ".2f"),
        Cell(summary["final_gap"], ".2g"),
        *(Cell(None if n is None else int(n)) for n in steps),
    )


def _gap_tables(runs: Runs) -> list[Table]:
    """The final gap of each method in each setting, at its best rate."""
    settings = known_settings(runs)
    rows: list[Row] = []
    for name in (each for each in METHODS if any(p.arm == each for p in runs.places)):
        cells = []
        for setting in settings:
            descents = searched(runs, name, setting)
            choice = best_of_search(descents)
            gaps = descents.values("final_gap", choice.point)
            known = gaps[np.isfinite(gaps)].clip(lower=FLOOR).tolist()
            center = math.exp(mean([math.log(gap) for gap in known])) if known else None
            ends = (min(known), max(known)) if len(known) > 1 else None
            unit = f"(lr {choice.rate:.2g}{', edge' if choice.at_edge else ''})"
            lost = len(gaps) - len(known)
            cells.append(Cell(center, ".2g", None, ends, len(known), lost, unit=unit))
        rows.append((name, *cells))
    headings = ("arm", *(f"{steps} steps, scale {scale:g}" for steps, scale in settings))
    note = (
        "Geometric means over the starts at the side of the paper's [least, largest], at the rate "
        "that is best from the paper's; edge: no lower or no higher rate was tried."
    )
    return [Table("Final gap in every setting", headings, rows, note)] if rows else []


def _searched(runs: Runs) -> Picture:
    """Draw the searches over learning rates alone; points that diverged are crosses on top."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    colors, dashes = {}, {}
    failed: list[tuple[float, str, int, str]] = []
    for name in _searches(runs):
        first = searched(runs, name).first.sort_values("lr")
        if METHODS[name].decays or first.empty:
            continue
        colors[name], dashes[name] = color_of(METHODS[name].recipe), METHODS[name].dash
        known = first[np.isfinite(first.final_gap)]
        series[name] = known.lr.tolist(), known.final_gap.clip(lower=1e-9).tolist()
        for item in first.run[~np.isfinite(first.final_gap)]:
            step = item.summary["diverged_at"]
            last = item.summary["steps"] - 1 if step is None else step
            failed.append((item.spec.hyper_parameters["lr"], name, last, colors[name]))
    caption = "The search: final gap against the learning rate; crosses on top diverged."
    log: dict[str, Any] = {"log_x": True, "log_y": True, "dashes": dashes}
    picture = lines(series, "learning rate", "final gap", caption, colors, **log)
    add_crosses(picture.figure, failed)
    return picture
