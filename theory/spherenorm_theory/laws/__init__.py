"""Laws of a recipe, derived from the record of its step.

| law | names |
|---|---|
| one step on symbols, in every dimension | `one_step`, `OneStep` |
| one step in explicit coordinates | `step_in_coordinates` |
| the law of one step: decay, drive and cross term | `StepLaw` |
| the law from the first step on, and its solution in time | `norm_growth`, `NormGrowth` |
| growth relative to the steps' own | `growth_ratio` |
| norm and rotation in equilibrium | `equilibrium`, `Equilibrium` |
| the rate at which `rotational` turns so | `rotational_rate` |
| the turn per step at rest, in numbers | `turn_at_rest` |
| false positives of the scale-invariance test | `false_positive_rate` |

No law is returned that differs from its code (`_verify`).
"""

from spherenorm_theory.laws._detection import derive_threshold, false_positive_rate
from spherenorm_theory.laws._equilibrium import (
    Equilibrium,
    equilibrium,
    growth_ratio,
    rotational_rate,
    without_eps,
)
from spherenorm_theory.laws._evaluation import OutsideError
from spherenorm_theory.laws._homogeneity import NoEquilibriumError
from spherenorm_theory.laws._localize_mismatch import DifferenceError
from spherenorm_theory.laws._norm_growth import NormGrowth, norm_growth
from spherenorm_theory.laws._one_step import OneStep, express_inner, one_step, step_in_coordinates
from spherenorm_theory.laws._prediction import compile_formula, follow
from spherenorm_theory.laws._quantities import GAMMA, W_NEXT, S, W, product
from spherenorm_theory.laws._stationary import drop_transients, find_stationary_buffers
from spherenorm_theory.laws._step_law import StepLaw
from spherenorm_theory.laws._turn import turn_at_rest

__all__ = [
    "GAMMA",
    "W_NEXT",
    "DifferenceError",
    "Equilibrium",
    "NoEquilibriumError",
    "NormGrowth",
    "OneStep",
    "OutsideError",
    "S",
    "StepLaw",
    "W",
    "compile_formula",
    "derive_threshold",
    "drop_transients",
    "equilibrium",
    "express_inner",
    "false_positive_rate",
    "find_stationary_buffers",
    "follow",
    "growth_ratio",
    "norm_growth",
    "one_step",
    "product",
    "rotational_rate",
    "step_in_coordinates",
    "turn_at_rest",
    "without_eps",
]
