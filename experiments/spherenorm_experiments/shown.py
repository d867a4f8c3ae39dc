"""The tables and pictures of a comparison."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.design import Arm, Condition, Design, differing, metric_of
from spherenorm_experiments.pictures import (
    Line,
    Picture,
    add_crosses,
    curves,
    drawn,
    empty_figure,
    line_styles,
    rounded,
    with_alpha,
)
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.runs import Key, Place, Result, Runs, number
from spherenorm_experiments.search import EDGE, OUTERMOST
from spherenorm_experiments.stats import interval
from spherenorm_experiments.tables import (
    Cell,
    Content,
    Heading,
    Row,
    Table,
    column,
    difference,
    mean_of,
    paper,
)

MOST_TICKS = 10
"""The axis of a hyper-parameter names each value that was tried, if they are so few."""

CURVES = (
    ("norm", "norm ‖w‖", "Norm of the scale-invariant units", False),
    ("effective_step", "effective step ‖Δŵ‖", "Effective step sizes", True),
    ("loss", "training loss", "Training loss", True),
)


class Entry(NamedTuple):
    """An arm on a condition that has run.

    Attributes:
        chosen: the runs that its seeds choose, by seed.
        tried: the mean validation score of each point, by the hyper-parameters that are tuned.
    """

    study: Design
    condition: Condition
    arm: Arm
    every: pd.DataFrame
    chosen: pd.DataFrame
    tried: pd.DataFrame

    @property
    def place(self) -> Place:
        return Place(self.condition.label, self.arm.name)

    @property
    def base(self) -> str | None:
        """The name of the arm that it is compared with; of several the first."""
        return next(iter(self.study.against(self.arm)), None)

    @property
    def names(self) -> list[str]:
        """The hyper-parameters that it tunes."""
        return self.study.search(self.arm).names

    @property
    def best(self) -> Mapping[str, Any]:
        """The hyper-parameters of the runs at the point with the best mean validation score."""
        point = self.tried.point[self.tried.score.idxmax()]
        item: Result = self.every[self.every.point == point].run.iloc[0]
        return item.spec.hyper_parameters

    @property
    def every_value(self) -> Mapping[str, Any]:
        """The same with the defaults of the recipe; if that is not here, only what was given."""
        defaults: Mapping[str, Any] = {}
        with suppress(Exception):  # a user's module may be gone, or raise anything
            defaults = load_recipe(self.arm.recipe).defaults
        return {**defaults, **self.best}

    @property
    def marks(self) -> dict[str, str]:
        """The best values with no trial beyond them on one side, each with its mark."""
        search, best = self.study.search(self.arm), self.best
        if not np.isfinite(self.tried.score.max()):
            return {}
        marks = {n: search.mark(n, best[n], self.tried[n].tolist()) for n in search.names
                 if n in self.tried}  # fmt: skip
        return {name: mark for name, mark in marks.items() if mark}

    def cells(self, names: Sequence[str]) -> list[Cell]:
        """The hyper-parameters that some arm tunes, at the best point, with their marks."""
        marks = self.marks
        return [
            Cell(self.best.get(name), ".3g", unit=f"({marks[name]})" if name in marks else "")
            if name in self.names
            else Cell(None, missing="not tuned")
            for name in names
        ]

    def quoted(self, names: Sequence[str]) -> list[Cell | None]:
        """The paper's numbers of it, by heading."""
        return [self.condition.paper.get(name, {}).get(self.arm.name) for name in names]

    @property
    def runs(self) -> list[Result]:
        """The chosen runs with a score."""
        return list(self.chosen.run)


def entry_of(study: Design, runs: Runs, condition: Condition, arm: Arm) -> Entry | None:
    """An arm on a condition; None without a run."""
    key = "entry", study, condition.label, arm.name
    return runs.once(key, lambda: _entry(study, runs, condition, arm))


def _entry(study: Design, runs: Runs, condition: Condition, arm: Arm) -> Entry | None:
    every = runs.of(condition.label, arm.name)
    if every.empty:
        return None
    names = [
        name for name in study.search(arm).names if name in every and every[name].notna().any()
    ]
    points = every.groupby("point")
    scores = points.validation.mean().rename("score").reset_index()
    for name in names:
        scores[name] = points[name].first().to_numpy()
    chosen = runs.best(condition.label, arm.name)
    if every.validation.isna().all():  # a task without a score
        chosen = every.drop_duplicates("seed").set_index("seed")
    return Entry(study, condition, arm, every, chosen, scores)


def entries_of(study: Design, runs: Runs) -> list[Entry]:
    """The arms with a run, by condition; added ones come last."""
    pairs = itertools.product(study.conditions, study.arms)
    entries = (entry_of(study, runs, condition, arm) for condition, arm in pairs)
    return [entry for entry in entries if entry is not None]


