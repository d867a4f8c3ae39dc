"""The runs of a toy's search as a table: a number for each point and start, and the best point.

The point is chosen from one start, the paper's, and scored from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from spherenorm_experiments.results import Arm, Key, Result, Results
from spherenorm_experiments.samples import Sample
from spherenorm_experiments.sweep import is_number
from spherenorm_experiments.tables import Cell

PAPERS_START = 0
"""The seed of a toy's start on which its hyper-parameters are chosen."""


@dataclass(frozen=True)
class Choice:
    """A point that tuning chose.

    Attributes:
        index: of the point; None if no run is known. If all were lost, the first, so that a claim
            about it counts them.
        rate: its learning rate.
        at_edge: True if no rate beyond it was tried on one side.
        lost: True if no point has a number.
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
        tuning: the seed that chooses, which no sample contains; None if there is none.
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

    def start(self, index: int | None) -> Result | None:
        """The run at a point with the seed that chooses; None if there is none."""
        known: dict[Any, Result] = {} if index is None else self.runs[index]
        return known.get(self.tuning)

    def sample(self, key: Key, index: int | None, *, performance: bool = False) -> Sample:
        """The number at a point by seed; a seed without a number has diverged there."""
        read = key if callable(key) else (lambda item: item.summary[key])
        known = {} if index is None else self.runs[index]
        runs = {seed: item for seed, item in known.items() if seed != self.tuning}
        numbers = {seed: read(item) for seed, item in runs.items()}
        looks = next((item.looks for item in runs.values()), ())
        return Sample(
            {seed: float(value) for seed, value in numbers.items() if value is not None},
            frozenset(seed for seed, value in numbers.items() if value is None),
            performance,
            tuple(look - {self.tuning} for look in looks),
        )

    def tuned(
        self,
        by: str,
        best: Callable[..., Any] = max,
        rates: tuple[float, float] = (-math.inf, math.inf),
    ) -> Choice:
        """The point that is best on the seed that chooses.

        Args:
            by: the number that decides.
            best: `max` for a score, `min` for a gap.
            rates: the lowest and the highest learning rate that may be chosen.
        """
        worst = -math.inf if best is max else math.inf
        low, high = rates
        scores: dict[int, float] = {}
        for i, (point, runs) in enumerate(zip(self.points, self.runs, strict=True)):
            if self.tuning in runs and low * 0.999 <= point.get("lr", low) <= high * 1.001:
                value = runs[self.tuning].summary[by]
                scores[i] = worst if value is None else value
        if not scores:
            return Choice(None)
        index = best(scores, key=lambda i: scores[i])
        tried = {i: self.points[i].get("lr", math.nan) for i in scores}
        ends, lost = {min(tried.values()), max(tried.values())}, not math.isfinite(scores[index])
        at_edge = tried[index] in ends and len(set(tried.values())) > 1
        return Choice(index, tried[index], at_edge and not lost, lost)


def _has(point: Mapping[str, float], fixed: Mapping[str, float]) -> bool:
    return all(
        math.isclose(point[name], value, rel_tol=1e-6, abs_tol=1e-15)
        for name, value in fixed.items()
        if name in point
    )


def _numbers(item: Result) -> tuple[tuple[str, float], ...]:
    """The hyper-parameters that are numbers."""
    return tuple(
        (name, value) for name, value in item.spec.hyper_parameters.items() if is_number(value)
    )


_grids: WeakKeyDictionary[Results, dict[tuple[Arm, int | None], Grid]] = WeakKeyDictionary()


def grid_of(results: Results, arm: Arm, tuning: int | None = None) -> Grid:
    """The runs of an arm; an empty grid if none has ended."""
    known = _grids.setdefault(results, {})
    if (arm, tuning) not in known:
        known[arm, tuning] = Grid(results.arm(arm).items, tuning)
    return known[arm, tuning]


def at_point(
    arm: Arm, key: str, *, tuning: int, performance: bool = False, **fixed: float
) -> Callable[[Results], Sample]:
    """The number at the point of an arm with these hyper-parameters: a side of a claim."""
    return lambda results: (grid := grid_of(results, arm, tuning)).sample(
        key, grid.at(**fixed), performance=performance
    )


def at_best(
    arm: Arm, key: str, *, tuning: int, performance: bool = False, **how: Any
) -> Callable[[Results], Sample]:
    """The number at the point of an arm that tuning chooses: a side of a claim.

    Args:
        **how: the arguments of `Grid.tuned`.
    """
    return lambda results: (grid := grid_of(results, arm, tuning)).sample(
        key, grid.tuned(**how).index, performance=performance
    )
