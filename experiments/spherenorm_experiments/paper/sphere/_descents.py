"""The descents of Figures 3, H.1, G.1 and G.2: methods, settings, and the claims about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from spherenorm_experiments.claims import OURS, Claim, Side, Statement, derive, slug
from spherenorm_experiments.decisions import Decision
from spherenorm_experiments.paper.shared.grid import PAPERS_START, Choice, Grid, at_best, grid_of
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.pictures import DASHES
from spherenorm_experiments.results import Arm, Results
from spherenorm_experiments.samples import Sample, best_of, paired_values, pooled, worst_of
from spherenorm_experiments.stats import mean
from spherenorm_experiments.tables import Cell


class Method(NamedTuple):
    """A recipe, its fixed hyper-parameters, and the weight decays that are searched."""

    recipe: str
    setting: Mapping[str, Any]
    decays: tuple[float, ...] = ()

    @property
    def dash(self) -> str:
        """Dashed for a variant: with weight decay, or without clipping."""
        return DASHES[1] if self.decays or self.setting.get("nu", 1.0) is None else DASHES[0]


MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.999]}
ADAMG = {"betas": [0.9, 0.99], "alpha": 0.0}
DECAYS = tuple(np.geomspace(1e-4, 1.0, 7).tolist())
METHODS = {
    "GDM": Method("sgd", MOMENTUM),
    "GDM + WD": Method("sgd", MOMENTUM, DECAYS),
    "GDP": Method("sgdp", MOMENTUM),
    "Adam": Method("adam", BETAS),
    "Adam + WD": Method("adamw", BETAS, DECAYS),
    "AdamP": Method("adamp", BETAS),
    "SGDG": Method("sgdg", {**MOMENTUM, "nu": 0.1, "alpha": 0.0}),
    "SGDG, no clip": Method("sgdg", {**MOMENTUM, "nu": None, "alpha": 0.0}),
    "AdamG": Method("adamg", {**ADAMG, "nu": 0.1}),
    "AdamG, no clip": Method("adamg", {**ADAMG, "nu": None}),
}
PAPER_MAX_NORM = {
    "GDM": 3.2,
    "GDM + WD": 2.53,
    "GDP": 1.12,
    **dict.fromkeys(("SGDG", "SGDG, no clip", "AdamG", "AdamG, no clip"), 1.0),
}
PAPER_RATES = (0.001, 0.1)
RATES = {"smoke": (1e-3, 1e-1, 3), "small": (1e-4, 10.0, 21), "full": (1e-4, 10.0, 101)}
"""The learning rates searched: the paper's range, and beyond it on both sides."""

REFERENCE = (1000, 1e-4)
"""The steps and the scale of the loss at which the norm of GDM is the paper's."""

SETTINGS = tuple((steps, scale) for steps in (1000, 3000) for scale in (1e-5, 1e-4, 1e-3))
"""Neither number is in the paper, so every comparison of speed is made at all of these."""


def search_arm(method: str, steps: int, scale: float) -> Arm:
    settings = {"method": method, "stage": "search", "steps": steps, "scale": scale}
    at = "" if (steps, scale) == REFERENCE else f", {steps} steps, scale {scale:g}"
    return Arm(f"{method}: search{at}", METHODS[method].recipe, settings)


def descent_arm(method: str) -> Arm:
    return Arm(method, METHODS[method].recipe, {"method": method, "stage": "descent"})


def method_of(arm: Arm) -> Method:
    return METHODS[arm.settings["method"]]


def points(method: Method, tier: str) -> dict[str, list[float]]:
    """The searched learning rates, times the weight decays if the method has them."""
    rates = np.geomspace(*RATES[tier])
    if not method.decays:
        return {"lr": rates.tolist()}
    decays = method.decays[:: 3 if tier == "smoke" else 1]
    lr, decay = np.meshgrid(rates, decays, indexing="ij")
    return {"lr": lr.ravel().tolist(), "weight_decay": decay.ravel().tolist()}


FLOOR = 1e-12
"""A gap below this is rounding."""