def notes_of(study: Design, runs: Runs, condition: Condition, arm: Arm) -> list[str]:
    """The facts about the runs of an arm that a reader of a claim needs."""
    entry, place = entry_of(study, runs, condition, arm), Place(condition.label, arm.name)
    if entry is None:
        return []
    scores = entry.every.groupby("seed").validation.max()
    lost = scores.index[scores == -math.inf]
    if len(lost) == len(scores):
        return [f"no trial of {place} has a score"]
    away, done = runs.lacking.get(place, 0), len(runs.every(*place))
    facts = [f"{done} of {done + away} runs of {place} have ended"] if away else []
    if left := runs.every(*place).point.nunique() - len(entry.tried):
        facts.append(f"points of {place} that lack seeds and are left out: {left}")
    if len(lost):
        seeds = ", ".join(map(str, lost))
        facts.append(f"{place} has no validation score at any point on seed {seeds}")
    places = {EDGE: "at an edge of its range",
              OUTERMOST: "the outermost of its trials, within its range"}  # fmt: skip
    marks = entry.marks.items()
    return facts + [f"the best {name} of {place} is {places[mark]}" for name, mark in marks]


def tables_of(study: Design, runs: Runs) -> list[Table]:
    """Scores, norms and grids; none of which no run has a number."""
    entries = entries_of(study, runs)
    tables = [
        _scores(study, runs, entries),
        _norms(study, entries),
        _grids(entries),
        _equal_points(study, runs),
    ]
    return [table for table in tables if table.rows]


def pictures_of(study: Design, runs: Runs) -> list[Picture]:
    """The chosen runs and the grids, condition by condition."""
    entries, pictures = entries_of(study, runs), []
    for condition in study.conditions:
        own = [each for each in entries if each.condition is condition]
        final = [Line(str(each.place), each.arm.recipe, each.runs) for each in own]
        for key, title, caption, log_y in CURVES:
            words = f"{caption}, each seed at the point that it chooses: {condition.place}."
            pictures.append(curves(final, key, title, words, log_y=log_y))
        metric = metric_of(runs, condition)
        for name in _tuned_names(own):
            known = [each for each in own if name in each.tried]
            pictures.append(at_each(known, name, metric, f" ({condition.place})"))
        trained = f"The chosen runs while they train: {condition.place}."
        pictures.append(curves(final, "validation", f"validation {metric}", trained))
    return drawn(pictures)


def at_each(entries: Sequence[Entry], name: str, metric: str, words: str = "") -> Picture:
    """The test score at each value of a tuned hyper-parameter, with 95 % intervals."""
    figure = empty_figure(name, f"test {metric}", log_x=True)
    lost: list[tuple[float, str, None, str]] = []
    lowest: list[float] = []
    styles = line_styles(entry.arm.recipe for entry in entries)
    for entry, (color, dash) in zip(entries, styles, strict=True):
        known, label = [], entry.arm.name
        for value, own in entry.every.groupby(name):
            if np.isfinite(own.test).all():
                ends = interval(own.test.tolist())
                known.append((value, own.test.mean(), *ends))
            else:
                lost.append((value, label, None, color))
        if not known:
            continue
        x, middle, low, high = np.array(known).T
        alone = len(entry.names) == 1
        lowest.append(float(middle.min()))
        if alone and not np.isnan(low).any():
            figure.add_scatter(
                x=rounded([*x, *x[::-1]]), y=rounded([*high, *low[::-1]]), mode="lines",
                fill="toself", fillcolor=with_alpha(color, 0.15), line={"width": 0},
                hoverinfo="skip", showlegend=False, legendgroup=label,
            )  # fmt: skip
        figure.add_scatter(
            x=rounded(x), y=rounded(middle), name=label, legendgroup=label,
            mode="lines+markers" if alone else "markers",
            line={"color": color, "dash": dash, "width": 2},
        )  # fmt: skip
    best = [x for each in entries for x in each.chosen.test if math.isfinite(x)]
    if best and lowest:
        room = max(best) - min(best) or abs(best[0]) or 1.0
        floor = max(min(best) - 1.5 * room, min(lowest) - 0.1 * room)
        figure.update_yaxes(range=[floor, max(best) + 0.5 * room])
    values = sorted({float(value) for each in entries for value in each.every[name]})
    if len(values) <= MOST_TICKS:
        labels = [f"{value:.3g}" for value in values]
        figure.update_xaxes(tickvals=values, ticktext=labels, tickangle=-45)
    add_crosses(figure, lost)
    said = "mean and 95 % interval over seeds; × where one diverged"
    return Picture(figure, f"Test score at each {name}{words}: {said}.")


