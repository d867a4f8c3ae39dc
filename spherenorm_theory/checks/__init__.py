"""Checks of the laws on float64 runs.

There is one simulation loop, `simulate`. A check runs it on a problem, measures, and compares with
the law:

| law | check | on |
|---|---|---|
| norm growth | `check`, `Check` | networks and toy problems, `PROBLEMS` |
| equilibrium | `check_equilibrium`, `EquilibriumCheck` | random gradients |
| growth ratio | `check_ratio`, `RatioCheck` | random tangent gradients of length 1 |
| false positives | `count_false_positives`, `CountCheck` | random directions |
"""

from spherenorm_theory.checks._check import TOLERANCE, Check, WeightCheck
from spherenorm_theory.checks._false_positives import CountCheck, count_false_positives
from spherenorm_theory.checks._norm_growth import check, switch_on
from spherenorm_theory.checks._prediction import predict
from spherenorm_theory.checks._problems import PROBLEMS, Problem
from spherenorm_theory.checks._random_gradients import (
    EquilibriumCheck,
    RatioCheck,
    check_equilibrium,
    check_ratio,
)
from spherenorm_theory.checks._simulation import (
    SCHEDULES,
    ScheduledHyperparameters,
    Transition,
    resolve_schedule,
    simulate,
    structure_of,
)
from spherenorm_theory.checks._trajectory import Trajectory, measure

__all__ = [
    "PROBLEMS",
    "SCHEDULES",
    "TOLERANCE",
    "Check",
    "CountCheck",
    "EquilibriumCheck",
    "Problem",
    "RatioCheck",
    "ScheduledHyperparameters",
    "Trajectory",
    "Transition",
    "WeightCheck",
    "check",
    "check_equilibrium",
    "check_ratio",
    "count_false_positives",
    "measure",
    "predict",
    "resolve_schedule",
    "simulate",
    "structure_of",
    "switch_on",
]