PAIRS: tuple[tuple[str, str, Statement, bool], ...] = (
    ("GDM", "GDP", says("3.2.faster"), True),
    ("GDM + WD", "GDP", says("3.2.faster"), True),
    ("GDM", "GDM + WD", says("3.2.wd"), False),
    ("Adam", "AdamP", says("h.mitigate"), True),
    ("Adam", "Adam + WD", says("h.mitigate"), False),
    ("Adam + WD", "AdamP", OURS, False),
    ("SGDG", "GDP", says("g.slower"), False),
    ("AdamG", "AdamP", says("g.slower"), False),
    ("SGDG", "SGDG, no clip", says("g.clip"), False),
    ("AdamG", "AdamG, no clip", says("g.clip"), False),
)
"""The method that is behind, the one that is ahead, the statement, and if the study is for it."""

EQUAL = (("GDP", "SGDG, no clip"), ("AdamP", "AdamG, no clip"))

PEAKS = {"GDM": "3.2.gdm-norm", "GDM + WD": "3.2.surge", "GDP": "3.2.subdues"}

NORMS = (
    ("GDM", "GDP", says("3.2.subdues")),
    ("GDM + WD", "GDP", says("3.2.surge")),
    ("GDM", "GDM + WD", says("3.2.wd")),
    ("Adam", "AdamP", says("h.mitigate")),
    ("Adam", "Adam + WD", says("h.mitigate")),
)
"""The method with the larger norm, the one with the smaller, and the statement."""


def searched(results: Results, method: str, setting: tuple[int, float] = REFERENCE) -> Grid:
    """The search of a method."""
    return grid_of(results, search_arm(method, *setting), PAPERS_START)


def best_of_search(grid: Grid, rates: tuple[float, float] = (0.0, math.inf)) -> Choice:
    """The point with the lowest final gap from the paper's start."""
    return grid.tuned("final_gap", min, rates)


def known_settings(results: Results) -> list[tuple[int, float]]:
    """The settings of which there are runs; the reference without any."""
    found = [s for s in SETTINGS if results.having(stage="search", steps=s[0], scale=s[1])]
    return found or [REFERENCE]


def _all_gaps(results: Results, method: str) -> list[Sample]:
    """log10 of the final gap at the best rate, by start, in each setting."""
    grids = [searched(results, method, setting) for setting in known_settings(results)]
    return [
        grid.sample("final_gap", best_of_search(grid).index, performance=True).map(
            lambda gap: math.log10(max(gap, FLOOR))
        )
        for grid in grids
    ]


def claims_of_norms() -> Iterator[Claim]:
    """Largest norms at the reference, at the best rate of the paper's range."""
    for method, source in PEAKS.items():
        theirs = PAPER_MAX_NORM[method]
        yield Claim(
            f"largest-norm.{slug(method)}",
            f"The largest norm under {method} from the paper's start is {theirs}",
            partial(_first_peak, method=method), "=", theirs, tolerance=0.05, format=".4g",
            cites=says(source), paper=Cell(theirs, "g"),
            caveat=partial(_other_peaks, method=method),
        )  # fmt: skip
    for large, small, cites in NORMS:
        yield Claim(
            f"norms.{slug(large)}.{slug(small)}",
            f"{large} grows its norm to more than {small} does: ratio of the largest norms",
            _peak(large), ">", _peak(small), how="ratio", behind="left", cites=cites,
            primary=True,
        )  # fmt: skip
    for method in ("SGDG", "AdamG"):
        yield Claim(
            f"keeps-norm.{slug(method)}",
            f"{method} keeps the norm: |largest / first - 1| below 1e-6",
            derive(partial(Sample.map, function=lambda norm: abs(norm - 1)), _peak(method)), "<",
            1e-6, cites=says("g.norm"),
        )  # fmt: skip


def _peak(method: str) -> Side:
    """The largest norm by start."""
    return at_best(
        search_arm(method, *REFERENCE), "max_norm", tuning=PAPERS_START, by="final_gap", best=min,
        rates=PAPER_RATES,
    )  # fmt: skip


def _first_peak(results: Results, method: str) -> float | None:
    """The largest norm from the paper's start."""
    grid = searched(results, method)
    return _norm_at(grid, best_of_search(grid, PAPER_RATES).index)


