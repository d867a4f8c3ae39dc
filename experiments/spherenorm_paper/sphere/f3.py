"""Figures 3, H.1, G.1 and G.2: the Rosenbrock function on a sphere in three dimensions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from spherenorm_experiments.pictures import Picture, color_of
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Result, Runs, Trial, align_seeds, mean_over
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, Heading, Row, Table, paper_columns
from spherenorm_experiments.verdict import (
    BEYOND_PAPER,
    Claim,
    Decision,
    mean,
    slug,
    without_verdict,
)
from spherenorm_paper.shared import starts
from spherenorm_paper.shared.facts import departures
from spherenorm_paper.sphere import search
from spherenorm_paper.sphere.search import METHODS, PAIRS, Pair, peak
from spherenorm_paper.sphere.sphere import draw_sphere
from spherenorm_paper.statements import says

STARTS = {"smoke": 3, "small": 7, "full": 13}
"""The paper's start, on which the rate is chosen, and those at its side."""

DESCENT = "descent"
"""The condition of the best descents, whose paths are kept."""


def _largest_norm(method: str, statement: str) -> Claim:
    return starts.largest_norm(
        method, search.PAPER_MAX_NORM[method], 0.05,
        lambda runs: search.at_best_gap(runs, method, papers_rates=True),
        f"{method} from the paper's start", says(statement),
    )  # fmt: skip


def _norms(large: str, small: str, statement: str) -> Claim:
    return Claim(
        f"norms.{slug(large)}.{slug(small)}", "> 1",
        lambda runs: peak(runs, large) / peak(runs, small),
        f"{large} grows its norm to more than {small} does: ratio of the largest norms, each at "
        "its best point", says(statement), ratio=True, primary=True, deterministic=True,
    )  # fmt: skip


def _keeps_norm(method: str) -> Claim:
    return Claim(
        f"keeps-norm.{slug(method)}", "< 1e-6", lambda runs: (peak(runs, method) - 1).abs(),
        f"{method} keeps the norm: largest over first is 1 within 1e-6", says("g.norm"),
        deterministic=True,
    )  # fmt: skip


def _closer(pair: Pair) -> Claim:
    def in_each_setting(runs: Runs) -> str:
        means = {(round(x, 2), x > 0): x for x in pair.means(runs)}.values()
        if not means:  # (without decay a scale is no other setting)
            return ""
        ends, count = f"{min(means):+.2f} to {max(means):+.2f}", sum(x > 0 for x in means)
        return f"over the settings, from {ends}; ahead in {count} of {len(means)} settings"

    at = ", at the paper's rates" * pair.papers_rates
    return Claim(
        f"closer.{slug(pair.ahead)}.{slug(pair.behind)}", "> 0",
        lambda runs: mean_over(pair.gains(runs)),
        f"{pair.ahead} ends closer to the optimum than {pair.behind}{at}: log₁₀ of the ratio of "
        "the gaps", says(pair.statement) if pair.statement else BEYOND_PAPER, unit="decades",
        primary=pair.primary, note=in_each_setting, **starts.TIMED,
    )  # fmt: skip


def _equally_close(a: str, b: str) -> Claim:
    """The claim that one method, which may be closer, is as close as another, at its rates."""

    def behind(runs: Runs) -> pd.Series:
        """By how much it is further away; nothing where the other diverged."""
        gains = Pair(b, a, papers_rates=True).gains(runs)
        return align_seeds(gain.replace(-math.inf, math.nan) for gain in gains).max(axis=1)

    return Claim(
        f"equally-close.{slug(b)}.{slug(a)}", f"< {math.log10(2)!r}", behind,
        f"{b} ends as close to the optimum as {a} or closer, at the paper's rates: its gap at most "
        "twice as large, the largest over the settings, log₁₀", says("g.quickly"), unit="decades",
        **starts.TIMED,
    )  # fmt: skip


def _steps(runs: Runs, method: str, *, papers_rates: bool = False) -> pd.Series:
    """The steps to a gap of 1 at the reference, at the point with the least final gap."""
    best = search.at_best_gap(runs, method, papers_rates=papers_rates)
    return starts.beside(best, "steps_to_1")


def _as_soon(a: str, b: str) -> Claim:
    def over(runs: Runs) -> pd.Series:
        """Steps of one over those of the other; nothing where the other did not come there."""
        baseline, projected = (_steps(runs, name, papers_rates=True) for name in (a, b))
        return projected / baseline.replace(math.inf, math.nan)

    return Claim(
        f"as-soon.{slug(b)}.{slug(a)}", "< 2", over,
        f"{b} is below a gap of 1 in less than twice the steps of {a}, at the paper's rates, each "
        "at the point with its least final gap: ratio of steps", says("g.quickly"), ratio=True,
        **starts.TIMED,
    )  # fmt: skip


