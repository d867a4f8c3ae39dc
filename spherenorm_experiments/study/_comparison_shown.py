"""The tables and pictures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Results,
    Row,
    Table,
    column,
    difference,
    metric_on_test,
    metrics_of,
)
from spherenorm_experiments.report.pictures import Picture, Tries, best_scores, curves, drawn, tried
from spherenorm_experiments.study._comparing import Comparing
from spherenorm_experiments.study._tuning import Point, Tuned, at_end

__all__ = ["Compared", "comparison_pictures", "comparison_tables"]

EDGE, OUTERMOST = "edge", "outermost"
"""Marks of a tuned value: the range ends there; no trial lies beyond it, but the range goes on."""

CURVES = (
    ("loss", "training loss", True, "The training loss of the final runs."),
    ("effective_step", "effective step ‖Δŵ‖", True, "The effective step sizes of the final runs."),
)


@dataclass(frozen=True)
class Compared:
    """A comparison as far as it is known.

    Attributes:
        request: its arguments.
        found: the tuning of each arm, the baseline's first.
        results: of all of its runs.
        seeds: those of the tuning.
    """

    request: Comparing
    found: Mapping[Arm, Tuned]
    results: Results
    seeds: Sequence[int]

    @property
    def final(self) -> Results:
        """The results of the final runs."""
        return self.results.where(lambda item: item.arm in self.found)

    @property
    def metric(self) -> str:
        """The quantity of the score, as the runs have noted it: the task may not be here."""
        noted = (item.summary.get("metric") for item in self.results)
        return next(filter(None, noted), "score")

    @property
    def unit(self) -> str:
        """The unit of a difference of scores: percentage points, or none that is known."""
        return "pp" if "%" in self.metric else ""

    @property
    def training(self) -> str:
        """The budget and the schedule of the final runs, in a sentence."""
        ran = (item.spec for item in self.final)
        said = {
            f"{x.epochs} epochs of batches of {x.batch_size}, {x.schedule} schedule" for x in ran
        }
        return f"Each run: {'; '.join(sorted(said))}." if said else ""

    def caveats(self, arm: Arm) -> list[str]:
        """The facts about the tuning of an arm that a reader of its claim needs."""
        found, count = self.found[arm], len(self.found[arm].points)
        lost, ended = self.results.lacking.get(arm, 0), len(self.results.arm(arm))
        if count and found.best is None:
            return [f"no trial of {arm.label} has a score"]
        trials = f"{count} of {self.request.count} trials"
        lack = f"the tuning of {arm.label} is incomplete: {trials} are in the store"
        return [
            *([lack] if ended and count < self.request.count else []),
            *([f"{ended} of {ended + lost} runs of {arm.label} have ended"] if lost else []),
            *(
                f"the best {name} of {arm.label} is the outermost of its trials, within its range"
                if place == OUTERMOST
                else f"the best {name} of {arm.label} is at an edge of its range"
                for name, place in self._edges(arm, self.taken(arm)).items()
            ),
        ]

    def best(self, arm: Arm) -> Point:
        """The best point of an arm's tuning, as far as it is in the store."""
        found = self.found[arm]
        return {} if found.best is None else found.points[found.best]

    def taken(self, arm: Arm) -> Point:
        """The point of an arm's final runs, as they have it themselves: tuning may be lost."""
        runs = self.results.arm(arm)
        return next((item.spec.hyper_parameters for item in runs), self.best(arm))

    def shown(self, arm: Arm, point: Point) -> list[Cell]:
        """A point of an arm, marked at the edges of its search."""
        own, edges = self.request.ranges_of(arm.recipe), self._edges(arm, point)
        return [
            Cell(point.get(name), ".3g", unit=f"({edges[name]})" if name in edges else "")
            if name in own
            else Cell(None, missing="not tuned")
            for name in self.request.searched
        ]

    def _edges(self, arm: Arm, point: Point) -> dict[str, str]:
        """The values with no trial beyond them on one side, and if the range ends there, too."""
        own, found = self.request.ranges_of(arm.recipe), self.found[arm]
        return {
            name: EDGE if at_end(point[name], bounds) else OUTERMOST
            for name, bounds in own.items()
            if name in point and found.at_edge(name, point[name])
        }

    def metrics(self) -> list[str]:
        """The names of the metrics on the test set, the score first."""
        return metrics_of(self.final) or ["score"]