def _norm_at(grid: Grid, index: int | None) -> float | None:
    """The largest norm at a point from the paper's start; None if it diverged."""
    item = grid.start(index)
    return None if item is None else item.summary["max_norm"]


def _other_peaks(results: Results, method: str) -> str:
    """The largest norms with each weight decay, at the upper end of the paper's rates."""
    if _first_peak(results, method) is None:
        return ""
    grid = searched(results, method)
    peaks = {
        grid.points[i]["weight_decay"]: _norm_at(grid, i)
        for i in grid.where(lr=PAPER_RATES[1])
        if "weight_decay" in grid.points[i]
    }
    shown = ", ".join(f"{norm:.2f} (wd {decay:.2g})" for decay, norm in peaks.items() if norm)
    return f"the best decay of the search; at the rate 0.1 the peaks are {shown}" if shown else ""


def claims_of_speed() -> Iterator[Claim]:
    """Final gaps in every setting, and the speed at the beginning at the reference."""
    for behind, ahead, source, primary in PAIRS:
        yield Claim(
            _closer(behind, ahead),
            f"{ahead} ends closer to the optimum than {behind}: log₁₀ of the ratio of the gaps",
            partial(_mean_gap, method=behind), ">", partial(_mean_gap, method=ahead), cites=source,
            behind="left", unit="decades", primary=primary,
        )  # fmt: skip
    for a, b in EQUAL:
        yield Claim(
            f"equally-close.{slug(b)}.{slug(a)}",
            f"{b} ends as close to the optimum as {a}: gaps within a factor of 2 everywhere",
            partial(_largest_difference, a=a, b=b), "<", math.log10(2), cites=says("g.quickly"),
            unit="decades",
        )  # fmt: skip
    early = {
        name: at_best(search_arm(name, *REFERENCE), "steps_to_1", tuning=PAPERS_START,
                      performance=True, by="final_gap", best=min)
        for name in ("GDM", "GDM + WD", "GDP")
    }  # fmt: skip
    for other in ("GDM", "GDM + WD"):
        yield Claim(
            f"sooner.gdp.{slug(other)}",
            f"GDP is sooner below a gap of 1 than {other}: ratio of steps, at the reference",
            early["GDP"], "<", early[other], how="ratio", cites=says("3.2.faster"),
        )  # fmt: skip
    yield Claim(
        "momentum-does-not-arrive",
        "GDM does not arrive: its final gap is above 0.1 in every setting (log₁₀ above -1)",
        lambda results: best_of(min, _all_gaps(results, "GDM")), ">", -1.0, cites=says("3.2.gdm"),
        unit="decades",
    )  # fmt: skip


def _closer(behind: str, ahead: str) -> str:
    return f"closer.{slug(ahead)}.{slug(behind)}"


def _mean_gap(results: Results, method: str) -> Sample:
    """Over the settings, by start."""
    return pooled(_all_gaps(results, method))


def _largest_difference(results: Results, a: str, b: str) -> Sample:
    """Over the settings, by start."""
    pairs = zip(_all_gaps(results, b), _all_gaps(results, a), strict=True)
    return worst_of(max, [paired_values(*pair).map(abs) for pair in pairs])


def in_every_setting(decision: Decision, results: Results) -> Decision:
    """A mean over the settings decides only if each of them has the same sign."""
    pairs = {_closer(behind, ahead): (behind, ahead) for behind, ahead, *_ in PAIRS}
    if decision.claim.name not in pairs or not decision.has_results:
        return decision
    behind, ahead = pairs[decision.claim.name]
    gaps = zip(_all_gaps(results, behind), _all_gaps(results, ahead), strict=True)
    gains = [paired_values(*pair) for pair in gaps]
    means = [mean(gain.values()) for gain in gains if gain]
    if not means:
        return decision
    count = sum(value > 0 for value in means)
    ends = [Cell(end(means), "+.2f") for end in (min, max)]
    said = f"ahead in {count} of {len(means)} settings"
    one_way = count in (0, len(means))  # else it depends on what the paper leaves open
    return replace(
        decision,
        numbers=[*decision.numbers, *ends],
        ours=f"{decision.ours} over the settings, from {ends[0]} to {ends[1]}",
        detail="; ".join(filter(None, [decision.detail, said])),
        p=decision.p if one_way else None,
    )