def _sooner(baseline: str) -> Claim:
    return Claim(
        f"sooner.gdp.{slug(baseline)}", "< 1",
        lambda runs: _steps(runs, "GDP") / _steps(runs, baseline),
        f"GDP is sooner below a gap of 1 than {baseline}: ratio of steps, at the reference, each "
        "at the point with its least final gap", says("3.2.faster"), ratio=True, **starts.TIMED,
    )  # fmt: skip


def _with_each_decay(runs: Runs) -> pd.DataFrame:
    """GDM's descents with each decay at the paper's highest rate; infinite norms if it diverged."""
    at_paper_rate = starts.at_rate(search.searched(runs, "GDM + WD"), search.PAPER_RATES[1])
    return at_paper_rate.assign(max_norm=at_paper_rate.max_norm.astype(float).fillna(math.inf))


def _surge(runs: Runs) -> pd.Series:
    """The least over decays of GDM's largest norm, over GDP's, by start."""
    all_runs = _with_each_decay(runs)
    gdp = starts.at_rate(search.searched(runs, "GDP"), search.PAPER_RATES[1])
    least_norms = all_runs[all_runs.seed != starts.PAPERS_START].groupby("seed").max_norm.min()
    return least_norms / starts.beside(gdp, "max_norm")


def _peaks(runs: Runs) -> str:
    all_runs = _with_each_decay(runs)
    from_paper_start = all_runs[all_runs.seed == starts.PAPERS_START]
    peaks = zip(from_paper_start.max_norm, from_paper_start.get("weight_decay", ()), strict=True)
    listed = ", ".join(f"{norm:.2f} (wd {decay:.2g})" for norm, decay in peaks)
    return f"from the paper's start, where it has 2.53: {listed}" if listed else ""


CLAIMS = [
    _largest_norm("GDM", "3.2.gdm-norm"),
    _largest_norm("GDP", "3.2.subdues"),
    Claim("surge.gdm-wd", "> 1", _surge,
          f"At the rate {search.PAPER_RATES[1]} no weight decay of the search keeps GDM's norm as "
          "small as GDP's: the least of the runs' largest norms over GDP's", says("3.2.surge"),
          ratio=True, primary=True, paper="2.53 / 1.12 = 2.26", note=_peaks, deterministic=True),
    Claim("surge.gdm-wd.tuned", "> 1", lambda runs: peak(runs, "GDM + WD") / peak(runs, "GDP"),
          "GDM's norm surges with the decay and the rate that are best for it: its largest norm "
          "over GDP's", says("3.2.surge"), ratio=True, deterministic=True),
    _norms("GDM", "GDP", "3.2.subdues"),
    _norms("GDM", "GDM + WD", "3.2.wd"),
    _norms("Adam", "AdamP", "h.mitigate"),
    _norms("Adam", "Adam + WD", "h.mitigate"),
    *map(_keeps_norm, ("SGDG", "AdamG")),
    *map(_closer, PAIRS),
    _equally_close("GDP", "SGDG, no clip"),
    _equally_close("AdamP", "AdamG, no clip"),
    _as_soon("GDP", "SGDG, no clip"),
    _as_soon("AdamP", "AdamG, no clip"),
    *map(_sooner, ("GDM", "GDM + WD")),
    Claim("momentum-does-not-arrive", "> -1",
          lambda runs: align_seeds(search.gaps(runs, "GDM")).min(axis=1),
          "GDM does not arrive: its final gap is above 0.1 in every setting (log₁₀ above -1)",
          says("3.2.gdm"), unit="decades", **starts.TIMED),
]  # fmt: skip


