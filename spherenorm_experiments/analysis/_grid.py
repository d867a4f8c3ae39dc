"""The runs of one arm as a table: a number for each point and seed, and the rate tuning chooses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from spherenorm_experiments.analysis._columns import mean_of
from spherenorm_experiments.analysis._results import Arm, Result, Results
from spherenorm_experiments.analysis._samples import Sample
from spherenorm_experiments.analysis._statistics import mean
from spherenorm_experiments.analysis._tables import Cell

TUNING = 10_000
"""The first of the seeds on which hyper-parameters are chosen; no claim uses them."""

PAPERS_START = 0
"""The seed of a toy's start on which its hyper-parameters are chosen, in place of these."""


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


class Grid:
    """The numbers of an arm's runs; without a result all of its samples are empty.

    Args:
        items: the runs, of any points and seeds.
        tuning: the seed of the tuning, which no sample contains; those from `TUNING` on if None.
    """

    def __init__(self, items: Sequence[Result] = (), tuning: int | None = None) -> None:
        self.items, self.tuning = items, tuning
        runs: dict[tuple[tuple[str, float], ...], dict[int, Result]] = {}
        for item in items:
            runs.setdefault(_numbers(item), {})[item.spec.seed] = item
        self.runs = list(runs.values())
        """For each point its runs by seed."""
        self.points: list[dict[str, float]] = [dict(point) for point in runs]
        """The hyper-parameters of each point."""

    def where(self, **fixed: float) -> list[int]:
        """The points with these hyper-parameters; those that the recipe lacks do not count."""
        return [i for i, point in enumerate(self.points) if _has(point, fixed)]

    def at(self, **fixed: float) -> int | None:
        """The first point with these hyper-parameters; None if there is none."""
        return next(iter(self.where(**fixed)), None)

    def final(self, index: int | None) -> dict[int, Result]:
        """The runs at a point by seed, without those of the tuning."""
        runs = {} if index is None else self.runs[index]
        return {seed: item for seed, item in runs.items() if not self._tunes(seed)}

    def sample(self, key: str, index: int | None, *, performance: bool | None = None) -> Sample:
        """The number at a point by seed; a seed without a number has diverged there."""
        scores = performance if performance is not None else key in ("test", "validation")
        return self.sample_of(lambda item: item.summary[key], index, performance=scores)

    def sample_of(
        self,
        number: Callable[[Result], float | None],
        index: int | None,
        *,
        performance: bool = False,
    ) -> Sample:
        """A function of the runs at a point, by seed; a seed without a number has diverged."""
        numbers = {seed: number(item) for seed, item in self.final(index).items()}
        looks = next((item.looks for item in self.final(index).values()), ())
        return Sample(
            {seed: float(value) for seed, value in numbers.items() if value is not None},
            frozenset(seed for seed, value in numbers.items() if value is None),
            performance,
            tuple(frozenset(s for s in look if not self._tunes(s)) for look in looks),
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
        scores: dict[int, float] = {}
        for part in [{"lr": rate} for rate in among] or [{}]:
            for i in self.where(**part, **fixed):
                rate, known = self.points[i].get("lr", low), self._tuning(by, i)
                if known and low * 0.999 <= rate <= high * 1.001:
                    scores[i] = mean(worst if value is None else value for value in known)
        if not scores:
            return Choice(None)
        index = best(scores, key=lambda i: scores[i])
        tried = {i: self.points[i].get("lr", math.nan) for i in scores}
        ends, lost = {min(tried.values()), max(tried.values())}, not math.isfinite(scores[index])
        at_edge = tried[index] in ends and len(set(tried.values())) > 1
        return Choice(index, tried[index], at_edge and not lost, lost)

    def cell(self, key: str, index: int | None, form: str = ".3f", *, spread: bool = True) -> Cell:
        """The mean over seeds at a point ± their spread, with the seeds that diverged there."""
        mean = mean_of(self.sample(key, index), form)
        return mean if spread else replace(mean, spread=None)

    def curve(self, key: str, index: int | None) -> tuple[np.ndarray, np.ndarray]:
        """A metric of the network at a point: steps, and values of shape (seeds, steps)."""
        read = functools.partial(_curve, key=key)
        whole = [curve for curve in map(read, self.final(index).values()) if curve is not None]
        if not whole:
            return np.array([]), np.zeros((0, 0))
        return whole[0][0], np.array([values for _, values in whole])

    def sample_of_curve(
        self, function: Callable[[np.ndarray, np.ndarray], float], key: str, index: int | None
    ) -> Sample:
        """A function of the steps and a metric at them, by seed; lost where a curve breaks off."""

        def number(item: Result) -> float | None:
            curve = _curve(item, key)
            return None if curve is None else float(function(*curve))

        return self.sample_of(number, index)

    def _tuning(self, key: str, index: int) -> list[float | None]:
        """The numbers on the seeds of the tuning."""
        return [x.summary[key] for seed, x in self.runs[index].items() if self._tunes(seed)]

    def _tunes(self, seed: int) -> bool:
        return seed >= TUNING if self.tuning is None else seed == self.tuning


def _has(point: Mapping[str, float], fixed: Mapping[str, float]) -> bool:
    return all(
        math.isclose(point[name], value, rel_tol=1e-6, abs_tol=1e-15)
        for name, value in fixed.items()
        if name in point
    )


def _numbers(item: Result) -> tuple[tuple[str, float], ...]:
    """The hyper-parameters that are numbers."""
    return tuple(
        (name, value)
        for name, value in item.spec.hyper_parameters.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )


def _curve(item: Result, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The steps and a metric at them; None of a run that has not been finite to its end."""
    values = item.arrays[key].astype(float)
    steps = np.arange(len(values)) * int(item.summary["every"] or 1)
    return (steps, values) if np.isfinite(values).all() else None


_grids: WeakKeyDictionary[Results, dict[tuple[Arm, int | None], Grid]] = WeakKeyDictionary()


def grid_of(results: Results, arm: Arm, tuning: int | None = None) -> Grid:
    """The runs of an arm; an empty grid if none has ended."""
    known = _grids.setdefault(results, {})
    if (arm, tuning) not in known:
        known[arm, tuning] = Grid(results.arm(arm).items, tuning)
    return known[arm, tuning]


def at_point(
    arm: Arm,
    key: str,
    *,
    tuning: int | None = None,
    performance: bool | None = None,
    **fixed: float,
) -> Callable[[Results], Sample]:
    """The number at the point of an arm with these hyper-parameters: a side of a claim."""
    return lambda results: (grid := grid_of(results, arm, tuning)).sample(
        key, grid.at(**fixed), performance=performance
    )


def at_best(
    arm: Arm,
    key: str = "test",
    *,
    tuning: int | None = None,
    performance: bool | None = None,
    **how: Any,
) -> Callable[[Results], Sample]:
    """The number at the point of an arm that tuning chooses: a side of a claim.

    Args:
        **how: the arguments of `Grid.tuned`.
    """
    return lambda results: (grid := grid_of(results, arm, tuning)).sample(
        key, grid.tuned(**how).index, performance=performance
    )
