"""Tables and pictures of a comparison; `ArmResult`, an arm on a condition that has run."""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.design import Arm, Condition, Search, Target, runs_to_target
from spherenorm_experiments.lookup import load_recipe
from spherenorm_experiments.pictures import (
    Line,
    Picture,
    add_band,
    add_crosses,
    curves,
    drawn,
    empty_figure,
    line_styles,
    rounded,
    within_percent,
)
from spherenorm_experiments.runs import WORST, Key, Place, Result, Runs, hyper, number
from spherenorm_experiments.tables import (
    Cell,
    Content,
    Heading,
    Row,
    Table,
    format_cells,
    paper_columns,
)
from spherenorm_experiments.task import Better
from spherenorm_experiments.verdict import (
    EQUIVALENCE_MARGIN,
    NOT_REACHED,
    estimate,
    interval,
    mean,
    paired_difference,
)


@dataclass(frozen=True, eq=False)
class ArmResult:
    """An arm on a condition that has run.

    Attributes:
        against: the names of the arms that it is compared with.
        all_runs: all of its runs, by point.
        complete_runs: those at as many points as have ended on the same seeds.
        selected_runs: the runs that its seeds choose, by seed.
        baseline_runs: those of the first arm that it is compared with; None if there is none.
        grid_scores: the mean validation score of each point, by the hyper-parameters that are
            tuned, and its mean `goodness` (see `spherenorm_experiments.runs.COLUMNS`).
        n_missing: how many of its runs have not ended.
    """

    condition: Condition
    arm: Arm
    search: Search
    against: Sequence[str]
    all_runs: pd.DataFrame
    complete_runs: pd.DataFrame
    selected_runs: pd.DataFrame
    baseline_runs: pd.DataFrame | None
    grid_scores: pd.DataFrame
    n_missing: int

    @property
    def place(self) -> Place:
        return Place(self.condition.label, self.arm.name)

    @property
    def runs(self) -> list[Result]:
        """The chosen ones."""
        return list(self.selected_runs.run)

    @property
    def better(self) -> Better:
        """The direction in which its score is better."""
        better: Better = self.all_runs.better.iloc[0]
        return better

    @functools.cached_property
    def best(self) -> Mapping[str, Any]:
        """The hyper-parameters of the runs at the point with the best mean validation score."""
        point = self.grid_scores.point[self.grid_scores.goodness.idxmax()]
        item: Result = self.complete_runs[self.complete_runs.point == point].run.iloc[0]
        return item.spec.hyper_parameters

    @property
    def runs_at_best(self) -> list[Result]:
        """The runs of all seeds at the point with the best mean validation score."""
        point = self.grid_scores.point[self.grid_scores.goodness.idxmax()]
        return list(self.complete_runs[self.complete_runs.point == point].run)

    @property
    def name_at_best(self) -> str:
        """The arm with the tuned values of its best point: "sgd (lr 0.1)"."""
        tuned = [name for name in self.search.names if hyper(name) in self.grid_scores]
        values = ", ".join(f"{name} {self.best[name]:.3g}" for name in tuned)
        return f"{self.arm.name} ({values})" if values else self.arm.name

    @property
    def all_hyper_parameters(self) -> Mapping[str, Any]:
        """All hyper-parameters at the best point; no defaults if the recipe is not here."""
        defaults: Mapping[str, Any] = {}
        with suppress(Exception):  # a user's module may be gone, or raise anything
            defaults = load_recipe(self.arm.recipe).defaults
        return {**defaults, **self.best}

    @functools.cached_property
    def edges(self) -> list[str]:
        """The hyper-parameters with no trial beyond their best value on one side."""
        if not np.isfinite(self.grid_scores.goodness.max()):
            return []
        values = {
            n: self.grid_scores[hyper(n)] for n in self.search.names if hyper(n) in self.grid_scores
        }
        many = {name: of for name, of in values.items() if of.nunique() > 1}
        return [name for name, of in many.items() if self.best[name] in (of.min(), of.max())]

    @property
    def edge_advice(self) -> list[str]:
        """A sentence for each best value at an edge: where to go on, if the recipe takes it."""
        sentences = []
        for name in self.edges:
            values, best = self.grid_scores[hyper(name)], self.best[name]
            upward = bool(best == values.max())
            further = float(f"{best * 10 if upward else best / 10:.3g}")
            sentence = f"{self.arm.name}'s best {name} ({best:.3g}) is at the edge of the range"
            if self._takes(name, further):
                sentence += f": try {'up' if upward else 'down'} to {further:g}"
            sentences.append(sentence)
        return sentences

    def _takes(self, name: str, value: float) -> bool:
        """Return True if its recipe can be built with another value of a hyper-parameter."""
        try:
            load_recipe(self.arm.recipe).replace(**{**self.best, name: value}).rule  # noqa: B018
        except (Exception, SystemExit):  # a momentum of 9, or a user's recipe that raises
            return False
        return True

    @property
    def difference(self) -> Cell:
        """The difference of scores to the baseline, by seed."""
        if self.baseline_runs is None:
            return Cell(None, missing="")
        return paired_difference(self.selected_runs.test, self.baseline_runs.test)

    @property
    def unscored(self) -> list[int]:
        """The seeds with no validation score at any point."""
        scores = self.complete_runs.groupby("seed").goodness.max()
        return [*scores.index[scores == -np.inf]]

    @property
    def selected_points(self) -> str:
        """The points that seeds take, each with the number of these."""
        scored = self.selected_runs[self.selected_runs.goodness > -np.inf]
        names = [name for name in self.search.names if hyper(name) in scored]
        groups = [*map(hyper, names)]
        counts = scored.groupby(groups).size() if names else pd.Series(dtype=int)
        points = [dict(zip(names, np.atleast_1d(point), strict=True)) for point in counts.index]
        texts = [f"{in_words(x)} ×{count}" for x, count in zip(points, counts, strict=True)]
        return ", ".join([*texts, *([f"none ×{len(self.unscored)}"] if self.unscored else [])])

    @property
    def notes(self) -> list[str]:
        """The facts about the runs that a reader of a claim needs."""
        place, unscored, count = self.place, self.unscored, len(self.all_runs)
        if len(unscored) == self.complete_runs.seed.nunique():
            return [f"no trial of {place} has a score"]
        facts = []
        if self.n_missing:
            facts.append(f"{count} of {count + self.n_missing} runs of {place} have ended")
        if n_left_out := self.all_runs.point.nunique() - len(self.grid_scores):
            facts.append(f"points of {place} that lack seeds and are left out: {n_left_out}")
        if unscored:
            seeds = ", ".join(map(str, unscored))
            facts.append(f"{place} has no validation score at any point on seed {seeds}")
        facts += [f"the best {name} of {place} is at an edge of its trials" for name in self.edges]
        return facts

    def paper_cells(self, names: Sequence[str]) -> list[Cell | None]:
        """Return the paper's numbers of it, by heading."""
        return [self.condition.paper.get(name, {}).get(self.arm.name) for name in names]


