"""Verdicts of scale-invariance tests, computed after the fact from the statistics that the probe `detection` recorded."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.results import Result
from experiments.store import RunFolder

__all__ = ["Statistics", "accumulated", "read", "single_step"]


@dataclass(frozen=True)
class Statistics:
    """The test statistic sqrt(dim) |cos(w, g)| of one weight in one run, nan where there was no gradient.

    Attributes:
        name: the weight's.
        view: in which the audit found it scale-invariant; None if in none.
        channels: shape (steps, channels).
        layer: shape (steps, 1).
    """

    name: str
    view: str | None
    channels: np.ndarray
    layer: np.ndarray


def read(result: Result) -> list[Statistics]:
    """The statistics of every weight of two or more dimensions."""
    return _read(result.folder.path, result.summary["files"]["metrics.jsonl"])


@functools.lru_cache(maxsize=64)
def _read(folder: Path, digest: str) -> list[Statistics]:
    """Parsed once: a study asks for them many times. The checksum is there so that a new result is read anew."""
    run = RunFolder(folder)
    records = [record["statistic"] for record in run.metrics()]
    views = (run.summary() or {"views": {}})["views"]
    return [
        Statistics(
            name,
            view,
            *(np.array([record[name][part] for record in records], dtype=float) for part in (0, 1)),
        )
        for name, view in views.items()
    ]


def single_step(statistics: Statistics, delta: float) -> np.ndarray:
    """The paper's test, at each step: whether the weight is taken for scale-invariant, in one view or the other."""
    return _either(statistics.channels, statistics.layer, delta)


def accumulated(statistics: Statistics, delta: float, memory: float) -> np.ndarray:
    """The same test on the running root mean square of the statistic, as `spherenorm.rules.AccumulatedInvarianceTest`."""
    return _either(_running(statistics.channels, memory), _running(statistics.layer, memory), delta)


def _either(channels: np.ndarray, layer: np.ndarray, delta: float) -> np.ndarray:
    """Where one view passes: every unit of it that has a value is below delta, and there is one."""
    passed = np.zeros(len(channels), dtype=bool)
    for values in (channels, layer):
        known = ~np.isnan(values)
        passed |= (np.where(known, values, 0) < delta).all(axis=1) & known.any(axis=1)
    return passed


def _running(values: np.ndarray, memory: float) -> np.ndarray:
    total, weight, rows = np.zeros(values.shape[1]), np.zeros(values.shape[1]), []
    for row in values:
        known = ~np.isnan(row)
        total = np.where(known, memory * total + (1 - memory) * np.where(known, row, 0) ** 2, total)
        weight = np.where(known, memory * weight + (1 - memory), weight)
        rows.append(np.sqrt(np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan)))
    return np.array(rows)