def comparison_tables(seen: Compared) -> list[Table]:
    """The test scores, and the searches; without those that have no row."""
    return [table for table in (_scores(seen), _searches(seen)) if table.rows]


def comparison_pictures(seen: Compared) -> list[Picture]:
    """The searches, the expected best of k trials, and curves of the final runs."""
    score = f"validation {seen.metric}"
    tries = {
        arm: Tries(found.points, found.scores, found.best) for arm, found in seen.found.items()
    }
    of_search = (
        "Every trial's validation score against {}, the mean over the seeds of the tuning; the "
        "large marks are the points that the final runs take."
    )
    pictures = []
    for name in seen.request.searched:
        own = {arm: t for arm, t in tries.items() if name in seen.request.ranges_of(arm.recipe)}
        pictures.append(tried(own, name, score, of_search.format(name)))
    best = "The expected best validation score of k trials, of those that were made."
    # A lost trial has no score, so that a best of k is not a number.
    whole = {
        arm: each.scores
        for arm, each in seen.found.items()
        if len(each.scores) > 1 and not each.lost
    }
    pictures.append(best_scores(whole, score, best))
    trained = "The validation score of the final runs while they train."
    pictures.append(curves(seen.final, "validation", score, trained))
    for key, title, log_y, caption in CURVES:
        pictures.append(curves(seen.final, key, title, caption, log_y=log_y))
    return drawn(pictures)


def _scores(seen: Compared) -> Table:
    """The final runs: tuned point, every metric of the test set, and the paired difference."""
    base, *others = seen.found
    names = seen.metrics()
    arms = [arm for arm in seen.found if len(seen.final.arm(arm))]
    columns = {
        name: column(
            [seen.final.arm(arm).values(metric_on_test(name), performance=True) for arm in arms],
            ".4g",
        )
        for name in names
    }
    theirs = seen.final.arm(base).values("test")
    ended = [{item.spec.seed for item in seen.final.arm(arm)} for arm in arms]
    count = Cell(len(set.intersection(*ended)) if ended else 0, "d")
    rows: list[Row] = []
    for i, arm in enumerate(arms):
        cells = [cells[i] for cells in columns.values()]
        gap = Cell(None, missing="baseline")
        if arm in others:
            gap = difference(seen.final.arm(arm).values("test"), theirs)
        rows.append((arm.label, *seen.shown(arm, seen.taken(arm)), *cells, count, gap))
    headings = ("optimizer", *seen.request.searched, *names, "seeds")
    note = (
        "Means over the seeds that all of them have ended ± standard deviation; an arm that "
        "diverged on one of these has no mean. The difference is of the first metric, over "
        "the seeds that both have, with Student's 95 % interval."
    )
    compared = f"{next(iter(names), 'score')}, minus that of {base.label}"
    return Table("Test scores", (*headings, compared), rows, f"{seen.training} {note}".strip())


def _searches(seen: Compared) -> Table:
    """The searches: how many points there were, and what became of them."""
    rows: list[Row] = []
    for arm, found in seen.found.items():
        if found.points:
            lacking = len(found.points) < seen.request.count
            of_all = f"of {seen.request.count}" if lacking else ""
            counts = Cell(len(found.points), "d", unit=of_all), Cell(found.lost, "d")
            best = Cell(None if found.best is None else found.scores[found.best], ".4g")
            rows.append((arm.label, *counts, *seen.shown(arm, seen.best(arm)), best))
    columns = ("optimizer", "trials", "without a score", *seen.request.searched, "validation")
    note = (
        f"Means over the seeds of the tuning, {', '.join(map(str, seen.seeds))}. (edge): the "
        "range ends there, a wider one may hold a better value. (outermost): no trial lies beyond "
        "it on one side, but the range goes on: more trials may find a better value."
    )
    return Table("Tuning", columns, rows, note)
