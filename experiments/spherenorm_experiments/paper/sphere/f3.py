"""Figures 3, H.1, G.1 and G.2: the Rosenbrock function on a sphere in three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spherenorm_experiments.claims import Claim
from spherenorm_experiments.decisions import Decision
from spherenorm_experiments.paper.shared.grid import PAPERS_START
from spherenorm_experiments.paper.sphere._descents import (
    FLOOR,
    METHODS,
    PAPER_MAX_NORM,
    PAPER_RATES,
    REFERENCE,
    SETTINGS,
    best_of_search,
    claims_of_norms,
    claims_of_speed,
    descent_arm,
    in_every_setting,
    known_settings,
    method_of,
    points,
    search_arm,
    searched,
)
from spherenorm_experiments.paper.sphere._sphere import draw_sphere
from spherenorm_experiments.pictures import Picture, add_crosses, color_of, lines
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Arm, Result, Results, Trial
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

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        reference = self.budget(plan, "rosenbrock").epochs
        trials = []
        for name, method in METHODS.items():
            for steps, scale in SETTINGS if plan.tier != "smoke" else (REFERENCE,):
                setting = {**method.setting, **points(method, plan.budgets)}
                trials += self.seeded(
                    plan, search_arm(name, steps, scale), "rosenbrock", setting,
                    range(STARTS[plan.budgets]), epochs=steps * reference // REFERENCE[0],
                    batch_size=1, schedule="linear", probes=(), options={"scale": scale},
                )  # fmt: skip
        found = (_best_descent(results, arm) for arm in _searches(results))
        return [*trials, *(trial for trial in found if trial is not None)]

    def tables(self, results: Results) -> list[Table]:
        return [_best_of_each(results), *_gap_tables(results)]

    def pictures(self, results: Results) -> list[Picture]:
        items = results.having(stage="descent").items
        searches = [_searched(results)] if results else []
        if not items:
            return searches
        dashes = {item.arm.label: method_of(item.arm).dash for item in items}
        colors = {item.arm.label: color_of(item.arm.recipe) for item in items}
        keep = np.unique(np.geomspace(1, len(items[0].arrays["norm"]) - 1, 120).astype(int))
        norms = {item.arm.label: (keep, item.arrays["norm"][keep]) for item in items}
        gaps = {
            item.arm.label: (keep, np.maximum(item.arrays["gap"][keep], 1e-9)) for item in items
        }
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

    def evaluated(self, results: Results) -> list[Decision]:
        return [in_every_setting(decision, results) for decision in super().evaluated(results)]


def _searches(results: Results) -> list[Arm]:
    """The arms of the searches at the reference."""
    steps, scale = REFERENCE
    return results.having(stage="search", steps=steps, scale=scale).arms


def _best_descent(results: Results, search: Arm) -> Trial | None:
    """The run of the search with the lowest final gap, with its path; None if all diverged."""
    grid = searched(results, search.settings["method"])
    choice = best_of_search(grid, PAPER_RATES)
    if choice.index is None or choice.lost:
        return None
    arm = descent_arm(search.settings["method"])
    best = grid.runs[choice.index][PAPERS_START].spec
    return Trial(arm, replace(best, options={**best.options, "path": True}))


def _best_of_each(results: Results) -> Table:
    """The best of each search at the reference, in the paper's range of rates."""
    headings: list[Heading] = [
        *("arm", "best lr", "best wd", "max norm"),
        *paper("max norm"),
        *("last norm", "final gap", "steps to 10", "to 1", "to 0.1"),
    ]
    lost = results.diverged
    failed = [f"{arm} ({len(lost.arm(arm))})" for arm in lost.arms]
    note = "Steps after which the gap stays below; – where it does not within the budget."
    note += f" Descents that diverged: {', '.join(failed)}." if failed else ""
    rows = [_row(item) for item in results.having(stage="descent")]
    return Table("The best of each search", headings, rows, note)


def _row(item: Result) -> tuple[Any, ...]:
    point, summary = item.spec.hyper_parameters, item.summary
    steps = [summary[f"steps_to_{level}"] for level in LEVELS]
    return (
        item.arm.label,
        Cell(point["lr"], ".3g"),
        Cell(point.get("weight_decay"), ".3g", missing=""),
        Cell(summary["max_norm"], ".2f"),
        Cell(PAPER_MAX_NORM.get(item.arm.label), ".2f", missing=""),
        Cell(summary["last_norm"], ".2f"),
        Cell(summary["final_gap"], ".2g"),
        *(Cell(None if n is None else int(n)) for n in steps),
    )


def _gap_tables(results: Results) -> list[Table]:
    """The final gap of each method in each setting, at its best rate."""
    settings = known_settings(results)
    rows: list[Row] = []
    arms = results.having(stage="search").arms
    for label in dict.fromkeys(arm.settings["method"] for arm in arms):
        cells = []
        for setting in settings:
            grid = searched(results, label, setting)
            choice = best_of_search(grid)
            gaps = grid.sample("final_gap", choice.index)
            known = [max(gap, FLOOR) for gap in gaps.values()]
            center = math.exp(mean(map(math.log, known))) if known else None
            ends = (min(known), max(known)) if len(known) > 1 else None
            unit = f"(lr {choice.rate:.2g}{', edge' if choice.at_edge else ''})"
            lost = len(gaps.diverged)
            cells.append(Cell(center, ".2g", None, ends, len(known), lost, unit=unit))
        rows.append((search_arm(label, *REFERENCE).label.partition(":")[0], *cells))
    headings = ("arm", *(f"{steps} steps, scale {scale:g}" for steps, scale in settings))
    note = (
        "Geometric means over the starts at the side of the paper's [least, largest], at the rate "
        "that is best from the paper's; edge: no lower or no higher rate was tried."
    )
    return [Table("Final gap in every setting", headings, rows, note)] if rows else []


def _searched(results: Results) -> Picture:
    """Draw the searches over learning rates alone; points that diverged are crosses on top."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    colors, dashes = {}, {}
    failed: list[tuple[float, str, int, str]] = []
    for arm in _searches(results):
        items = [item for item in results.arm(arm) if item.spec.seed == PAPERS_START]
        if not items or "weight_decay" in items[0].spec.hyper_parameters:
            continue
        label = descent_arm(arm.settings["method"]).label
        colors[label], dashes[label] = color_of(arm.recipe), method_of(arm).dash
        pairs = [(item.spec.hyper_parameters["lr"], item.summary["final_gap"]) for item in items]
        known = [(lr, gap) for lr, gap in pairs if gap is not None]
        series[label] = [lr for lr, _ in known], [max(gap, 1e-9) for _, gap in known]
        ends = [(item.summary["diverged_at"], item.summary["steps"] - 1) for item in items]
        failed += [
            (lr, label, last if step is None else step, colors[label])
            for (lr, gap), (step, last) in zip(pairs, ends, strict=True)
            if gap is None
        ]
    caption = "The search: final gap against the learning rate; crosses on top diverged."
    log: dict[str, Any] = {"log_x": True, "log_y": True, "dashes": dashes}
    picture = lines(series, "learning rate", "final gap", caption, colors, **log)
    add_crosses(picture.figure, failed)
    return picture
