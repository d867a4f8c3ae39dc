"""Runs of AdamP that record the statistic of the scale-invariance test at each step.

Table C.1 and the study of the accumulating detector evaluate their tests on these runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spherenorm_experiments.analysis import (
    Arm,
    Result,
    Trial,
    WeightStatistic,
    read_statistics,
    single_step,
)
from spherenorm_experiments.study._plan import Plan
from spherenorm_experiments.study._study import Study

__all__ = [
    "COLORS",
    "COMPARED",
    "NETWORKS",
    "false_positives",
    "percent_right",
    "statistics_of",
    "watched",
    "watched_arm",
]

NETWORKS = ("plain", "residual", "transformer")
COLORS = {"plain": "#4c78a8", "residual": "#e4572e", "transformer": "#2e8b57"}


def watched_arm(network: str) -> Arm:
    return Arm(f"watched: {network}", "adamp", {"stage": "watched", "network": network})


def watched(study: Study, plan: Plan) -> list[Trial]:
    """AdamP on each network, with the statistic of the test recorded at each step."""
    return [
        trial
        for network in NETWORKS
        for trial in study.seeded(
            plan,
            watched_arm(network),
            "digits",
            {"lr": 0.003},
            options={"variant": network},
            probes=("norms", "detection"),
        )
    ]


def statistics_of(item: Result, *, invariant: bool) -> list[WeightStatistic]:
    """The statistics of the weights that the audit found scale-invariant, or of the others."""
    return [found for found in read_statistics(item) if found.invariant == invariant]


def false_positives(delta: float) -> float:
    """The share of random gradients that pass the layer view of the single-step test.

    It is 2 Phi(delta) - 1, by a law of `spherenorm_theory`.
    """
    from spherenorm_theory import false_positive_rate  # sympy takes a second to import

    return false_positive_rate(delta)


def percent_right(delta: float, *, invariant: bool) -> Callable[[Result], float | None]:
    """The percentage of weights and steps that the single-step test gets right, as a key.

    Args:
        invariant: of the scale-invariant weights, or of the others. None where there are none.
    """

    def key(item: Result) -> float | None:
        if "detection" not in item.spec.probes:
            return None
        chosen = statistics_of(item, invariant=invariant)
        rates = [(single_step(found, delta) == invariant).mean() for found in chosen]
        return 100 * float(np.mean(rates)) if rates else None

    return key


def _percent_wrong(item: Result, *, invariant: bool) -> float | None:
    right = percent_right(0.1, invariant=invariant)(item)
    return None if right is None else 100 - right


COMPARED = {
    **Study.compared,
    "false positives (%)": lambda item: _percent_wrong(item, invariant=False),
    "missed (%)": lambda item: _percent_wrong(item, invariant=True),
}
"""The numbers that are shown of recipes that substitute for AdamP."""
