"""The tables and pictures of a tuned comparison."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from spherenorm_experiments.condition import arm_of
from spherenorm_experiments.design import Design
from spherenorm_experiments.detection import percent_right
from spherenorm_experiments.entries import Entry, differing, entries_of, metric_of, metrics_on
from spherenorm_experiments.pictures import Picture, best_scores, curves, drawn, tried
from spherenorm_experiments.results import Arm, Key, Result, Results, metric_on_test
from spherenorm_experiments.samples import Sample, pooled
from spherenorm_experiments.stats import LEVEL, mean, range_test
from spherenorm_experiments.tables import (
    Cell,
    Content,
    Heading,
    Row,
    Table,
    column,
    difference,
    paper,
)
from spherenorm_experiments.tuning import TUNED, Tried

DELTA = 0.1

CURVES = (
    ("norm", "norm ‖w‖", "Norm of the scale-invariant units", False),
    ("effective_step", "effective step ‖Δŵ‖", "Effective step sizes", True),
    ("loss", "training loss", "Training loss", True),
)


def tables_of(design: Design, results: Results) -> list[Table]:
    """Scores, norms and grids; none of which no run has a number."""
    entries = entries_of(design, results)
    scores = {
        condition.label: {
            entry.arm: entry.runs.values("test")
            for entry in entries
            if entry.condition is condition and entry.runs and entry.own
        }
        for condition in design.on
    }
    tables = [
        _scores(design, results, entries),
        _norms(design, entries),
        _grids(entries),
        _equal_points(design, results, entries),
    ]
    tables[1:1] = [range_table(scores)] if design.scored and len(design.on) > 1 else []
    return [table for table in tables if table.rows]


def pictures_of(design: Design, results: Results) -> list[Picture]:
    """The chosen runs and the grids, condition by condition."""
    entries, pictures = entries_of(design, results), []
    names = _tuned_names(entries)
    for condition in design.on:
        final = results.having(condition=condition.label, stage=TUNED)
        for key, title, caption, log_y in CURVES:
            words = f"{caption}, each seed at the point that it chooses: {condition.place}."
            pictures.append(curves(final, key, title, words, log_y=log_y))
        score = f"validation {metric_of(results, condition)}"
        of = {each.arm: each for each in entries if each.condition is condition}
        for name in names:
            tries = {arm: each.tried for arm, each in of.items() if each.tried.points}
            own = {arm: each for arm, each in tries.items() if name in each.points[0]}
            caption = (
                f"Every trial's score against {name}, the mean over seeds; the large marks are the "
                f"best points: {condition.place}."
            )
            pictures.append(tried(own, name, score, caption))
        # A lost trial has no score, so that a best of k is not a number.
        whole = {
            arm: each.tried.scores for arm, each in of.items()
            if len(each.tried.scores) > 1 and not each.tried.lost and each.search.ranges
        }  # fmt: skip
        best = "The expected best validation score of k trials, of those that were made"
        pictures.append(best_scores(whole, score, f"{best}: {condition.place}."))
        trained = f"The chosen runs while they train: {condition.place}."
        pictures.append(curves(final, "validation", score, trained))
    return drawn(pictures)


def _scores(design: Design, results: Results, entries: Sequence[Entry]) -> Table:
    """The chosen runs: hyper-parameters, metrics of the test set, and paired differences."""
    metrics = dict.fromkeys(name for each in design.on for name in metrics_on(results, each))
    names = list(metrics) or ["score"]
    quoted = [name for name in _quoted(design) if name not in _measures(design)]
    tuned_names = _tuned_names(entries)
    values = differing({each.arm: each.every_value for each in entries})
    different = {name: of for name, of in values.items() if name not in tuned_names}
    rows: list[Row] = []
    pairs: dict[str, None] = {}
    for part in _by_condition(design, entries):
        keys = [metric_on_test(name) if metrics else "test" for name in names]
        columns = [_means(part, key, performance=True) for key in keys]
        for i, entry in enumerate(part):
            arm, name, gap = entry.arm, entry.contender.name, Cell(None, missing="")
            if entry.base is not None:
                gap = difference(entry.runs.values("test"), results.arm(entry.base).values("test"))
                pairs[f"{name} − {_name(entry.base)}"] = None
            row: list[Any] = [arm.label, *entry.cells(tuned_names)]
            row += [_value(of.get(arm)) for of in different.values()]
            row += [*(cells[i] for cells in columns), Cell(len(entry.runs), "d"), gap]
            row += [entry.condition.paper.get(metric, {}).get(name) for metric in quoted]
            rows.append(tuple(row))
    headings: list[Heading] = ["arm", *tuned_names, *different, *names, "seeds"]
    headings += ["minus its baseline", *paper(*quoted)]
    return Table("Scores", headings, rows, _about_scores(design, results, list(pairs)))


def _about_scores(design: Design, results: Results, pairs: list[str]) -> str:
    places = "; ".join(f"{each.label}: {each.theirs}" for each in design.on if each.theirs)
    specs = (item.spec for item in results.having(stage=TUNED))
    ran = {f"{x.epochs} epochs of batches of {x.batch_size}, {x.schedule} schedule" for x in specs}
    return " ".join(
        [
            *([f"The paper's: {places}."] if places else []),
            *([f"Each run: {'; '.join(sorted(ran))}."] if ran else []),
            "Mean ± SD over the seeds that all optimizers of a condition completed; blank if one "
            "diverged there. An optimizer that a command added does not narrow the others' seeds.",
            f"Differences ({', '.join(pairs)}) are of the score, paired by seed, with Student's "
            "95 % intervals.",
        ]
    )


def _quoted(design: Design) -> list[str]:
    """The headings of the paper's numbers."""
    return list(dict.fromkeys(name for each in design.on for name in each.paper))


