"""`Entry`: an arm on a condition that has run, with what its seeds tried and chose."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.design import Arm, Condition, Search
from spherenorm_experiments.metrics import Better
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.runs import Place, Result, Runs, hyper
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.verdict import EQUIVALENCE_MARGIN, paired_difference


@dataclass(frozen=True, eq=False)
class Entry:
    """An arm on a condition that has run.

    Attributes:
        against: the names of the arms that it is compared with.
        ended: all of its runs, by point.
        every: those at as many points as have ended on the same seeds.
        chosen: the runs that its seeds choose, by seed.
        base: those of the first arm that it is compared with; None if there is none.
        tried: the mean validation score of each point, by the hyper-parameters that are tuned, and
            its mean `goodness` (see `spherenorm_experiments.runs.COLUMNS`).
        lacking: how many of its runs have not ended.
    """

    condition: Condition
    arm: Arm
    search: Search
    against: Sequence[str]
    ended: pd.DataFrame
    every: pd.DataFrame
    chosen: pd.DataFrame
    base: pd.DataFrame | None
    tried: pd.DataFrame
    lacking: int

    @property
    def place(self) -> Place:
        return Place(self.condition.label, self.arm.name)

    @property
    def runs(self) -> list[Result]:
        """The chosen ones."""
        return list(self.chosen.run)

    @property
    def better(self) -> Better:
        """The direction in which its score is better."""
        better: Better = self.ended.better.iloc[0]
        return better

    @functools.cached_property
    def best(self) -> Mapping[str, Any]:
        """The hyper-parameters of the runs at the point with the best mean validation score."""
        point = self.tried.point[self.tried.goodness.idxmax()]
        item: Result = self.every[self.every.point == point].run.iloc[0]
        return item.spec.hyper_parameters

    @property
    def every_value(self) -> Mapping[str, Any]:
        """The same with the defaults of the recipe; if that is not here, only what was given."""
        defaults: Mapping[str, Any] = {}
        with suppress(Exception):  # a user's module may be gone, or raise anything
            defaults = load_recipe(self.arm.recipe).defaults
        return {**defaults, **self.best}

    @functools.cached_property
    def edges(self) -> list[str]:
        """The hyper-parameters with no trial beyond their best value on one side."""
        if not np.isfinite(self.tried.goodness.max()):
            return []
        values = {n: self.tried[hyper(n)] for n in self.search.names if hyper(n) in self.tried}
        many = {name: of for name, of in values.items() if of.nunique() > 1}
        return [name for name, of in many.items() if self.best[name] in (of.min(), of.max())]

    @property
    def edge_advice(self) -> list[str]:
        """A sentence for each best value at an edge: where to go on, if the recipe takes it."""
        sentences = []
        for name in self.edges:
            tried, best = self.tried[hyper(name)], self.best[name]
            upward = bool(best == tried.max())
            further = float(f"{best * 10 if upward else best / 10:.3g}")
            said = f"{self.arm.name}'s best {name} ({best:.3g}) is at the edge of the range"
            if self._takes(name, further):
                said += f": try {'up' if upward else 'down'} to {further:g}"
            sentences.append(said)
        return sentences

    def _takes(self, name: str, value: float) -> bool:
        """Return True if its recipe can be built with another value of a hyper-parameter."""
        try:
            load_recipe(self.arm.recipe).replace(**{**self.best, name: value}).rule  # noqa: B018
        except (Exception, SystemExit):  # a momentum of 9, or a user's recipe that raises
            return False
        return True

    @property
    def gap(self) -> Cell:
        """The difference of scores to the baseline, by seed."""
        if self.base is None:
            return Cell(None, missing="")
        return paired_difference(self.chosen.test, self.base.test)

    @property
    def unscored(self) -> list[int]:
        """The seeds with no validation score at any point."""
        scores = self.every.groupby("seed").goodness.max()
        return [*scores.index[scores == -np.inf]]

    @property
    def taken(self) -> str:
        """The points that seeds take, each with the number of these."""
        scored = self.chosen[self.chosen.goodness > -np.inf]
        names = [name for name in self.search.names if hyper(name) in scored]
        groups = [*map(hyper, names)]
        counts = scored.groupby(groups).size() if names else pd.Series(dtype=int)
        points = [dict(zip(names, np.atleast_1d(point), strict=True)) for point in counts.index]
        said = [f"{in_words(x)} ×{count}" for x, count in zip(points, counts, strict=True)]
        return ", ".join([*said, *([f"none ×{len(self.unscored)}"] if self.unscored else [])])

    @property
    def notes(self) -> list[str]:
        """The facts about the runs that a reader of a claim needs."""
        place, lost, count = self.place, self.unscored, len(self.ended)
        if len(lost) == self.every.seed.nunique():
            return [f"no trial of {place} has a score"]
        facts = []
        if self.lacking:
            facts.append(f"{count} of {count + self.lacking} runs of {place} have ended")
        if left := self.ended.point.nunique() - len(self.tried):
            facts.append(f"points of {place} that lack seeds and are left out: {left}")
        if lost:
            seeds = ", ".join(map(str, lost))
            facts.append(f"{place} has no validation score at any point on seed {seeds}")
        facts += [f"the best {name} of {place} is at an edge of its trials" for name in self.edges]
        return facts

    def quoted(self, names: Sequence[str]) -> list[Cell | None]:
        """The paper's numbers of it, by heading."""
        return [self.condition.paper.get(name, {}).get(self.arm.name) for name in names]


