"""Laws of a recipe, derived from the record of its step.

| law | names |
|---|---|
| one step on symbols, in every dimension | `one_step`, `Step` |
| the growth of the norm: decay, drive, cross term, solution in time | `norm_growth`, `Law` |
| growth relative to the steps' own | `growth_ratio` |
| norm and rotation in equilibrium | `equilibrium`, `Equilibrium` |
| the rate at which `rotational` turns so | `rotational_rate` |
| the turn per step at rest, in numbers | `turn_at_rest` |
| false positives of the scale-invariance test | `false_positive_rate` |

No law is returned that differs from its code (`verify`).
"""

from spherenorm_theory.laws.step import GAMMA

__all__ = ["GAMMA"]
