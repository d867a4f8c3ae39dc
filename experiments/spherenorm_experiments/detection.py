"""Tests of scale-invariance, evaluated afterwards on the statistics that a run has recorded.

The probe `detection` records them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spherenorm_experiments.runs import Key, Result
from spherenorm_experiments.store import Records


@dataclass(frozen=True)
class WeightStatistic:
    """The statistic sqrt(dim) |cos(w, g)| of one weight in one run, nan without a gradient.

    Attributes:
        name: the weight's.
        view: the view in which the audit found it scale-invariant; None if in none.
        channels: shape (steps, channels).
        layer: shape (steps, 1).
    """

    name: str
    view: str | None
    channels: np.ndarray
    layer: np.ndarray


@functools.lru_cache(maxsize=64)
def _read(folder: Path, written: float, names: tuple[str, ...]) -> list[list[np.ndarray]]:
    """The statistics of these weights; a file is parsed once, as a study asks many times."""
    records = Records(folder).read(("statistic",))
    known = [record["statistic"] for record in records if record]
    return [
        [np.array([each[name][part] for each in known], dtype=float) for part in (0, 1)]
        for name in names
    ]


def statistics_of(result: Result, *, invariant: bool) -> list[WeightStatistic]:
    """The statistics of the weights that the audit found scale-invariant, or of the others."""
    views = result.summary["views"]
    every = _read(result.folder.path, result.written, tuple(views))
    named = zip(views.items(), every, strict=True)
    found = [WeightStatistic(name, view, *columns) for (name, view), columns in named]
    return [each for each in found if (each.view is not None) == invariant]


def percent_right(delta: float, *, invariant: bool) -> Key:
    """The percentage of weights and steps that the single-step test gets right, as a key.

    Args:
        invariant: of the scale-invariant weights, or of the others. None where there are none.
    """

    def key(result: Result) -> float | None:
        if "detection" not in result.spec.probes:
            return None
        chosen = statistics_of(result, invariant=invariant)
        rates = [(single_step(each, delta) == invariant).mean() for each in chosen]
        return 100 * float(np.mean(rates)) if rates else None

    return key


def single_step(statistic: WeightStatistic, delta: float) -> np.ndarray:
    """The paper's test at each step: True where it takes the weight for scale-invariant."""
    return _either(statistic.channels, statistic.layer, delta)


def accumulated(
    statistic: WeightStatistic, delta: float, memory: float, level: float = 0.02
) -> np.ndarray:
    """The same test on the running mean square of the statistic.

    It decides as `spherenorm.rules.AccumulatedInvarianceTest` does; shape (steps,).
    """
    channels, layer = (
        _running(values, delta, memory, level) for values in (statistic.channels, statistic.layer)
    )
    return _either(channels, layer, 1.0)


def _either(channels: np.ndarray, layer: np.ndarray, delta: float) -> np.ndarray:
    """True where one view passes: it has values, and all of them are below delta."""
    passed = np.zeros(len(channels), dtype=bool)
    for values in (channels, layer):
        known = ~np.isnan(values)
        passed |= (np.where(known, values, 0) < delta).all(axis=1) & known.any(axis=1)
    return passed


def _running(values: np.ndarray, delta: float, memory: float, level: float) -> np.ndarray:
    """The root of E_t / c_t over the threshold d, nan without a verdict; shaped as `values`."""
    units, rate = values.shape[1], np.sqrt(6 / np.pi)
    squared = min(delta, level ** (1 / units) / rate) ** 2
    evidence, count, rows = np.zeros(units), np.zeros(units), []
    for row in values:
        exists = ~np.isnan(row)
        clipped = np.minimum(np.where(exists, row, 0) ** 2, 3 * squared)
        evidence = memory * evidence + (1 - memory) * np.where(exists, clipped, 0)
        count = memory * count + (1 - memory) * exists
        known = count > (1 - memory) / 2
        enough = (rate * delta) ** known.sum() <= level or known.all()
        mean = evidence / np.where(known, count, 1) / squared
        rows.append(np.sqrt(np.where(known & enough, mean, np.nan)))
    return np.array(rows)