def _scores(study: Design, runs: Runs, entries: Sequence[Entry]) -> Table:
    """The chosen runs: hyper-parameters, metrics of the test set, and paired differences."""
    names = list(dict.fromkeys(name for each in study.conditions
                               for name in _metrics_on(each, entries))) or ["score"]  # fmt: skip
    quoted = [name for name in _quoted(study) if name not in _measures(study)]
    tuned_names = _tuned_names(entries)
    values = differing({each.place: each.every_value for each in entries})
    different = {name: of for name, of in values.items() if name not in tuned_names}
    keys = [f"test.{name}" if f"test.{name}" in runs.frame else "test" for name in names]
    rows: list[Row] = []
    pairs: dict[str, None] = {}
    for entry, means in _with_means(study, entries, [(key, ".4g") for key in keys]):
        gap = Cell(None, missing="")
        if entry.base is not None:
            gap = difference(entry.chosen.test, runs.best(entry.condition.label, entry.base).test)
            pairs[f"{entry.arm.name} − {entry.base}"] = None
        values_here = [_value(of.get(entry.place)) for of in different.values()]
        rows.append(
            (str(entry.place), *entry.cells(tuned_names), *values_here, *means,
             Cell(len(entry.chosen), "d"), gap, *entry.quoted(quoted))
        )  # fmt: skip
    headings: list[Heading] = ["arm", *tuned_names, *different, *names, "seeds"]
    headings += ["minus its baseline", *paper(*quoted)]
    return Table("Scores", headings, rows, _about_scores(study, entries, list(pairs)))


def _metrics_on(condition: Condition, entries: Sequence[Entry]) -> list[str]:
    """The metrics of a condition; those that the paper has come first, and then the score."""
    runs = [run for each in entries if each.condition is condition for run in each.runs]
    score = [run.summary.get("score") for run in runs]
    found = [name for run in runs for name in run.summary.get("test_metrics") or {}]
    named = list(dict.fromkeys([*filter(None, score), *found]))
    return list(dict.fromkeys([*(name for name in condition.paper if name in named), *named]))


def _about_scores(study: Design, entries: Sequence[Entry], pairs: list[str]) -> str:
    places = "; ".join(f"{each.place}: {each.theirs}" for each in study.conditions if each.theirs)
    ran = set()
    for run in (run for entry in entries for run in entry.runs):
        unit = "epochs" if "steps_per_epoch" in run.summary else "steps"  # of a sweep
        size, schedule = run.spec.batch_size, run.spec.schedule
        ran.add(f"{run.spec.epochs} {unit} of batches of {size}, {schedule} schedule")
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


def _quoted(study: Design) -> list[str]:
    """The headings of the paper's numbers."""
    return list(dict.fromkeys(name for each in study.conditions for name in each.paper))


def _measures(study: Design) -> dict[str, tuple[Key, str]]:
    """The numbers beside the scores, by heading."""
    return {
        "norm first": ("norm_start", ".3g"),
        "norm last": ("norm_last", ".3g"),
        "last / first": ("growth", ".3f"),
        "path on sphere": ("total_effective_step", ".3g"),
        **study.measures,
    }


def _norms(study: Design, entries: Sequence[Entry]) -> Table:
    keys = _measures(study)
    quoted = [name for name in _quoted(study) if name in keys]
    rows: list[list[Content]] = []
    for entry, means in _with_means(study, entries, list(keys.values())):
        share = mean_of(number(entry.chosen, invariant_share), ".1f")
        place, views = str(entry.place), _views_of(entry.runs)
        rows.append([place, share, views, *means, *entry.quoted(quoted)])
    note = "The norm is the mean over the scale-invariant units."
    if any(row[2] for row in rows):
        note += (
            " Views: in how many weights of two or more dimensions the audit finds invariance "
            "channel by channel, of the whole layer, and none."
        )
    headings: list[Heading] = ["arm", "invariant share (%)", "views", *keys, *paper(*quoted)]
    known = [any(_is_known(row[i]) for row in rows) for i in range(len(headings))]
    kept = [list(itertools.compress(row, known)) for row in rows]
    return Table("Norms and steps", list(itertools.compress(headings, known)), kept, note)


def _is_known(cell: Content) -> bool:
    """True for a number or a text that is not empty."""
    return bool(cell) and (not isinstance(cell, Cell) or cell.known or cell.diverged > 0)