def arm_result_of(
    runs: Runs, condition: Condition, arm: Arm, search: Search, against: Sequence[str]
) -> ArmResult | None:
    """Return an arm on a condition; None without a run."""
    place = Place(condition.label, arm.name)
    complete_runs, selected_runs = runs.complete_grid(*place), runs.selected(*place)
    if complete_runs.empty:
        return None
    if complete_runs.validation.isna().all():  # a task without a score
        selected_runs = complete_runs.drop_duplicates("seed").set_index("seed")
    points = complete_runs.groupby("point")
    grid_scores = points[["validation", "goodness"]].mean()
    grid_scores = grid_scores.rename(columns={"validation": "score"}).reset_index()
    for name in (
        n for n in map(hyper, search.names) if n in complete_runs and complete_runs[n].notna().any()
    ):
        grid_scores[name] = points[name].first().to_numpy()
    baseline_runs = runs.selected(condition.label, against[0]) if against else None
    return ArmResult(
        condition,
        arm,
        search,
        against,
        all_runs=runs.all_runs(*place),
        complete_runs=complete_runs,
        selected_runs=selected_runs,
        baseline_runs=baseline_runs,
        grid_scores=grid_scores,
        n_missing=runs.missing_counts.get(place, 0),
    )


def metric_of(entries: Sequence[ArmResult]) -> str:
    """Return the quantity of the score, as the runs have noted it: the task may not be here."""
    noted = (item.summary.get("metric") for entry in entries for item in entry.all_runs.run)
    return next(filter(None, noted), "score")


