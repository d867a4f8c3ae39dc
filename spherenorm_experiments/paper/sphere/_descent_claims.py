"""The claims about the descents of Figures 3, H.1, G.1 and G.2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from spherenorm_experiments.analysis import (
    OURS,
    PAPERS_START,
    Cell,
    Choice,
    Claim,
    Decision,
    Grid,
    Results,
    Row,
    Sample,
    Side,
    Statement,
    Table,
    at_best,
    best_of,
    derive,
    grid_of,
    mean,
    paired_values,
    pooled,
    slug,
    worst_of,
)
from spherenorm_experiments.paper.sphere._descents import (
    PAPER_MAX_NORM,
    PAPER_RATES,
    REFERENCE,
    SETTINGS,
    search_arm,
)
from spherenorm_experiments.paper.statements import says

__all__ = ["claims_of_norms", "claims_of_speed", "gap_table", "in_every_setting"]

FLOOR = 1e-12
"""A gap below this is rounding."""

EARLY = "steps_to_1"

FACTOR_OF_TWO = math.log10(2)

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

NORMS = (
    ("GDM", "GDP", says("3.2.subdues")),
    ("GDM + WD", "GDP", says("3.2.surge")),
    ("GDM", "GDM + WD", says("3.2.wd")),
    ("Adam", "AdamP", says("h.mitigate")),
    ("Adam", "Adam + WD", says("h.mitigate")),
)
"""The method with the larger norm, the one with the smaller, and the statement."""


def _grid(results: Results, method: str, setting: tuple[int, float]) -> Grid:
    return grid_of(results, search_arm(method, *setting), PAPERS_START)


def _choice(grid: Grid, rates: tuple[float, float] | None = None) -> Choice:
    return grid.tuned("final_gap", min, rates=rates)


def _known(results: Results) -> list[tuple[int, float]]:
    """The settings of which there are runs; the reference without any."""
    found = [s for s in SETTINGS if results.having(stage="search", steps=s[0], scale=s[1])]
    return found or [REFERENCE]


def _gaps(results: Results, method: str, setting: tuple[int, float]) -> Sample:
    """log10 of the final gap at the best rate, by start."""
    grid = _grid(results, method, setting)
    gaps = grid.sample("final_gap", _choice(grid).index, performance=True)
    return gaps.map(lambda gap: math.log10(max(gap, FLOOR)))


def claims_of_norms() -> Iterator[Claim]:
    """Largest norms at the reference, at the best rate of the paper's range."""
    for method, source in (("GDM", "3.2.gdm-norm"), ("GDM + WD", "3.2.surge"),
                           ("GDP", "3.2.subdues")):  # fmt: skip
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
    grid = _grid(results, method, REFERENCE)
    index = _choice(grid, PAPER_RATES).index
    return None if index is None else _norm_at(grid, index)


def _norm_at(grid: Grid, index: int) -> float | None:
    """The largest norm at a point from the paper's start; None if it diverged."""
    item = grid.runs[index].get(PAPERS_START)
    return None if item is None else item.summary["max_norm"]


def _other_peaks(results: Results, method: str) -> str:
    """The largest norms with each weight decay, at the upper end of the paper's rates."""
    if _first_peak(results, method) is None:
        return ""
    grid = _grid(results, method, REFERENCE)
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
            partial(_largest_difference, a=a, b=b), "<", FACTOR_OF_TWO, cites=says("g.quickly"),
            unit="decades",
        )  # fmt: skip
    early = {
        name: at_best(search_arm(name, *REFERENCE), EARLY, tuning=PAPERS_START,
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
        lambda results: best_of(min, [_gaps(results, "GDM", s) for s in _known(results)]), ">",
        -1.0, cites=says("3.2.gdm"), unit="decades",
    )  # fmt: skip


def _closer(behind: str, ahead: str) -> str:
    return f"closer.{slug(ahead)}.{slug(behind)}"


def _mean_gap(results: Results, method: str) -> Sample:
    """Over the settings, by start."""
    return pooled([_gaps(results, method, setting) for setting in _known(results)])


def _largest_difference(results: Results, a: str, b: str) -> Sample:
    """Over the settings, by start."""
    return worst_of(
        max,
        [
            paired_values(_gaps(results, b, s), _gaps(results, a, s)).map(abs)
            for s in _known(results)
        ],
    )


def in_every_setting(decision: Decision, results: Results) -> Decision:
    """A mean over the settings decides only if each of them has the same sign."""
    pairs = {_closer(behind, ahead): (behind, ahead) for behind, ahead, *_ in PAIRS}
    if decision.claim.name not in pairs or not decision.has_results:
        return decision
    behind, ahead = pairs[decision.claim.name]
    gains = [
        paired_values(_gaps(results, behind, s), _gaps(results, ahead, s)) for s in _known(results)
    ]
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


def gap_table(results: Results) -> Table | None:
    """The final gap of each method in each setting, at its best rate."""
    settings = _known(results)
    rows: list[Row] = []
    arms = results.having(stage="search").arms
    for label in dict.fromkeys(arm.settings["method"] for arm in arms):
        cells = []
        for setting in settings:
            grid = grid_of(results, search_arm(label, *setting), PAPERS_START)
            choice = _choice(grid)
            gaps = grid.sample("final_gap", choice.index)
            known = [max(gap, FLOOR) for gap in gaps.values()]
            center = math.exp(mean(map(math.log, known))) if known else None
            ends = (min(known), max(known)) if len(known) > 1 else None
            unit = f"(lr {choice.rate:.2g}{', edge' if choice.at_edge else ''})"
            lost = len(gaps.diverged)
            cells.append(Cell(center, ".2g", None, ends, len(known), lost, unit=unit))
        rows.append((search_arm(label, *REFERENCE).label.partition(":")[0], *cells))
    if not rows:
        return None
    columns = ("arm", *(f"{steps} steps, scale {scale:g}" for steps, scale in settings))
    note = (
        "Geometric means over the starts at the side of the paper's [least, largest], at the rate "
        "that is best from the paper's; edge: no lower or no higher rate was tried."
    )
    return Table("Final gap in every setting", columns, rows, note)