def _grids(entries: Sequence[Entry]) -> Table:
    """The grids: how many points there were, what became of them, and how far apart they score."""
    tuned_names = _tuned_names(entries)
    rows: list[Row] = []
    for entry in entries:
        if not tuned_names or entry.every.validation.isna().all():
            continue
        tests = entry.every.groupby("point").test.mean()
        means = tests[np.isfinite(tests)].tolist()
        taken = [f"{words} × {count}" for words, count in taken_by(entry)]
        scores = entry.every.groupby("seed").validation.max()
        none = int((scores == -math.inf).sum())
        taken += [f"none × {none}"] if none else []
        score = entry.tried.score.max()
        best = Cell(score if math.isfinite(score) else None, ".4g")
        lost = int((~np.isfinite(entry.tried.score)).sum())
        ends = (f(means) if means else None for f in (max, statistics.median, min))
        rows.append(
            (str(entry.place), Cell(len(entry.tried), "d"), Cell(lost, "d"),
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


def taken_by(entry: Entry) -> list[tuple[str, int]]:
    """The points that seeds take, in words, and by how many."""
    scored = entry.chosen[entry.chosen.validation > -math.inf]
    names = [name for name in entry.names if name in scored]
    counts = scored.groupby(names).size() if names else pd.Series(dtype=int)
    return [(_point(dict(zip(names, np.atleast_1d(point), strict=True))), int(count))
            for point, count in counts.items()]  # fmt: skip


def _equal_points(study: Design, runs: Runs) -> Table:
    """The difference of each pair at each point that both have, and over all of these."""
    rows: list[Row] = []
    for condition, (base, ours) in study.comparisons:
        names = study.search(ours).names
        if names != study.search(base).names:
            continue
        frames = [runs.of(condition.label, each.name) for each in (ours, base)]
        if any(frame.empty or not {*names} <= {*frame} for frame in frames):
            continue
        keyed = [frame.set_index([*names, "seed"]).test.sort_index() for frame in frames]
        left, right = keyed[0].align(keyed[1], join="inner")
        first = f"{condition.label}: {ours.name} − {base.name}".removeprefix(": ")
        points = left.index.droplevel("seed").unique()
        for key in points:
            pair = [side.xs(key, level=names if len(names) > 1 else names[0])
                    for side in (left, right)]  # fmt: skip
            point = dict(zip(names, np.atleast_1d(key), strict=True))
            said = all(point.items() <= each.paper.items() for each in (ours, base))
            place = _point(point) + " (the paper's)" * said
            rows.append((first, place, *column(pair, ".4g"), difference(*pair)))
        if len(points) > 1:
            means = [side.groupby("seed").mean() for side in (left, right)]
            rows.append((first, "mean over the grid", *column(means, ".4g"), difference(*means)))
    note = "Test scores, paired by seed, with Student's 95 % intervals, not corrected for number."
    return Table("At equal points", ("pair", "point", "ours", "baseline", "difference"), rows, note)


def _point(point: Mapping[str, float]) -> str:
    """The values of a point; with names if there are several."""
    if len(point) == 1:
        return f"{next(iter(point.values())):.3g}"
    return " ".join(f"{name}={value:.3g}" for name, value in point.items())


def invariant_share(item: Result) -> float | None:
    """The percentage of the parameters that are scale-invariant."""
    share = item.summary.get("invariant_share")
    return None if share is None else 100 * float(share)


def _views_of(runs: Sequence[Result]) -> str:
    """The number of weights by the view in which the audit finds them invariant."""
    views = next((list((item.summary.get("views") or {}).values()) for item in runs), [])
    counts = [("channel", "channel"), ("layer", "layer"), (None, "none")]
    return ", ".join(f"{views.count(view)} {name}" for view, name in counts if view in views)


def _tuned_names(entries: Sequence[Entry]) -> list[str]:
    """The hyper-parameters that some arm is tuned in."""
    return list(dict.fromkeys(name for entry in entries for name in entry.names))


def _with_means(
    study: Design, entries: Sequence[Entry], keys: Sequence[tuple[Key, str]]
) -> Iterator[tuple[Entry, list[Cell]]]:
    """Each arm with its means, over the seeds that the arms of its condition share."""
    for condition in study.conditions:
        own = [entry for entry in entries if entry.condition is condition]
        columns = [_means(own, key, form) for key, form in keys]
        yield from ((entry, [cells[i] for cells in columns]) for i, entry in enumerate(own))


def _means(entries: Sequence[Entry], key: Key, form: str) -> list[Cell]:
    """The means of entries over the same seeds; added ones do not narrow those of the others."""
    values = [number(entry.chosen, key) for entry in entries]
    own = [series for entry, series in zip(entries, values, strict=True) if not entry.arm.added]
    cells = iter(column(own, form))
    return [
        column([*own, series], form)[-1] if entry.arm.added else next(cells)
        for entry, series in zip(entries, values, strict=True)
    ]


def _value(value: Any) -> str:
    if isinstance(value, float):  # 100 times 1e-6 is 1e-4 to a reader
        return f"{value:.6g}"
    return "" if value is None else json.dumps(value, default=str)