def _measures(design: Design) -> dict[str, tuple[Key, str]]:
    """The numbers beside the scores, by heading."""
    return {
        "norm first": ("norm_start", ".3g"),
        "norm last": ("norm_last", ".3g"),
        "last / first": (growth, ".3f"),
        "path on sphere": ("total_effective_step", ".3g"),
        "detected (%)": (percent_right(DELTA, invariant=True), ".1f"),
        "left alone (%)": (percent_right(DELTA, invariant=False), ".1f"),
        **design.measures,
    }


def _norms(design: Design, entries: Sequence[Entry]) -> Table:
    keys = _measures(design)
    quoted = [name for name in _quoted(design) if name in keys]
    rows: list[list[Content]] = []
    for part in _by_condition(design, entries):
        columns = [_means(part, key, form) for key, form in keys.values()]
        for i, entry in enumerate(part):
            share = entry.runs.cell(invariant_share, ".1f", spread=True)
            theirs = entry.condition.paper
            rows.append(
                [entry.arm.label, share, _views_of(entry.runs), *(cells[i] for cells in columns),
                 *(theirs.get(name, {}).get(entry.contender.name) for name in quoted)]
            )  # fmt: skip
    note = (
        "The norm is the mean over the scale-invariant units. Views: in how many weights of two or "
        "more dimensions the audit finds invariance channel by channel, of the whole layer, and "
        "none. Detected: scale-invariant weights that the test with δ = 0.1 takes for such; left "
        "alone: others that it does not."
    )
    headings: list[Heading] = ["arm", "invariant share (%)", "views", *keys, *paper(*quoted)]
    known = [any(_is_known(row[i]) for row in rows) for i in range(len(headings))]
    kept = [list(itertools.compress(row, known)) for row in rows]
    title = "Norms, steps and detection"
    return Table(title, list(itertools.compress(headings, known)), kept, note)


def _is_known(cell: Content) -> bool:
    """True for a number or a text that is not empty."""
    return bool(cell) and (not isinstance(cell, Cell) or cell.known or cell.diverged > 0)


def _grids(entries: Sequence[Entry]) -> Table:
    """The grids: how many points there were, what became of them, and how far apart they score."""
    tuned_names = _tuned_names(entries)
    rows: list[Row] = []
    for entry in entries:
        tried = entry.tried
        if not tried.points or not tuned_names:
            continue
        samples = [tried.sample(i, "test") for i in range(len(tried.points))]
        means = [mean(each.values()) for each in samples if each and not each.diverged]
        counts = zip(tried.points, tried.counts, strict=True)
        taken = [f"{_point(point)} × {count}" for point, count in counts if count]
        taken += [f"none × {len(tried.unscored)}"] if tried.unscored else []
        best = Cell(None if tried.best is None else tried.scores[tried.best], ".4g")
        ends = (f(means) if means else None for f in (max, statistics.median, min))
        rows.append(
            (entry.arm.label, Cell(len(tried.points), "d"), Cell(tried.lost, "d"),
             *entry.cells(tuned_names), best, ", ".join(taken), *(Cell(x, ".4g") for x in ends))
        )  # fmt: skip
    note = (
        "All points train on all seeds; a seed takes the point with its best validation score, "
        "none if it has no score at any point. "
        "(edge): the grid ends at the best mean validation score, a wider one may hold a better "
        "value. (outermost): no trial lies beyond it on one side, but the range goes on: more "
        "trials may find a better value. The last columns say how much the choice matters: the "
        "mean test scores of the points on which no seed diverged."
    )
    columns = ("arm", "trials", "without a score", *tuned_names, "validation", "taken by seeds")
    return Table("Tuning", (*columns, "test, best point", "median", "worst"), rows, note)


