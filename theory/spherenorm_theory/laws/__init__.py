"""Laws of a recipe, derived from the record of its step.

| law | names |
|---|---|
| one step on symbols, in every dimension | `one_step`, `Step` |
| the growth of the norm: decay, drive, cross term, solution in time | `norm_growth`, `Law` |
| the same as a paper states it | `Proposition` |
| growth relative to the steps' own | `growth_ratio` |
| norm and rotation in equilibrium | `equilibrium`, `Equilibrium` |
| the rate at which `rotational` turns so | `rotational_rate` |
| the turn per step at rest, in numbers | `turn_at_rest` |
| false positives of the scale-invariance test | `false_positive_rate` |

No law is returned that differs from its code (`verify`).
"""

from spherenorm_theory.laws.detection import derive_threshold, false_positive_rate
from spherenorm_theory.laws.equilibrium import (
    Equilibrium,
    equilibrium,
    rotational_rate,
    usual_values,
    without_eps,
)
from spherenorm_theory.laws.evaluate import OutsideError
from spherenorm_theory.laws.follow import compile_formula, follow
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.laws.orthogonal import Overlap, share_of
from spherenorm_theory.laws.proposition import Proposition, escape_latex, paragraph, wrapped
from spherenorm_theory.laws.split import Split
from spherenorm_theory.laws.step import GAMMA, S, Step, W, express_inner, one_step
from spherenorm_theory.laws.turn import growth_ratio, momenta_at_rest, turn_at_rest
from spherenorm_theory.laws.verify import Agreement, DifferenceError

__all__ = [
    "GAMMA",
    "Agreement",
    "DifferenceError",
    "Equilibrium",
    "Law",
    "NoEquilibriumError",
    "OutsideError",
    "Overlap",
    "Proposition",
    "S",
    "Split",
    "Step",
    "W",
    "compile_formula",
    "derive_threshold",
    "drop_transients",
    "equilibrium",
    "escape_latex",
    "express_inner",
    "false_positive_rate",
    "follow",
    "growth_ratio",
    "norm_growth",
    "one_step",
    "paragraph",
    "rotational_rate",
    "share_of",
    "momenta_at_rest",
    "turn_at_rest",
    "usual_values",
    "without_eps",
    "wrapped",
]