def with_direction(metrics: Iterable[tuple[str, Better]]) -> str:
    """Return metrics with the direction in which they are better.

    >>> with_direction([("R2", "higher"), ("F1 (%)", "higher"), ("loss", "lower")])
    'R2, F1 (%), higher is better; loss, lower is better'
    """
    named: dict[Better, list[str]] = {}
    for name, better in dict.fromkeys(metrics):
        named.setdefault(better, []).append(name)
    return "; ".join(f"{', '.join(names)}, {better} is better" for better, names in named.items())


def unit_and_margin(condition: Condition, entries: Sequence[ArmResult]) -> tuple[str, float | None]:
    """Return the unit of a difference of scores, and the margin within which two are equivalent."""
    unit = condition.unit
    if unit is None:  # percentage points, or none
        unit = "pp" if "%" in metric_of(entries) else ""
    return (
        unit,
        EQUIVALENCE_MARGIN if condition.margin is None and unit == "pp" else condition.margin,
    )


def training_of(runs: Iterable[Result]) -> str:
    """Return the length of runs in words; a sweep counts steps in place of epochs.

    Where recipes differ in it, each is named: one with a schedule of its own has a constant rate.
    """
    recipes_by_length: dict[str, set[str]] = {}
    for run in runs:
        count, unit = run.spec.epochs, "epoch" if "steps_per_epoch" in run.summary else "step"
        length = f"{count} {unit}{'s' * (count != 1)}"
        text = f"{length} of batches of {run.spec.batch_size}, {run.spec.schedule} schedule"
        recipes_by_length.setdefault(text, set()).add(run.spec.recipe)
    lengths = sorted(recipes_by_length.items())
    if len({frozenset(recipes) for recipes in recipes_by_length.values()}) <= 1:
        return "; ".join(text for text, _ in lengths)
    return "; ".join(f"{text} ({', '.join(sorted(recipes))})" for text, recipes in lengths)


def in_words(point: Mapping[str, float]) -> str:
    """Return the values of a point; with names if there are several."""
    if len(point) == 1:
        return f"{next(iter(point.values())):.3g}"
    return " ".join(f"{name}={value:.3g}" for name, value in point.items())


MOST_TICKS = 10
"""The axis of a hyper-parameter names each value that was tried, if they are few and apart."""

CURVES = (
    ("norm", "norm ‖w‖", "Norm of the scale-invariant units", False),
    ("effective_step", "effective step ‖Δŵ‖", "Effective step sizes", True),
    ("loss", "training loss", "Training loss", True),
)


def invariant_share(item: Result) -> float | None:
    """Return the percentage of the parameters that are scale-invariant."""
    share = item.summary.get("invariant_share")
    return None if share is None else 100 * float(share)


Measures = Mapping[str, tuple[Key, str]]
"""Numbers of the chosen runs, by heading: a column or a function of a run, and a format."""

MEASURES: Measures = {
    "invariant share (%)": (invariant_share, ".1f"),
    "norm first": ("norm_start", ".3g"),
    "norm last": ("norm_last", ".3g"),
    "last / first": ("growth", ".3f"),
    "path on sphere": ("total_effective_step", ".3g"),
}


def tables_of(
    entries: Sequence[ArmResult],
    conditions: Sequence[Condition],
    extra: Measures,
    target: Target | None = None,
) -> list[Table]:
    """Scores, norms and grids; none of which no run has a number.

    Args:
        conditions: all of the comparison's.
        extra: the comparison's own measures.
        target: whose steps are compared; None for none.
    """
    headings = list(dict.fromkeys(name for condition in conditions for name in condition.paper))
    measures = {**MEASURES, **extra}
    tables = [
        _scores(entries, conditions, [name for name in headings if name not in measures]),
        *([] if target is None else [_steps_to_target(entries, target)]),
        _norms(entries, measures, [name for name in headings if name in measures]),
        _grids(entries),
        _equal_points(entries),
    ]
    return [table for table in tables if table.rows]


