"""The hypotheses of an equilibrium, and the error that they leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy as sp

from spherenorm_theory.algebra import show

__all__ = ["error_bound", "list_mean_field_hypotheses"]


FEWEST = 16
"""The entries of a unit from which on second moments have a bound.

AdamW's effective step at d = 2 and beta2 = 0.5 was off by 136 % in float64 runs.
"""


def error_bound(momenta: Sequence[float], moments: Sequence[float], dimension: int) -> float:
    """The relative error of |w| and of the effective step that may be left.

    Args:
        momenta: the share of itself that each momentum keeps in a step.
        moments: the same of each second moment of entries.
        dimension: d, the entries of a unit.

    Returns:
        The error; infinite where no bound was found, see `FEWEST`.
    """
    if moments and dimension < FEWEST:
        return math.inf
    memory = max((1 / (1 - share) for share in momenta), default=1.0)
    variance = sum((1 - share) / (1 + share) for share in moments)
    return (1 + memory / 20) / dimension + variance


def list_mean_field_hypotheses(
    momenta: Sequence[sp.Expr], moments: Sequence[sp.Expr]
) -> tuple[str, ...]:
    """The facts that the mean recursion takes for granted, in text.

    Args:
        momenta, moments: as for `error_bound`, as formulas.
    """
    kept, averaged = (", ".join(map(show, shares)) for shares in (momenta, moments))
    large = "the mean of the step is that of its products: d is large"
    forgets = f", and the momentum ({kept}) forgets before the weight turns" if kept else ""
    longest = f"max({kept})" if len(momenta) > 1 else kept
    bound = f"(1 + 1/(20 (1 - {longest})))/d" if kept else "21/(20 d)"
    bound += f" + (1 - {averaged})/(1 + {averaged})" if averaged else ""
    fewest = f" for d >= {FEWEST}" if averaged else ""
    return (
        "gradients are random: |g| = gamma / |w|, <w,g> = 0, and no momentum is correlated "
        "with them",
        large + forgets,
        *([f"the second moment ({averaged}) is at its mean in every entry"] if averaged else []),
        f"|w| and the effective step are off by {bound} at most{fewest}, as measured",
        "the two formulas are positive: elsewhere the norm does not settle",
        "the step scales with the lengths of weight and gradients (checked)",
    )
