"""Loss against learning rate, seed by seed: sensitivity, plateau, best rate.

A table of losses has a row for each seed, and a column for log2 of each rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from spherenorm_experiments.extra.control.byte_model import UNIFORM
from spherenorm_experiments.runs import Runs

WITHIN = 0.02
"""Nats: rates whose loss is so near the best one are on the plateau."""

REACH = 2
"""Octaves on both sides of the best rate over which the sensitivity is taken."""


def losses(runs: Runs, condition: str, arm: str) -> pd.DataFrame:
    """The test losses of an arm in nats per byte, at the rates at which all seeds have ended.

    A run that diverged, or does worse than a uniform model, has the loss of that.
    """
    own = runs.of(condition, arm)
    loss = (-own.test.astype(float)).fillna(UNIFORM).clip(upper=UNIFORM)
    table = own.assign(octave=np.log2(own.lr.astype(float)), loss=loss)
    return table.pivot(index="seed", columns="octave", values="loss")


def around_best(table: pd.DataFrame) -> list[float]:
    """The octaves within `REACH` of the rate with the best mean loss.

    Fewer where the rates end: others in their place would lie further from the best, where losses
    are higher, and make the arm look more sensitive than one whose best rate is in the middle.
    """
    if table.empty:
        return []
    place = int(np.argmin(table.mean()))
    return list(table.columns[max(0, place - REACH) : place + REACH + 1])


def lacking(table: pd.DataFrame) -> int:
    """The number of rates within `REACH` of the best that the search does not have."""
    return 0 if table.empty else 2 * REACH + 1 - len(around_best(table))


def sensitivity(table: pd.DataFrame) -> pd.Series:
    """Of each seed the mean loss over the rates around the best mean loss, minus the best of these.

    Source: Wortsman et al. 2023, arXiv:2309.14322, Section 2.
    """
    chosen = table[around_best(table)]
    return (chosen.mean(axis=1) - chosen.min(axis=1)).astype(float)


def plateau(table: pd.DataFrame) -> pd.Series:
    """Of each seed the octaves whose loss, linear between two rates, is `WITHIN` the best one.

    >>> plateau(pd.DataFrame([[1.0, 0.98, 1.02]], columns=[-6.0, -5.0, -4.0])).tolist()
    [1.5]
    """
    values = table.to_numpy(dtype=float)
    level = values.min(axis=1, initial=np.inf)[:, None] + WITHIN
    ends = np.sort(np.stack([values[:, :-1], values[:, 1:]]), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip((level - ends[0]) / (ends[1] - ends[0]), 0, 1)
    share = np.where(ends[1] <= level, 1.0, share)
    return pd.Series(share @ np.diff(table.columns.to_numpy(dtype=float)), table.index, dtype=float)


def best_octave(table: pd.DataFrame) -> pd.Series:
    """Of each seed log2 of the best rate; see `vertex`."""
    found = {seed: vertex(table.columns, row.tolist()) for seed, row in table.iterrows()}
    return pd.Series(found, dtype=float)


def vertex(octaves: Sequence[float], values: Sequence[float]) -> float:
    """The vertex of the parabola through the best loss and those beside; the end if it is at one.

    >>> round(vertex((-6.0, -5.0, -4.0), (2.0, 1.0, 1.5)), 2)
    -4.83
    """
    place = int(np.argmin(values))
    if place in (0, len(values) - 1):
        return float(octaves[place])
    before, here, after = values[place - 1 : place + 2]
    curved = before - 2 * here + after
    step = (octaves[place + 1] - octaves[place - 1]) / 2
    return float(octaves[place] + step * (0.0 if curved == 0 else (before - after) / 2 / curved))