def pictures_of(entries: Sequence[ArmResult]) -> list[Picture]:
    """Condition by condition: scores at each point, differences, and curves at the best point."""
    pictures = []
    for results in _by_condition(entries):
        condition, better = results[0].condition, results[0].better
        metric = with_direction([(metric_of(results), better)])
        place, paper_figures = condition.place, condition.figures
        pictures += [_at_each(results, name, metric) for name in _tuned(results)
                     if any(entry.complete_runs[hyper(name)].nunique() > 1 for entry in results
                            if hyper(name) in entry.complete_runs)]  # fmt: skip
        pictures.append(_differences(results))
        final = [
            Line(result.name_at_best, result.arm.recipe, result.runs_at_best) for result in results
        ]
        for key, title, caption, log_y in CURVES:
            words = f"{caption}, all seeds of an arm at its best point on average: {place}."
            drawing = curves(final, key, title, words, log_y=log_y)
            pictures.append(replace(drawing, shows=paper_figures.get(key, "")))
        trained = f"Validation score after each epoch: {place}."
        drawing = curves(final, "validation", f"validation {metric}", trained)
        pictures.append(replace(drawing, shows=paper_figures.get("validation", "")))
    return drawn(pictures)


def _by_condition(entries: Sequence[ArmResult]) -> Iterator[list[ArmResult]]:
    for label in dict.fromkeys(entry.condition.label for entry in entries):
        yield [entry for entry in entries if entry.condition.label == label]


def _tuned(entries: Sequence[ArmResult]) -> list[str]:
    """Return the hyper-parameters that some arm is tuned in."""
    return list(dict.fromkeys(name for entry in entries for name in entry.search.names))


def _at_each(entries: Sequence[ArmResult], name: str, metric: str) -> Picture:
    """Return the test score at each value of a tuned hyper-parameter, with 95 % intervals."""
    figure = empty_figure(name, f"test {metric}", log_x=True)
    tuned_results = [entry for entry in entries if hyper(name) in entry.grid_scores]
    diverged: list[tuple[float, str, None, str]] = []
    means: list[float] = []
    styles = line_styles(entry.arm.recipe for entry in tuned_results)
    for entry, (color, dash) in zip(tuned_results, styles, strict=True):
        label, points = entry.arm.name, []
        for value, runs_at_value in entry.complete_runs.groupby(hyper(name)):
            if np.isfinite(runs_at_value.test).all():
                points.append(
                    (value, runs_at_value.test.mean(), *interval(runs_at_value.test.tolist()))
                )
            else:
                diverged.append((value, label, None, color))
        if points:
            x, middle, *ends = np.array(points).T
            means += middle.tolist()
            is_only_axis = len(entry.search.names) == 1
            add_band(figure, x, middle, ends if is_only_axis else (), label, color, dash,
                     mode="lines+markers" if is_only_axis else "markers")  # fmt: skip
    cut = ""
    best = [x for result in entries for x in result.selected_runs.test if math.isfinite(x)]
    if best and means:
        room = max(best) - min(best) or abs(best[0]) or 1.0
        low, high = min(best) - 0.5 * room, max(best) + 0.5 * room
        if entries[0].better == "higher":  # points that are far worse lie outside
            low = max(min(best) - 1.5 * room, min(means) - 0.1 * room)
        else:
            high = min(max(best) + 1.5 * room, max(means) + 0.1 * room)
        figure.update_yaxes(range=[low, high])
        outside = [value for value in means if not low <= value <= high]
        if outside:
            worst = min(outside) if entries[0].better == "higher" else max(outside)
            points_outside = f"{len(outside)} point{'s' * (len(outside) != 1)}"
            way = "down" if entries[0].better == "higher" else "up"
            cut = f" The axis leaves out {points_outside}, {way} to {worst:.4g}."
    values = sorted(
        {float(value) for result in tuned_results for value in result.complete_runs[hyper(name)]}
    )
    apart = all(b > 1.2 * a for a, b in itertools.pairwise(values))
    if len(values) <= MOST_TICKS and apart:
        labels = [f"{value:.3g}" for value in values]
        figure.update_xaxes(tickvals=values, ticktext=labels, tickangle=-45)
    within_percent(figure)
    add_crosses(figure, diverged)
    legend = "mean and 95 % interval over seeds; × where one diverged"
    return Picture(
        figure, f"Test score at each {name} ({entries[0].condition.place}): {legend}.{cut}"
    )


