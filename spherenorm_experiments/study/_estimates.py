"""Estimates of how long runs will take, from those that have ended."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence

from spherenorm_experiments.core import Spec, Task
from spherenorm_experiments.engine import Run, Store

__all__ = ["Clock", "estimate"]

SECONDS_PER_STEP = 0.008
"""Guessed before anything of the kind has run: a small network on one core."""

PURE_SHARE = 0.1
"""The share of that which a step of a pure task takes, at one point with one seed."""


def estimate(store: Store, runs: Sequence[Run]) -> dict[str, float]:
    """Seconds that each run will take on one core, by its id.

    They come from runs of the same kind that have ended, else they are guessed. Much shorter runs
    do not count, since most of their time is their start: the smoke tier's say nothing of the small
    one's.
    """
    measured: dict[str, list[tuple[int, float]]] = {}
    for folder in store.folders():
        status = folder.status()
        config = folder.config() if "seconds" in status else None
        if config is not None:
            spec = Spec.from_json(config)
            pace = spec.epochs, status["seconds"] / _rows(spec)
            measured.setdefault(_kind(spec), []).append(pace)
    return {run.id: _seconds(run, measured.get(_kind(run.spec), ())) for run in runs}


def _seconds(run: Run, measured: Sequence[tuple[int, float]]) -> float:
    """Seconds of a run, from the epochs of others of its kind and their seconds for one row."""
    epochs, rows = run.spec.epochs, _rows(run.spec)
    paces = [seconds / taken for taken, seconds in measured if 2 * taken >= epochs]
    if paces:
        return rows * epochs * statistics.median(paces)
    share = 1.0 if isinstance(run.task, Task) else PURE_SHARE
    return rows * run.steps * SECONDS_PER_STEP * share


def _rows(spec: Spec) -> int:
    """The points and seeds of a computation: each takes its time, at once or one by one."""
    return max(map(len, spec.points.values()), default=1) * len(spec.every_seed)


def _kind(spec: Spec) -> str:
    """Runs of one kind take about the same time per epoch."""
    same = [spec.task, dict(spec.options), sorted(spec.points), spec.batch_size, spec.device]
    return json.dumps(same, sort_keys=True)


class Clock:
    """The time that is left: first from estimates, then ever more from this machine's pace."""

    def __init__(self, cost: float, jobs: int) -> None:
        self.cost, self.done, self.jobs, self.started = cost, 0.0, jobs, time.monotonic()

    def left_after(self, cost: float) -> float:
        """Count a run of that estimated cost as done; the estimated seconds of the others."""
        self.done += cost
        elapsed, expected = time.monotonic() - self.started, self.done / self.jobs
        trust = min(1.0, elapsed / 30, 5 * self.done / self.cost if self.cost else 1.0)
        pace = 1 + trust * (elapsed / expected - 1) if expected else 1.0
        return max(0.0, self.cost - self.done) / self.jobs * pace
