"""What the code of a recipe proves: norm-growth laws derived from its traced step.

    from theory import norm_growth, check, equilibrium
    print(norm_growth("sgdp"))                 # the law, from the recipe's own code
    print(check("sgdp", weight_decay=1e-2))    # against a float64 run

or `python -m theory sgdp`. The paper's statements are in `theory.lemmas`, further ones in `theory.beyond`.
"""

from theory import beyond, lemmas
from theory.coordinates import Coordinates, step_in_coordinates
from theory.detection import false_positive_law, false_positive_rate
from theory.equilibrium import Equilibrium, NoEquilibriumError, equilibrium
from theory.norm_growth import NormGrowth, norm_growth
from theory.normalized import equation_4
from theory.numeric import Check, check
from theory.one_step import OneStep, one_step
from theory.proof import Proof
from theory.random_walk import check_equilibrium, check_ratio
from theory.trace import Trace, TraceError, trace

__all__ = [
    "Check",
    "Coordinates",
    "Equilibrium",
    "NoEquilibriumError",
    "NormGrowth",
    "OneStep",
    "Proof",
    "Trace",
    "TraceError",
    "beyond",
    "check",
    "check_equilibrium",
    "check_ratio",
    "equation_4",
    "equilibrium",
    "false_positive_law",
    "false_positive_rate",
    "lemmas",
    "norm_growth",
    "one_step",
    "step_in_coordinates",
    "trace",
]