def _differences(entries: Sequence[ArmResult]) -> Picture:
    """Return the differences of the pairs: ticks are seeds, bars 95 % intervals."""
    figure, labels = empty_figure(f"difference in {metric_of(entries)}", ""), list[str]()
    colors = [color for color, _ in line_styles(entry.arm.recipe for entry in entries)]
    for entry, color in zip(entries, colors, strict=True):
        gaps = entry.selected_runs.test - (
            math.nan if entry.baseline_runs is None else entry.baseline_runs.test
        )
        gaps = gaps[np.isfinite(gaps)]
        if gaps.empty:
            continue
        labels.append(f"{entry.arm.name} − {entry.against[0]}")
        (low, high), center = interval(gaps.tolist()), mean(gaps)
        ticks = {"symbol": "line-ns-open", "size": 12, "color": color}
        ends = {"type": "data", "array": [high - center], "arrayminus": [center - low],
                "color": color, "thickness": 3}  # fmt: skip
        seeds = [f"seed {seed}" for seed in gaps.index]
        markers: dict[str, Any] = {"mode": "markers", "showlegend": False}
        figure.add_scatter(x=rounded(gaps), y=[labels[-1]] * len(gaps), marker=ticks,
                           hovertext=seeds, **markers)  # fmt: skip
        figure.add_scatter(x=rounded([center]), y=labels[-1:], marker={"size": 11, "color": color},
                           error_x=None if math.isnan(low) else ends, **markers)  # fmt: skip
    condition = entries[0].condition
    margin = unit_and_margin(condition, entries)[1]
    caption = f"Differences ({condition.place}), each seed at the point that it chooses: ticks are "
    caption += "seeds, bars 95 % intervals."
    if margin is not None and labels:
        figure.add_vrect(-margin, margin, fillcolor="rgba(128,128,128,0.15)", line_width=0)
        caption += f" Within the grey band of ±{margin:g} two scores count as equal."
    figure.update_yaxes(type="category", range=[-0.6, len(labels) - 0.4],
                        categoryorder="array", categoryarray=labels[::-1])  # fmt: skip
    figure.update_xaxes(zeroline=True)
    figure.update_layout(margin_b=60)  # no legend keeps the axis' title apart from the caption
    return Picture(figure, caption)


def _scores(
    entries: Sequence[ArmResult], conditions: Sequence[Condition], quoted: Sequence[str]
) -> Table:
    """Return the chosen runs: hyper-parameters, metrics of the test set, and paired differences."""
    metrics = (name for results in _by_condition(entries) for name in _metrics_of(results))
    names = list(dict.fromkeys(metrics)) or ["score"]
    columns = entries[0].all_runs if entries else ()
    keys = [f"test.{name}" if f"test.{name}" in columns else "test" for name in names]
    tuned = _tuned(entries)
    different = {name: of for name, of in _differing(entries).items() if name not in tuned}
    growth = [("growth", ".3g")] if not any(result.paper for result in conditions) else []
    rows: list[Row] = []
    for entry, means in _with_means(entries, [*((key, ".4g") for key in keys), *growth]):
        values = [of.get(entry.place, "") for of in different.values()]
        n_diverged = sum(run.diverged for run in entry.complete_runs.run)
        counts = Cell(len(entry.selected_runs), "d"), Cell(n_diverged, "d")
        points = f"{entry.selected_points} (edge)" if entry.edges else entry.selected_points
        selected = [points] if tuned else []
        scores, norms = means[: len(keys)], means[len(keys) :]
        measured: list[Content] = [*scores, entry.difference, *selected, *values, *norms, *counts]
        rows.append((str(entry.place), *measured, *entry.paper_cells(quoted)))
    headings: list[Heading] = ["arm", *names, "minus baseline"]
    headings += [*(["chosen by seeds"] if tuned else []), *different]
    headings += [*(["norm, last / first"] if growth else [])]
    headings += ["seeds", "diverged", *paper_columns(*quoted)]
    paper_setups = "; ".join(
        f"{result.place}: {result.paper_setup}" for result in conditions if result.paper_setup
    )
    ran = training_of(run for entry in entries for run in entry.runs)
    pairs = dict.fromkeys(f"{e.arm.name} − {e.against[0]}" for e in entries if e.against)
    note = [
        f"The paper's: {paper_setups}." if paper_setups else "",
        f"Each run: {ran}." if ran else "",
        "Mean ± SD over the seeds that all optimizers of a condition completed; blank if one "
        "diverged there. "
        f"Differences ({', '.join(pairs)}) are of the score, paired by seed, with Student's "
        "95 % intervals. (edge): no value was tried beyond the best one on one side: a wider range "
        "may change the order. Diverged: runs of all trials.",
    ]
    decisive = [(metric_of(results), results[0].better) for results in _by_condition(entries)]
    title = f"Scores ({with_direction(decisive)})" if decisive else "Scores"
    return Table(title, headings, rows, " ".join(filter(None, note)))


