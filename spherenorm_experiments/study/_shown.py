"""The tables and pictures of a tuned comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Heading,
    Key,
    Result,
    Results,
    Row,
    Sample,
    Table,
    column,
    difference,
    metric_on_test,
    paper,
    percent_right,
)
from spherenorm_experiments.report.pictures import Picture, Tries, best_scores, curves, drawn, tried
from spherenorm_experiments.study._compared import Compared, metric_of, metrics_on
from spherenorm_experiments.study._condition import Condition

__all__ = ["growth", "invariant_share", "pictures_of", "range_table", "tables_of"]

DELTA = 0.1

CURVES = (
    ("norm", "norm ‖w‖", "Norm of the scale-invariant units", False),
    ("effective_step", "effective step ‖Δŵ‖", "Effective step sizes", True),
    ("loss", "training loss", "Training loss", True),
)


def tables_of(seen: Compared) -> list[Table]:
    """Scores, norms and searches; none of which no run has a number."""
    scores = {
        condition.label: {
            arm: seen.results.arm(arm).values("test")
            for arm in seen.arms(condition)
            if seen.is_own(arm)
        }
        for condition in seen.design.on
    }
    made = [_scores(seen), _norms(seen), _searches(seen)]
    made[1:1] = [range_table(scores)] if len(seen.design.on) > 1 else []
    return [table for table in made if table.rows]


def pictures_of(seen: Compared) -> list[Picture]:
    """The final runs and the searches, condition by condition."""
    pictures: list[Picture] = []
    for condition in seen.design.on:
        final = seen.final.having(condition=condition.label)
        for key, title, caption, log_y in CURVES:
            words = f"{caption}, each optimizer at its tuned point: {condition.place}."
            pictures.append(curves(final, key, title, words, log_y=log_y))
        pictures += _of_searches(seen, condition)
        score, trained = (
            f"validation {metric_of(seen.results, condition)}",
            "The final runs while they train",
        )
        pictures.append(curves(final, "validation", score, f"{trained}: {condition.place}."))
    return drawn(pictures)


def _of_searches(seen: Compared, condition: Condition) -> list[Picture]:
    """Scores against each tuned hyper-parameter, and the expected best of k trials in ranges."""
    arms = seen.arms(condition, searched=True)
    ended = {arm: seen.tuned(arm) for arm in arms}
    score = f"validation {metric_of(seen.results, condition)}"
    tries = {
        arm: Tries(each.points, each.scores, each.best)
        for arm, each in ended.items() if each.points
    }  # fmt: skip
    pictures: list[Picture] = []
    for name in seen.tuned_names:
        own = {arm: each for arm, each in tries.items() if name in each.points[0]}
        caption = (
            f"Every trial's score against {name}, the mean over the seeds of the tuning; the large "
            f"marks are the best points: {condition.place}."
        )
        pictures.append(tried(own, name, score, caption))
    # A lost trial has no score, so that a best of k is not a number.
    whole = {
        arm: each.scores for arm, each in ended.items()
        if len(each.scores) > 1 and not each.lost and seen.search(arm).ranges
    }  # fmt: skip
    best = "The expected best validation score of k trials, of those that were made"
    return [*pictures, best_scores(whole, score, f"{best}: {condition.place}.")]


def _scores(seen: Compared) -> Table:
    """The final runs: hyper-parameters, metrics of the test set, and paired differences."""
    metrics = dict.fromkeys(
        name for each in seen.design.on for name in metrics_on(seen.results, each)
    )
    names = list(metrics) or ["score"]
    quoted = list(dict.fromkeys(name for each in seen.design.on for name in each.paper))
    differing = seen.differing()
    rows: list[Row] = []
    pairs: dict[str, None] = {}
    for condition in seen.design.on:
        arms = seen.arms(condition)
        columns = [_means(seen, {arm: _metric(seen, arm, n) for arm in arms}) for n in names]
        for i, arm in enumerate(arms):
            runs, base, name = seen.results.arm(arm), seen.baseline(condition, arm), _name(arm)
            gap = Cell(None, missing="")
            if base is not None:
                gap = difference(runs.values("test"), seen.results.arm(base).values("test"))
                pairs[f"{name} − {_name(base)}"] = None
            row: list[Any] = [arm.label, *seen.cells(arm, seen.taken(arm))]
            row += [_value(of.get(arm)) for of in differing.values()]
            row += [*(cells[i] for cells in columns), Cell(len(runs), "d"), gap]
            row += [condition.paper.get(metric, {}).get(name) for metric in quoted]
            rows.append(tuple(row))
    headings: list[Heading] = ["arm", *seen.tuned_names, *differing, *names, "seeds"]
    headings += ["minus its baseline", *paper(*quoted)]
    return Table("Scores", headings, rows, _about_scores(seen, list(pairs)))


def _about_scores(seen: Compared, pairs: list[str]) -> str:
    places = "; ".join(f"{each.label}: {each.theirs}" for each in seen.design.on if each.theirs)
    specs = (item.spec for item in seen.final)
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


def _norms(seen: Compared) -> Table:
    right: Key = percent_right(DELTA, invariant=True)
    wrong: Key = percent_right(DELTA, invariant=False)
    keys: dict[str, tuple[Key, str]] = {
        "norm first": ("norm_start", ".3g"),
        "norm last": ("norm_last", ".3g"),
        "last / first": (growth, ".3f"),
        "path on sphere": ("total_effective_step", ".3g"),
        "detected (%)": (right, ".1f"),
        "left alone (%)": (wrong, ".1f"),
    }
    rows: list[Row] = []
    for condition in seen.design.on:
        arms = seen.arms(condition)
        columns = [
            _means(seen, {arm: seen.results.arm(arm).values(key) for arm in arms}, form)
            for key, form in keys.values()
        ]
        for i, arm in enumerate(arms):
            runs = seen.results.arm(arm)
            share = runs.cell(invariant_share, ".1f", spread=True)
            rows.append((arm.label, share, _views_of(runs), *(cells[i] for cells in columns)))
    note = (
        "The norm is the mean over the scale-invariant units. Views: in how many weights of two or "
        "more dimensions the audit finds invariance channel by channel, of the whole layer, and "
        "none. Detected: scale-invariant weights that the test with δ = 0.1 takes for such; left "
        "alone: others that it does not."
    )
    headings = ("arm", "invariant share (%)", "views", *keys)
    return Table("Norms, steps and detection", headings, rows, note)


def _searches(seen: Compared) -> Table:
    """The searches: how many points there were, and what became of them."""
    rows: list[Row] = []
    for arm in seen.every_arm:
        search = seen.tuned(arm)
        if search.points:
            counts = Cell(len(search.points), "d"), Cell(search.lost, "d")
            best = Cell(None if search.best is None else search.scores[search.best], ".4g")
            rows.append((arm.label, *counts, *seen.cells(arm, seen.best(arm)), best))
    seeds = ", ".join(map(str, seen.design.tuning_seeds()))
    note = (
        f"Mean validation scores on the seeds of the tuning, {seeds}, which "
        "no final run has. (edge): the search ends there, a wider one may hold a better "
        "value. (outermost): no trial lies beyond it on one side, but the range goes on: more "
        "trials may find a better value."
    )
    columns = ("arm", "trials", "without a score", *seen.tuned_names, "validation")
    return Table("Tuning", columns, rows, note)


def range_table(scores: Mapping[str, Mapping[Arm, Sample]]) -> Table:
    """The best against the worst optimizer of each condition, both tuned.

    The two are chosen by the same scores that are compared, so that the difference is a little
    larger than that of two optimizers named before.

    Args:
        scores: of the arms of each condition, by its label.
    """
    rows: list[Row] = []
    for condition, arms in scores.items():
        known = {arm: sample for arm, sample in arms.items() if len(sample) > 1}
        cells = dict(zip(known, column(list(known.values()), "g"), strict=True))
        means = {arm: float(cell.number) for arm, cell in cells.items() if cell.number is not None}
        if len(means) < 2:
            continue
        best = max(means, key=means.__getitem__)
        worst = min(reversed(means), key=means.__getitem__)  # of equal ones another than the best
        gap = difference(known[best], known[worst])
        low, high = gap.interval or (0.0, 0.0)
        apart = "yes" if low > 0 or high < 0 else "no"
        rows.append((condition, _name(best), _name(worst), gap, apart))
    columns = ("condition", "best", "worst", "best minus worst", "apart")
    about = (
        "Paired by seed, with Student's 95 % intervals; optimizers that diverged are left out. In "
        f"{sum(row[-1] == 'yes' for row in rows)} of {len(rows)} conditions the interval does not "
        "contain 0: the condition tells optimizers apart."
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


def _means(seen: Compared, samples: Mapping[Arm, Sample], form: str = ".4g") -> list[Cell]:
    """The means of arms over the same seeds; added ones do not narrow those of the others."""
    own = [sample for arm, sample in samples.items() if seen.is_own(arm)]
    cells = iter(column(own, form))
    return [
        next(cells) if seen.is_own(arm) else column([*own, sample], form)[-1]
        for arm, sample in samples.items()
    ]


def _metric(seen: Compared, arm: Arm, name: str) -> Sample:
    return seen.results.arm(arm).values(metric_on_test(name), performance=True)


def _name(arm: Arm) -> str:
    return str(arm.settings["contender"])


def _value(value: Any) -> str:
    return "" if value is None else json.dumps(value, default=str)