def _equal_points(design: Design, results: Results, entries: Sequence[Entry]) -> Table:
    """The difference of each pair at each point that both have, and over all of these."""
    of = {entry.arm: entry.tried for entry in entries}
    rows: list[Row] = []
    for condition, (base, ours) in design.comparisons:
        nothing = Tried([], [])
        left, right = (of.get(arm_of(condition, each), nothing) for each in (ours, base))
        shared = [point for point in left.points if point in right.points and point]
        sides = [
            [tried.sample(tried.points.index(point), "test") for point in shared]
            for tried in (left, right)
        ]
        first = f"{condition.label}: {ours.name} − {base.name}".removeprefix(": ")
        for point, *pair in zip(shared, *sides, strict=True):
            said = all(point.items() <= each.paper.items() for each in (ours, base))
            place = _point(point) + " (the paper's)" * said
            rows.append((first, place, *column(pair, ".4g"), difference(*pair)))
        if len(shared) > 1:
            means = [pooled(side) for side in sides]
            rows.append((first, "mean over the grid", *column(means, ".4g"), difference(*means)))
    note = "Test scores, paired by seed, with Student's 95 % intervals, not corrected for number."
    return Table("At equal points", ("pair", "point", "ours", "baseline", "difference"), rows, note)


def _point(point: Mapping[str, float]) -> str:
    """The values of a point; with names if there are several."""
    if len(point) == 1:
        return f"{next(iter(point.values())):.3g}"
    return " ".join(f"{name}={value:.3g}" for name, value in point.items())


def range_table(scores: Mapping[str, Mapping[Arm, Sample]]) -> Table:
    """The best against the worst optimizer of each condition, both tuned.

    Tukey's range test decides if they are apart.

    Args:
        scores: of the arms of each condition, by its label.
    """
    rows: list[Row] = []
    apart: list[bool] = []
    for condition, arms in scores.items():
        ended = {arm: sample for arm, sample in arms.items() if not sample.diverged}
        known = {arm: sample for arm, sample in ended.items() if len(sample) > 1}
        cells = dict(zip(known, column(list(known.values()), "g"), strict=True))
        means = {arm: float(cell.number) for arm, cell in cells.items() if cell.number is not None}
        if len(means) < 2:
            continue
        best = max(means, key=means.__getitem__)
        worst = min(reversed(means), key=means.__getitem__)  # of equal ones another than the best
        gap = Cell(means[best] - means[worst], "+.3g", n=cells[best].n)
        seeds = set.intersection(*(set(known[arm]) for arm in means))
        every = [[known[arm][seed] for seed in sorted(seeds)] for arm in means]
        p = range_test(every) if len(seeds) > 1 else 1.0
        apart.append(p < LEVEL)
        row = (condition, _name(best), _name(worst), gap, Cell(p, ".2g"))
        rows.append((*row, "yes" if apart[-1] else "no"))
    columns = ("condition", "best", "worst", "best minus worst", "p", "apart")
    about = (
        "p is of Tukey's range test, for which it does not matter that best and worst are chosen "
        "by the scores that are compared; optimizers that diverged are left out. In "
        f"{sum(apart)} of {len(apart)} conditions p is below {LEVEL:g}: the condition tells "
        "optimizers apart."
    )
    return Table("Best against worst", columns, rows, about)


def growth(item: Result) -> float | None:
    """The last norm over the first, of the scale-invariant units."""
    start, last = (item.summary.get(name) for name in ("norm_start", "norm_last"))
    return None if not start or last is None else last / start


def invariant_share(item: Result) -> float | None:
    """The percentage of the parameters that are scale-invariant."""
    share = item.summary.get("invariant_share")
    return None if share is None else 100 * float(share)


def _views_of(runs: Results) -> str:
    """The number of weights by the view in which the audit finds them invariant."""
    views = next((list(item.summary.get("views", {}).values()) for item in runs), [])
    counts = [("channel", "channel"), ("layer", "layer"), (None, "none")]
    return ", ".join(f"{views.count(view)} {name}" for view, name in counts if view in views)


def _by_condition(design: Design, entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries with final runs, those of each condition together."""
    return [
        [entry for entry in entries if entry.condition is condition and entry.runs]
        for condition in design.on
    ]


def _tuned_names(entries: Sequence[Entry]) -> list[str]:
    """The hyper-parameters that some entry is tuned in."""
    return list(dict.fromkeys(name for entry in entries for name in entry.search.names))


def _means(
    entries: Sequence[Entry], key: Key, form: str = ".4g", *, performance: bool | None = None
) -> list[Cell]:
    """The means of entries over the same seeds; added ones do not narrow those of the others."""
    samples = [entry.runs.values(key, performance=performance) for entry in entries]
    own = [sample for entry, sample in zip(entries, samples, strict=True) if entry.own]
    cells = iter(column(own, form))
    return [
        next(cells) if entry.own else column([*own, sample], form)[-1]
        for entry, sample in zip(entries, samples, strict=True)
    ]


def _name(arm: Arm) -> str:
    return str(arm.settings["contender"])


def _value(value: Any) -> str:
    if isinstance(value, float):  # 100 times 1e-6 is 1e-4 to a reader
        return f"{value:.6g}"
    return "" if value is None else json.dumps(value, default=str)