def _steps_to_target(entries: Sequence[ArmResult], target: Target) -> Table:
    """The steps and the seconds to a target; a seed that never reached it counts as infinity."""
    by_place = {entry.place: runs_to_target(entry.complete_runs, target) for entry in entries}
    rows: list[Row] = []
    for entry in entries:
        seeds = by_place[entry.place]
        n_reached = int(np.isfinite(seeds.steps).sum())
        medians = [float(seeds[name].median()) for name in ("steps", "seconds")]
        cells = [Cell(x if math.isfinite(x) else None, ".4g", missing="∞") for x in medians]
        ratio = Cell(None, missing="")
        baseline = by_place.get(Place(entry.condition.label, next(iter(entry.against), "")))
        if baseline is not None:
            ratio = estimate(
                (seeds.steps / baseline.steps).dropna(),
                ratio=True,
                form=".3g",
                lost_word=NOT_REACHED,
            )
        rows.append((str(entry.place), f"{n_reached} of {len(seeds)}", *cells, ratio))
    note = (
        "Of each seed the trial of the search that reaches the target first. Medians count a seed "
        "that never reached it as infinity, and are ∞ if half of the seeds are such. The target is "
        "looked at after each epoch; seconds are the run's, in proportion to its steps. The ratio "
        "is a geometric mean over the seeds on which both reached it, with Student's 95 % interval."
    )
    columns = ("arm", "seeds that reach it", "median steps", "median s", "steps / baseline's")
    return Table(f"Steps to {target}", columns, rows, note)


def _metrics_of(entries: Sequence[ArmResult]) -> list[str]:
    """The metrics of a condition; those that the paper has come first, and then the score."""
    runs = [run for result in entries for run in result.runs]
    score = filter(None, (run.summary.get("score") for run in runs))
    test_metrics = (name for run in runs for name in run.summary.get("test_metrics") or {})
    named = list(dict.fromkeys([*score, *test_metrics]))
    quoted = [name for name in entries[0].condition.paper if name in named]
    return list(dict.fromkeys([*quoted, *named]))


def _differing(entries: Sequence[ArmResult]) -> dict[str, dict[Place, str]]:
    """Return the hyper-parameters that some arm fixes and in which some differ, by name."""
    fixed = dict.fromkeys(name for entry in entries for name in entry.best)
    values = {entry.place: entry.all_hyper_parameters for entry in entries}
    by_name = {
        name: {place: of[name] for place, of in values.items() if name in of} for name in fixed
    }
    return {
        name: {place: _value(value) for place, value in of.items()}
        for name, of in by_name.items()
        if len(set(map(repr, of.values()))) > 1
    }


def _value(value: Any) -> str:
    if isinstance(value, float):  # 100 times 1e-6 is 1e-4 to a reader
        return f"{value:.6g}"
    return "" if value is None else json.dumps(value, default=str)


def _norms(entries: Sequence[ArmResult], measures: Measures, quoted: Sequence[str]) -> Table:
    rows: list[list[Content]] = [
        [str(entry.place), *means, *entry.paper_cells(quoted)]
        for entry, means in _with_means(entries, list(measures.values()))
    ]
    headings: list[Heading] = ["arm", *measures, *paper_columns(*quoted)]
    shown_columns = [i for i in range(len(headings)) if any(_is_known(row[i]) for row in rows)]
    shown_rows = [[row[i] for i in shown_columns] for row in rows]
    note = "The norm is the mean over the scale-invariant units."
    return Table("Norms and steps", [headings[i] for i in shown_columns], shown_rows, note)


