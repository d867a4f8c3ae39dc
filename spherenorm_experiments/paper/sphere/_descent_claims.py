"""The claims about the descents of Figures 3, H.1, G.1 and G.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spherenorm_experiments.analysis import (
    OURS,
    PAPERS_START,
    Basis,
    Cell,
    Choice,
    Claim,
    Grid,
    Results,
    Row,
    Sample,
    Table,
    best_of,
    close,
    grid_of,
    mean,
    missing,
    paired,
    paired_values,
    pooled,
    sample,
    worst_of,
)
from spherenorm_experiments.paper.sphere._descents import (
    PAPER_MAX_NORM,
    PAPER_RATES,
    REFERENCE,
    SETTINGS,
    search_arm,
)
from spherenorm_experiments.paper.statements import STATEMENTS, fitted, says

__all__ = ["claims_of_norms", "claims_of_speed", "gap_table"]

FLOOR = 1e-12
"""A gap below this is rounding."""

EARLY = "steps_to_1"

FACTOR_OF_TWO = math.log10(2)

PAIRS: tuple[tuple[str, str, Basis, bool], ...] = (
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

ALIKE = (("GDP", "SGDG, no clip"), ("AdamP", "AdamG, no clip"))


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


def claims_of_norms(results: Results) -> list[Claim]:
    """Largest norms at the reference, at the best rate of the paper's range."""
    claims, peaks, first = [], {}, {}
    for method in ("GDM", "GDM + WD", "GDP", "Adam", "Adam + WD", "AdamP", "SGDG", "AdamG"):
        grid = _grid(results, method, REFERENCE)
        index = _choice(grid, PAPER_RATES).index
        peaks[method] = grid.sample("max_norm", index)
        peak = None if index is None else _peak(grid, index)
        if peak is not None:
            first[method] = peak
    sources = {
        "GDM": fitted("3.2.gdm-norm"),
        "GDM + WD": says("3.2.surge"),
        "GDP": says("3.2.subdues"),
    }
    for method, source in sources.items():
        theirs = PAPER_MAX_NORM[method]
        text = f"The largest norm under {method} from the paper's start is {theirs}"
        if method in first:
            detail = _other_peaks(_grid(results, method, REFERENCE))
            claims.append(close(text, first[method], theirs, 0.05, source=source, detail=detail))
        else:
            claims.append(missing(text, source))
    claims += [
        paired(
            f"{large} grows its norm to more than {small} does: ratio of the largest norms",
            peaks[large],
            peaks[small],
            ">",
            how="ratio",
            behind="a",
            source=source,
            primary=source is not OURS,
        )
        for large, small, source in (
            ("GDM", "GDP", says("3.2.subdues")),
            ("GDM + WD", "GDP", says("3.2.surge")),
            ("GDM", "GDM + WD", says("3.2.wd")),
            ("Adam", "AdamP", says("h.mitigate")),
            ("Adam", "Adam + WD", says("h.mitigate")),
        )
    ]
    by_definition = Basis("identity", *STATEMENTS["g.norm"])
    for method in ("SGDG", "AdamG"):
        text = f"{method} keeps the norm: |largest / first - 1| below 1e-6"
        drift = peaks[method].map(lambda norm: abs(norm - 1))
        claims.append(sample(text, drift, "<", 1e-6, source=by_definition))
    return claims


def _peak(grid: Grid, index: int) -> float | None:
    """The largest norm at a point from the paper's start; None if it diverged."""
    item = grid.runs[index].get(PAPERS_START)
    return None if item is None else item.summary["max_norm"]


def _other_peaks(grid: Grid) -> str:
    """The largest norms with each weight decay, at the upper end of the paper's rates."""
    peaks = {
        grid.points[i]["weight_decay"]: _peak(grid, i)
        for i in grid.where(lr=PAPER_RATES[1])
        if "weight_decay" in grid.points[i]
    }
    shown = ", ".join(f"{norm:.2f} (wd {decay:.2g})" for decay, norm in peaks.items() if norm)
    return f"the best decay of the search; at the rate 0.1 the peaks are {shown}" if shown else ""


