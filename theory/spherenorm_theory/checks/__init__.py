"""Checks of the laws on float64 runs.

A check runs the one simulation loop, `simulate`, on a problem and compares it with the law:

| law | check | on |
|---|---|---|
| norm growth | `check`, `Check` | networks and toy problems, `PROBLEMS` |
| equilibrium | `check_equilibrium` | random gradients |
| growth ratio | `check_ratio` | random tangent gradients of length 1 |
| false positives | `count_false_positives` | random directions |
"""

from spherenorm_theory.checks._norm_growth import TOLERANCE, Check, check, switch_on
from spherenorm_theory.checks._problems import PROBLEMS, Problem
from spherenorm_theory.checks._random_gradients import (
    RunCheck,
    check_equilibrium,
    check_ratio,
    check_turn,
    count_false_positives,
)
from spherenorm_theory.checks._simulation import simulate

__all__ = [
    "PROBLEMS",
    "TOLERANCE",
    "Check",
    "Problem",
    "RunCheck",
    "check",
    "check_equilibrium",
    "check_ratio",
    "check_turn",
    "count_false_positives",
    "simulate",
    "switch_on",
]
