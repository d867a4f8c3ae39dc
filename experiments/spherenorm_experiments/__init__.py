"""Experiments: tasks, comparisons of optimizers on them, and the stored runs.

    from spherenorm_experiments import Mean, Splits, Task, load

    frame = load("runs")

The names below are all that a task or a study of one's own needs. Each is imported at its first
use, since torch takes a second.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "task": (
        *("Budget", "Collected", "Mean", "PureTask", "Splits", "Statistic", "Task"),
        "generator",
    ),
    "lookup": ("Layout", "load_recipe"),
    "spec": ("Regime", "Spec"),
    "runs": (
        *("Place", "RecordedNumber", "Result", "Runs", "Trial"),
        *("load", "mean_over", "number"),
    ),
    "probes": ("MeasuredStep",),
    "verdict": ("Claim", "Decision", "Statement", "Verdict", "estimate", "slug"),
    "pictures": ("Picture", "add_band", "color_of", "empty_figure"),
    "tables": ("Cell", "Table", "mean_of"),
    "study": ("Plan", "Study"),
    "comparison": ("Arm", "Comparison", "Condition", "Setup"),
    "store": ("Store",),
    "execute": ("execute_spec", "resolve"),
    "byte_model": ("ByteModel",),
}
"""The module of each name."""

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