def claims_of_speed(results: Results) -> list[Claim]:
    """Final gaps in every setting, and the speed at the beginning at the reference."""
    settings = _known(results)
    claims = []
    for behind, ahead, source, primary in PAIRS:
        gaps = [(_gaps(results, behind, s), _gaps(results, ahead, s)) for s in settings]
        text = f"{ahead} ends closer to the optimum than {behind}: log₁₀ of the ratio of the gaps"
        claims.append(_in_every_setting(text, gaps, source, primary=primary))
    for a, b in ALIKE:
        apart = [
            paired_values(_gaps(results, b, s), _gaps(results, a, s)).map(abs) for s in settings
        ]
        text = f"{b} ends as close to the optimum as {a}: gaps within a factor of 2 everywhere"
        worst = worst_of(max, apart)
        claims.append(
            sample(text, worst, "<", FACTOR_OF_TWO, source=says("g.quickly"), unit="decades")
        )
    early = {}
    for method in ("GDM", "GDM + WD", "GDP"):
        grid = _grid(results, method, REFERENCE)
        early[method] = grid.sample(EARLY, _choice(grid).index, performance=True)
    for other in ("GDM", "GDM + WD"):
        text = f"GDP is sooner below a gap of 1 than {other}: ratio of steps, at the reference"
        source = says("3.2.faster")
        claims.append(paired(text, early["GDP"], early[other], "<", how="ratio", source=source))
    left = best_of(min, [_gaps(results, "GDM", s) for s in settings])
    text = "GDM does not arrive: its final gap is above 0.1 in every setting (log₁₀ above -1)"
    return [*claims, sample(text, left, ">", -1.0, source=says("3.2.gdm"), unit="decades")]


def _in_every_setting(
    text: str, gaps: Sequence[tuple[Sample, Sample]], source: Basis, *, primary: bool
) -> Claim:
    """Decided by the mean over the settings, if each of them has the same sign."""
    behind, ahead = (pooled(part) for part in zip(*gaps, strict=True))
    claim = paired(
        text, behind, ahead, ">", behind="a", source=source, primary=primary, unit="decades"
    )
    gains = [paired_values(*pair) for pair in gaps]
    means = [mean(gain.values()) for gain in gains if gain]
    if not claim.has_results or not means:
        return claim
    count = sum(value > 0 for value in means)
    said = f"ahead in {count} of {len(means)} settings"
    one_way = count in (0, len(means))  # else it depends on what the paper leaves open
    return replace(
        claim,
        numbers=[*claim.numbers, *(Cell(end(means), "+.2f") for end in (min, max))],
        words="{} over the settings, from {} to {}",
        detail="; ".join(filter(None, [claim.detail, said])),
        p=claim.p if one_way else None,
    )


def gap_table(results: Results) -> Table | None:
    """The final gap of each method in each setting, at its best rate."""
    settings = _known(results)
    rows: list[Row] = []
    arms = results.having(stage="search").arms
    for label, recipe in dict.fromkeys((arm.settings["method"], arm.recipe) for arm in arms):
        cells = []
        for setting in settings:
            own = search_arm(label, *setting)
            arm = own if own.recipe == recipe else own.substitute(recipe)
            grid = grid_of(results, arm, PAPERS_START)
            choice = _choice(grid)
            gaps = grid.sample("final_gap", choice.index)
            known = [max(gap, FLOOR) for gap in gaps.values()]
            center = math.exp(mean(map(math.log, known))) if known else None
            ends = (min(known), max(known)) if len(known) > 1 else None
            unit = f"(lr {choice.rate:.2g}{', edge' if choice.at_edge else ''})"
            lost = len(gaps.diverged)
            cells.append(Cell(center, ".2g", None, ends, len(known), lost, unit=unit))
        own_label = search_arm(label, *REFERENCE).label.partition(":")[0]
        named = (
            own_label
            if search_arm(label, *REFERENCE).recipe == recipe
            else (f"{recipe} as {own_label}")
        )
        rows.append((named, *cells))
    if not rows:
        return None
    columns = ("arm", *(f"{steps} steps, scale {scale:g}" for steps, scale in settings))
    note = (
        "Geometric means over the starts at the side of the paper's [least, largest], at the rate "
        "that is best from the paper's; edge: no lower or no higher rate was tried."
    )
    return Table("Final gap in every setting", columns, rows, note)
