"""A toy's search: the point that is best from one start, the paper's, scored from the others."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.runs import Result, Runs
from spherenorm_experiments.tables import Cell

PAPERS_START = 0
"""The seed of the start from which a point is chosen."""

Point = tuple[tuple[str, float], ...]


class Choice(NamedTuple):
    """A point that is chosen.

    Attributes:
        point: None if no run is known. If all were lost, the first, so that a claim about it counts
            them.
        rate: its learning rate.
        at_edge: True if no rate beyond it was tried on one side.
        lost: True if no point has a number.
    """

    point: Point | None = None
    rate: float = math.nan
    at_edge: bool = False
    lost: bool = False

    @property
    def cell(self) -> Cell:
        """The rate, marked where it is at an edge; none if all points were lost."""
        if self.lost:
            return Cell(None, missing="none")
        return Cell(self.rate, ".3g", unit="(edge)" if self.at_edge else "")


class Descents:
    """The runs of an arm on a condition, at every point and from every start."""

    def __init__(self, runs: Runs, condition: str, arm: str) -> None:
        self.frame = runs.every(condition, arm)

    @property
    def first(self) -> pd.DataFrame:
        """The runs from the paper's start, in the order of their rates."""
        return self.frame[self.frame.seed == PAPERS_START]

    def start(self, point: Point | None) -> Result | None:
        """The run at a point from the paper's start; None if there is none."""
        found: list[Result] = self.first.run[self.first.point == point].tolist()
        return found[0] if found else None

    def at(self, rate: float) -> Point | None:
        """The first point with a learning rate; None if there is none."""
        near = self.frame[np.isclose(self.frame.lr.astype(float), rate, rtol=1e-6, atol=0)]
        return None if near.empty else near.point.iloc[0]

    def values(self, key: str, point: Point | None) -> pd.Series:
        """A number at a point by start, the paper's left out; infinite where there is none."""
        own = self.frame[(self.frame.point == point) & (self.frame.seed != PAPERS_START)]
        if own.empty:
            return pd.Series(dtype=float)
        return own.set_index("seed")[key].astype(float).fillna(math.inf)

    def best(self, by: str, rates: tuple[float, float] = (0.0, math.inf)) -> Choice:
        """The point with the smallest number from the paper's start.

        Args:
            by: the number that decides.
            rates: the lowest and the highest learning rate that may be chosen.
        """
        low, high = rates
        lr = self.first.lr.astype(float)
        own = self.first[(lr >= low * 0.999) & (lr <= high * 1.001)]
        if own.empty:
            return Choice()
        numbers = own[by].astype(float).fillna(math.inf)
        chosen = own.iloc[int(np.argmin(numbers))]
        lost = not math.isfinite(numbers.min())
        ends = {own.lr.min(), own.lr.max()}
        at_edge = len(ends) > 1 and chosen.lr in ends and not lost
        return Choice(chosen.point, float(chosen.lr), at_edge, lost)
