"""Checks of the laws on float64 runs.

A check runs the one simulation loop, `simulate`, on a problem and compares it with the law:

| law | check | on |
|---|---|---|
| norm growth | `check`, `Check` | networks and a toy problem, `PROBLEMS` |
| equilibrium | `check_equilibrium` | random gradients |
| turn at rest | `check_turn` | random gradients |
| growth ratio | `check_ratio` | random tangent gradients of length 1 |
| false positives | `count_false_positives` | random directions |
"""

from spherenorm_theory.checks.norm_growth import TOLERANCE, Check, check, switch_on
from spherenorm_theory.checks.problems import PROBLEMS, Problem
from spherenorm_theory.checks.random_gradients import (
    RunCheck,
    check_equilibrium,
    check_ratio,
    check_turn,
    count_false_positives,
)
from spherenorm_theory.checks.runs import simulate

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
