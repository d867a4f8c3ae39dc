"""The paper's test of scale-invariance, on the statistics that the probe `detection` records."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spherenorm_experiments.runs import Key, RecordedNumber, Result
from spherenorm_experiments.store import RunFolder


class WeightStatistic(NamedTuple):
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
def _read_statistics(
    folder: Path, written: float, names: tuple[str, ...]
) -> list[list[np.ndarray]]:
    """The statistics of these weights; a file is parsed once, as a study asks many times."""
    records = RunFolder(folder).records(("statistic",))
    statistics = [record["statistic"] for record in records if record]
    return [
        [
            np.array([statistic[name][part] for statistic in statistics], dtype=float)
            for part in (0, 1)
        ]
        for name in names
    ]


def statistics_of(result: Result, *, invariant: bool) -> list[WeightStatistic]:
    """The statistics of the weights that the audit found scale-invariant, or of the others."""
    views = result.summary["views"]
    columns_of_weights = _read_statistics(result.folder.path, result.written_at, tuple(views))
    return [
        WeightStatistic(name, view, *columns)
        for (name, view), columns in zip(views.items(), columns_of_weights, strict=True)
        if (view is not None) == invariant
    ]


def percent_right(delta: float, *, invariant: bool) -> RecordedNumber:
    """Return the percentage of weights and steps that the single-step test gets right, as a key.

    Args:
        delta: threshold of the test.
        invariant: True for the scale-invariant weights, False for the others. A run without such
            weights has no number.
    """

    def percentage(result: Result) -> float | None:
        if "detection" not in result.spec.probes:
            return None
        chosen = statistics_of(result, invariant=invariant)
        rates = [(single_step(weight, delta) == invariant).mean() for weight in chosen]
        return 100 * float(np.mean(rates)) if rates else None

    kind = "invariant" if invariant else "variant"
    return RecordedNumber(f"percent of {kind} weights right at {delta:g}", percentage)


DETECTED: dict[str, tuple[Key, str]] = {
    "detected (%)": (percent_right(0.1, invariant=True), ".1f"),
    "left alone (%)": (percent_right(0.1, invariant=False), ".1f"),
}
"""Columns of a comparison: the scale-invariant weights that the test with delta 0.1 takes for such,
and the others that it does not."""


def single_step(statistic: WeightStatistic, delta: float) -> np.ndarray:
    """The paper's test at each step: True where it takes the weight for scale-invariant.

    One view passes if it has values, and all of them are below delta.
    """
    passed = np.zeros(len(statistic.channels), dtype=bool)
    for values in (statistic.channels, statistic.layer):
        is_known = ~np.isnan(values)
        passed |= (np.where(is_known, values, 0) < delta).all(axis=1) & is_known.any(axis=1)
    return passed
