"""Sweeps read as tables: numbers by point and seed, and the rate that tuning chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spherenorm_experiments.analysis._arms import Arm
from spherenorm_experiments.analysis._columns import mean_of
from spherenorm_experiments.analysis._results import Result, Results
from spherenorm_experiments.analysis._samples import Sample
from spherenorm_experiments.analysis._statistics import mean
from spherenorm_experiments.analysis._tables import Cell

__all__ = ["Choice", "Grid", "at_best", "at_point", "grid_of", "sample_of_curve"]


@dataclass(frozen=True)
class Choice:
    """A point that tuning chose.

    Attributes:
        index: of the point; None if no run is known. If all were lost, the first, so that a claim
            about it counts them.
        rate: its learning rate.
        at_edge: True if no rate beyond it was tried on one side.
        lost: True if no point has a number for all seeds of the tuning.
    """

    index: int | None
    rate: float = math.nan
    at_edge: bool = False
    lost: bool = False

    @property
    def cell(self) -> Cell:
        """The rate, marked where it is at an edge; none if all points were lost."""
        if self.lost:
            return Cell(None, missing="none")
        return Cell(self.rate, ".3g", unit="(edge)" if self.at_edge else "")


@dataclass(frozen=True)
class Grid:
    """The numbers of one sweep; without a result all of its samples are empty.

    Columns are the seeds of the runs, then those of the tuning, which no sample contains. For a toy
    they are starts: the paper's is for tuning, those at its side for the claims.
    """

    item: Result | None

    @property
    def points(self) -> list[dict[str, float]]:
        """The hyper-parameters of each point."""
        if self.item is None:
            return []
        columns = self.item.spec.points
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def where(self, **fixed: float) -> list[int]:
        """The points with these hyper-parameters; those that the recipe lacks do not count."""
        return [
            i
            for i, point in enumerate(self.points)
            if all(
                math.isclose(point[name], value, rel_tol=1e-6, abs_tol=1e-15)
                for name, value in fixed.items()
                if name in point
            )
        ]

    def at(self, **fixed: float) -> int | None:
        """The first point with these hyper-parameters; None if there is none."""
        found = self.where(**fixed)
        return found[0] if found else None

    def sample(self, key: str, index: int | None, *, performance: bool | None = None) -> Sample:
        """The number at a point by seed; a seed without a number has diverged there."""
        scores = performance if performance is not None else key in ("test", "validation")
        if self.item is None or index is None:
            return Sample({}, performance=scores)
        row = self._rows(key)[index]
        by_seed = {seed: row[column] for column, seed in self.runs}
        return Sample(
            {seed: float(value) for seed, value in by_seed.items() if value is not None},
            frozenset(seed for seed, value in by_seed.items() if value is None),
            scores,
            self.item.looks,
        )

    def tuned(
        self,
        by: str = "validation",
        best: Callable[..., Any] = max,
        rates: tuple[float, float] | None = None,
        among: Collection[float] = (),
        **fixed: float,
    ) -> Choice:
        """The point that is best on the seeds of the tuning, among those with `fixed`.

        Args:
            by: the number that decides.
            best: `max` for a score, `min` for a gap.
            rates: the lowest and the highest learning rate that may be chosen.
            among: the learning rates that may be chosen, if any are named.
        """
        worst = -math.inf if best is max else math.inf
        low, high = rates or (-math.inf, math.inf)
        scores = {
            i: self._tuning_score(by, i, worst)
            for part in ([{"lr": rate} for rate in among] or [{}])
            for i in self.where(**part, **fixed)
            if low * 0.999 <= self.points[i].get("lr", low) <= high * 1.001
        }
        if not scores:
            return Choice(None)
        index = best(scores, key=lambda i: scores[i])
        tried = {i: self.points[i].get("lr", math.nan) for i in scores}
        return _choice(index, tried, lost=not math.isfinite(scores[index]))

    def cell(self, key: str, index: int | None, form: str = ".3f", *, spread: bool = True) -> Cell:
        """The mean over seeds at a point ± their spread, with the seeds that diverged there."""
        found = mean_of(self.sample(key, index), form)
        return found if spread else replace(found, spread=None)

    def curve(self, key: str, index: int | None) -> tuple[np.ndarray, np.ndarray]:
        """A metric of the network at a point: steps, and values of shape (seeds, steps)."""
        if self.item is None or index is None:
            return np.array([]), np.zeros((0, 0))
        arrays = self.item.arrays
        values = arrays[key][:, index, [column for column, _ in self.runs]].T
        alive = np.isfinite(values).all(axis=1)
        return np.arange(values.shape[1]) * int(arrays["every"]), values[alive]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Columns and seeds of the runs."""
        assert self.item is not None
        if "starts" in self.item.summary:
            count = len(self._rows("final_gap")[0])
            return [(column, column) for column in range(1, count)]
        seeds, tuning = self.item.summary["seeds"], self.item.summary["tuning"]
        return list(enumerate(seeds[: len(seeds) - tuning]))

    def _tuning_score(self, key: str, index: int, worst: float) -> float:
        taken = {column for column, _ in self.runs}
        row = self._rows(key)[index]
        return mean(worst if v is None else v for i, v in enumerate(row) if i not in taken)

    def _rows(self, key: str) -> Sequence[Sequence[float | None]]:
        assert self.item is not None
        tables: Mapping[str, Any] = self.item.summary.get("starts", self.item.summary)
        rows: Sequence[Sequence[float | None]] = tables[key]
        return rows


def _choice(index: int, tried: Mapping[int, float], *, lost: bool) -> Choice:
    rate, rates = tried[index], set(tried.values())
    at_edge = rate in (min(rates), max(rates)) and len(rates) > 1
    return Choice(index, rate, at_edge and not lost, lost)


def sample_of_curve(
    grid: Grid, function: Callable[[np.ndarray, np.ndarray], float], key: str, index: int | None
) -> Sample:
    """A function of the steps and a metric at them, by seed; a curve that breaks off diverged."""
    if grid.item is None or index is None:
        return Sample({})
    arrays = grid.item.arrays
    values = arrays[key][:, index].astype(float)
    steps = np.arange(len(values)) * int(arrays["every"])
    curves = {seed: values[:, column] for column, seed in grid.runs}
    whole = {seed: curve for seed, curve in curves.items() if np.isfinite(curve).all()}
    return Sample(
        {seed: float(function(steps, curve)) for seed, curve in whole.items()},
        frozenset(curves.keys() - whole.keys()),
        looks=grid.item.looks,
    )


def at_point(
    arm: Arm, key: str, *, performance: bool | None = None, **fixed: float
) -> Callable[[Results], Sample]:
    """The number at the point of an arm with these hyper-parameters: a side of a claim."""

    def side(results: Results) -> Sample:
        grid = grid_of(results, arm)
        return grid.sample(key, grid.at(**fixed), performance=performance)

    return side


def at_best(
    arm: Arm, key: str = "test", *, performance: bool | None = None, **how: Any
) -> Callable[[Results], Sample]:
    """The number at the point of an arm that tuning chooses: a side of a claim.

    Args:
        **how: the arguments of `Grid.tuned`.
    """

    def side(results: Results) -> Sample:
        grid = grid_of(results, arm)
        return grid.sample(key, grid.tuned(**how).index, performance=performance)

    return side


def grid_of(results: Results, arm: Arm) -> Grid:
    """The sweep of an arm; an empty one if it has not ended."""
    items = results.arm(arm).items
    return Grid(items[-1] if items else None)