def _is_known(cell: Content) -> bool:
    return bool(cell) and (not isinstance(cell, Cell) or cell.is_known or cell.diverged > 0)


def _grids(entries: Sequence[ArmResult]) -> Table:
    """The grids: how many points there were, what became of them, and how far apart they score."""
    rows: list[Row] = []
    for entry in entries:
        if not entry.search.names or entry.complete_runs.validation.isna().all():
            continue
        tests, score = entry.complete_runs.groupby("point").test.mean(), entry.grid_scores.score
        means = tests[np.isfinite(tests)].tolist()
        best, worst = (max, min) if entry.better == "higher" else (min, max)
        top = best(score.dropna(), default=math.nan)
        validation = Cell(top if np.isfinite(top) else None, ".4g")
        ends = (Cell(f(means) if means else None, ".4g") for f in (best, statistics.median, worst))
        counts = Cell(len(score), "d"), Cell(int((~np.isfinite(score)).sum()), "d")
        rows.append((str(entry.place), *counts, validation, *ends))
    note = (
        "All points train on all seeds; a seed takes the point with its best validation score, "
        "none if it has no score at any point. The last columns say how much the choice matters: "
        "the mean test scores of the points on which no seed diverged."
    )
    columns = ("arm", "trials", "without a score", "validation")
    return Table("Tuning", (*columns, "test, best point", "median", "worst"), rows, note)


def _equal_points(entries: Sequence[ArmResult]) -> Table:
    """Return the difference of each pair at each point that both have, and over all of these."""
    of = {entry.place: entry for entry in entries}
    pairs = [(x, of.get(Place(x.condition.label, base))) for x in entries for base in x.against]
    rows: list[Row] = []
    for result, base in pairs:
        names = result.search.names
        if base is None or base.search.names != names:
            continue
        levels = [*map(hyper, names)]
        if not {*levels} <= {*result.complete_runs} & {*base.complete_runs}:
            continue
        arm_side, right = (
            result.complete_runs.set_index([*levels, "seed"]).test.sort_index()
            for result in (result, base)
        )
        sides, pair_label = arm_side.align(right, join="inner"), f"{result.place} − {base.arm.name}"
        points = sides[0].index.droplevel("seed").unique()
        for key in points:
            pair = [x.xs(key, level=levels if len(levels) > 1 else levels[0]) for x in sides]
            point = dict(zip(names, np.atleast_1d(key), strict=True))
            is_papers = all(point.items() <= result.arm.paper.items() for result in (result, base))
            place = in_words(point) + " (the paper's)" * is_papers
            rows.append((pair_label, place, *format_cells(pair, ".4g"), paired_difference(*pair)))
        if len(points) > 1:
            means = [side.groupby("seed").mean() for side in sides]
            rows.append(
                (
                    pair_label,
                    "mean over the grid",
                    *format_cells(means, ".4g"),
                    paired_difference(*means),
                )
            )
    note = "Test scores, paired by seed, with Student's 95 % intervals, not corrected for number."
    return Table("At equal points", ("pair", "point", "ours", "baseline", "difference"), rows, note)


def _with_means(
    entries: Sequence[ArmResult], keys: Sequence[tuple[Key, str]]
) -> Iterator[tuple[ArmResult, list[Cell]]]:
    """Each arm with its means, over the seeds that the arms of its condition share."""
    for results in _by_condition(entries):
        columns = [format_cells([_measured(x, key) for x in results], form) for key, form in keys]
        yield from ((entry, [cells[i] for cells in columns]) for i, entry in enumerate(results))


def _measured(entry: ArmResult, key: Key) -> pd.Series:
    """A number of the chosen runs; of one that diverged infinity, so that no mean holds it."""
    values = number(entry.selected_runs, key)
    return (
        values.mask(entry.selected_runs.goodness == -math.inf, math.inf) if key in WORST else values
    )