class F3(Study):
    """Figures 3, H.1, G.1 and G.2: norms and speed of ten optimizers on a sphere

    The Rosenbrock function of two angles under a linearly decaying learning rate. Learning rates
    (with weight decay, times seven decays) are searched as one vmap sweep per optimizer, and the
    lowest final gap from the paper's start, seed 0, decides. Claims rest on other starts at its
    side, at the rate so chosen. The paper's number of steps and scale of the loss are not known, so
    that every comparison of final gaps is repeated at two numbers of steps, and at three scales, if
    it is not about the paper's rates: it is decided by the mean over these settings, and only if
    each of them has the same sign. Without decay and clipping a scale is no other setting: the
    searched rate makes up for it. How soon a gap is reached is compared at the reference alone.
    """

    name = "f3"
    claims = CLAIMS
    departures = departures("f3")

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        reference = self.budget(plan, "rosenbrock").epochs
        trials = []
        for name, method in METHODS.items():
            for steps, scale in search.SETTINGS if plan.tier != "smoke" else (search.REFERENCE,):
                setting = {**method.setting, **search.points(method, plan.budget_tier)}
                trials += self.make_trials(
                    plan, search.place(name, (steps, scale)), "rosenbrock", method.recipe, setting,
                    range(STARTS[plan.budget_tier]),
                    epochs=steps * reference // search.REFERENCE[0],
                    batch_size=1, schedule="linear", probes=(), options={"scale": scale},
                )  # fmt: skip
        for name in METHODS:  # the best of each search once more, with its path
            item = starts.from_papers_start(search.at_best_gap(runs, name, papers_rates=True))
            if item is not None and item.summary["final_gap"] is not None:
                spec = replace(item.spec, options={**item.spec.options, "path": True})
                trials.append(Trial(Place(DESCENT, name), spec))
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        return [_best_of_each(runs), *_gap_tables(runs)]

    def pictures(self, runs: Runs) -> list[Picture]:
        if not (items := _descents(runs)):
            return []
        longest = min(len(item.arrays["norm"]) for item in items.values()) - 1
        keep = np.unique(np.geomspace(1, longest, 120).astype(int))
        captions = {
            "norm": ("norm ‖w‖", "Norm against steps, each optimizer at its best learning rate.",
                     "Figures 3 (lower row), G.1, G.2 and H.1"),
            "gap": ("gap", "Distance to the optimum, each optimizer at its best learning rate."),
        }  # fmt: skip
        colors = {name: color_of(method.recipe) for name, method in METHODS.items()}
        dashes = {name: method.dash for name, method in METHODS.items()}
        curves = starts.over_steps(
            items, keep, 1e-9, captions, colors=colors, dashes=dashes, log_x=True
        )
        return [draw_sphere(items, dashes), *curves]

    def evaluate_claims(self, runs: Runs) -> list[Decision]:
        """A mean over the settings decides only if each of them has the same sign."""
        decisions, pairs = (
            super().evaluate_claims(runs),
            {_closer(pair).name: pair for pair in PAIRS},
        )
        mixed = {name for name, pair in pairs.items()
                 if len({value > 0 for value in pair.means(runs)}) > 1}  # fmt: skip
        return [without_verdict(d, "") if d.claim.name in mixed else d for d in decisions]


def _descents(runs: Runs) -> dict[str, Result]:
    """The best descent of each method, with its path."""
    return {item.place.arm: item for item in runs.on(DESCENT) if not item.diverged}


def _best_of_each(runs: Runs) -> Table:
    """The best of each search at the reference, in the paper's range of rates."""
    headings: list[Heading] = ["arm", "best lr", "best wd", "max norm", *paper_columns("max norm")]
    headings += ["last norm", "final gap", "steps to 10", "to 1", "to 0.1"]
    rows: list[Row] = []
    for name, item in _descents(runs).items():
        point, summary = item.spec.hyper_parameters, item.summary
        rows.append((
            name,
            Cell(point["lr"], ".3g"),
            Cell(point.get("weight_decay"), ".3g", missing=""),
            Cell(summary["max_norm"], ".2f"),
            Cell(search.PAPER_MAX_NORM.get(name), ".2f", missing=""),
            Cell(summary["last_norm"], ".2f"),
            Cell(summary["final_gap"], ".2g"),
            *(Cell(summary[f"steps_to_{level}"], ".0f") for level in ("10", "1", "0.1")),
        ))  # fmt: skip
    diverged = [str(item.place) for item in runs if item.diverged]
    failed = [f"{place} ({diverged.count(place)})" for place in dict.fromkeys(diverged)]
    note = "Steps after which the gap stays below; – where it does not within the budget."
    note += f" Descents that diverged: {', '.join(failed)}." if failed else ""
    return Table("The best of each search", headings, rows, note)


def _gap_tables(runs: Runs) -> list[Table]:
    """The final gap of each method in each setting, at its best rate."""
    settings, ran = search.known_settings(runs), {place.arm for place in runs.places}
    rows: list[Row] = [(name, *(_gap(runs, name, setting) for setting in settings))
            for name in METHODS if name in ran]  # fmt: skip
    headings = ("arm", *(f"{steps} steps, scale {scale:g}" for steps, scale in settings))
    note = (
        "Geometric means over the starts at the side of the paper's [least, largest], at the rate "
        "that is best from the paper's; edge: no lower or no higher rate was tried."
    )
    return [Table("Final gap in every setting", headings, rows, note)] if rows else []


def _gap(runs: Runs, name: str, setting: search.Setting) -> Cell:
    all_runs, best = search.searched(runs, name, setting), search.at_best_gap(runs, name, setting)
    if best.empty:
        return Cell(None)
    gaps = starts.beside(best, "final_gap")
    finite_gaps = gaps[np.isfinite(gaps)].clip(lower=search.FLOOR)
    center = math.exp(mean(np.log(finite_gaps))) if len(finite_gaps) else None
    ends = (finite_gaps.min(), finite_gaps.max()) if len(finite_gaps) > 1 else None
    unit = f"(lr {best.lr.iloc[0]:.2g}{', edge' if starts.is_at_edge(all_runs, best) else ''})"
    return Cell(
        center, ".2g", None, ends, len(finite_gaps), len(gaps) - len(finite_gaps), unit=unit
    )