def entry_of(
    runs: Runs, condition: Condition, arm: Arm, search: Search, against: Sequence[str]
) -> Entry | None:
    """An arm on a condition; None without a run."""
    place = Place(condition.label, arm.name)
    every, chosen = runs.of(*place), runs.best(*place)
    if every.empty:
        return None
    if every.validation.isna().all():  # a task without a score
        chosen = every.drop_duplicates("seed").set_index("seed")
    points = every.groupby("point")
    tried = points[["validation", "goodness"]].mean()
    tried = tried.rename(columns={"validation": "score"}).reset_index()
    for name in (n for n in map(hyper, search.names) if n in every and every[n].notna().any()):
        tried[name] = points[name].first().to_numpy()
    base = runs.best(condition.label, against[0]) if against else None
    return Entry(
        condition, arm, search, against, runs.every(*place), every, chosen, base, tried,
        runs.lacking.get(place, 0),
    )  # fmt: skip


def metric_of(entries: Sequence[Entry]) -> str:
    """The quantity of the score, as the runs have noted it: the task may not be here."""
    noted = (item.summary.get("metric") for entry in entries for item in entry.ended.run)
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


def unit_and_margin(condition: Condition, entries: Sequence[Entry]) -> tuple[str, float | None]:
    """The unit of a difference of scores, and the margin within which two are equivalent."""
    unit = condition.unit
    if unit is None:  # percentage points, or none
        unit = "pp" if "%" in metric_of(entries) else ""
    return (
        unit,
        EQUIVALENCE_MARGIN if condition.margin is None and unit == "pp" else condition.margin,
    )


def training_of(runs: Iterable[Result]) -> str:
    """The length of runs in words; a sweep counts steps in place of epochs."""
    said = set()
    for run in runs:
        count, unit = run.spec.epochs, "epoch" if "steps_per_epoch" in run.summary else "step"
        length = f"{count} {unit}{'s' * (count != 1)}"
        said.add(f"{length} of batches of {run.spec.batch_size}, {run.spec.schedule}")
    return "; ".join(f"{each} schedule" for each in sorted(said))


def in_words(point: Mapping[str, float]) -> str:
    """The values of a point; with names if there are several."""
    if len(point) == 1:
        return f"{next(iter(point.values())):.3g}"
    return " ".join(f"{name}={value:.3g}" for name, value in point.items())
