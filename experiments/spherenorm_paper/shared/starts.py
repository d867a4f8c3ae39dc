"""Both toys: the point that is best from one start, the paper's, scored from the others.

Frames are those of `Runs.every`: all runs of an arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.pictures import Picture, lines
from spherenorm_experiments.runs import Result, Runs, number
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.verdict import Claim, Statement, slug

PAPERS_START = 0
"""The seed of the start from which a point is chosen."""


def at_rate(frame: pd.DataFrame, rate: float) -> pd.DataFrame:
    """The runs at a learning rate."""
    return frame[np.isclose(frame.lr.astype(float), rate, rtol=1e-6, atol=0)]


def at_best(
    frame: pd.DataFrame, by: str, rates: tuple[float, float] = (0.0, math.inf)
) -> pd.DataFrame:
    """The runs at the point with the smallest number from the paper's start.

    If all are lost it is the first point, so that a claim about it counts them.

    Args:
        by: the number that decides.
        rates: the lowest and the highest learning rate that may be chosen.
    """
    lr = frame.lr.astype(float)
    in_range = (lr >= rates[0] * 0.999) & (lr <= rates[1] * 1.001)
    from_start = frame[in_range & (frame.seed == PAPERS_START)]
    if from_start.empty:
        return from_start
    place = int(np.argmin(from_start[by].astype(float).fillna(math.inf)))
    return frame[frame.point == from_start.point.iloc[place]]


def from_papers_start(frame: pd.DataFrame) -> Result | None:
    """The first run from the paper's start; None if there is none."""
    return next(iter(frame.run[frame.seed == PAPERS_START]), None)


def beside(frame: pd.DataFrame, key: str) -> pd.Series:
    """A number by start, the paper's left out; infinite where there is none."""
    other_starts = frame[frame.seed != PAPERS_START].set_index("seed")
    return number(other_starts, key).astype(float).fillna(math.inf)


def is_at_edge(frame: pd.DataFrame, chosen: pd.DataFrame) -> bool:
    """True if no rate beyond that of the chosen runs was tried on one side."""
    ends = {frame.lr.min(), frame.lr.max()}
    return len(ends) > 1 and chosen.lr.iloc[0] in ends


TIMED: dict[str, Any] = {"is_performance": True, "deterministic": True}
"""Arguments of a claim about steps or gaps."""


def largest_norm(
    method: str, paper_norm: float, within: float, frame: Callable[[Runs], pd.DataFrame],
    words: str, cites: Statement,
) -> Claim:  # fmt: skip
    """The claim about the largest norm from the paper's start, without randomness.

    Args:
        within: the share by which it may differ.
        frame: the runs at one point.
    """

    def norm(runs: Runs) -> float | None:
        item = from_papers_start(frame(runs))
        return None if item is None else item.summary["max_norm"]

    return Claim(
        f"largest-norm.{slug(method)}", f"= {paper_norm} ± {within * paper_norm:.4g}", norm,
        f"The largest norm under {words} is {paper_norm}", cites,
        format=".4g", paper=Cell(paper_norm, "g"),
    )  # fmt: skip


def over_steps(
    items: Mapping[str, Result], steps: np.ndarray, floor: float,
    captions: Mapping[str, tuple[str, ...]], **how: Any,
) -> list[Picture]:  # fmt: skip
    """Draw curves of runs.

    Args:
        steps: steps that are shown.
        floor: a smaller value is drawn as this.
        captions: the title of the axis, the caption, and the paper's figure, if it has one, by the
            curve's key.
        how: other arguments of `lines`.
    """
    pictures = []
    for key, (y, caption, *shows) in captions.items():
        curves = {name: (steps, np.maximum(item.arrays[key][steps], floor))
                  for name, item in items.items()}  # fmt: skip
        picture = lines(curves, "step", y, caption, log_y=True, **how)
        pictures.append(replace(picture, shows="".join(shows)))
    return pictures
