"""Descents on the two-dimensional toy, which Figures 1 and 2 draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spherenorm_experiments.analysis import PAPERS_START, Arm, Trial
from spherenorm_experiments.core import Spec

__all__ = ["ARMS", "LR", "descent"]

LR = 0.02
ARMS = {
    label: Arm(label, recipe, {"momentum": momentum})
    for label, recipe, momentum in (
        ("GD", "sgd", 0.0),
        ("GDM 0.9", "sgd", 0.9),
        ("GDM 0.99", "sgd", 0.99),
        ("GDP 0.9", "sgdp", 0.9),
        ("GDP 0.99", "sgdp", 0.99),
    )
}


def descent(
    arm: Arm, steps: int, rates: Sequence[float] = (LR,), starts: Sequence[int] = (PAPERS_START,)
) -> Trial:
    """Descents at these rates from the paper's start, or from others at its side.

    The path from the paper's start is kept.
    """
    setting = {"lr": list(rates), "momentum": arm.settings["momentum"]}
    common: dict[str, Any] = {"epochs": steps, "batch_size": 1, "schedule": "constant"}
    options = {"path": PAPERS_START in starts}
    return Trial(
        arm, Spec("cosine", arm.recipe, setting, options, seeds=tuple(starts), probes=(), **common)
    )
