"""The result of a check of a norm-growth law: residuals, and the assumptions that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spherenorm_theory.algebra import Array

TOLERANCE = 1e-10
"""Relative, on |w|^2 after hundreds of steps.

Rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more.
"""

NOT_ORTHOGONAL = 1e-10
"""A cosine of w and g above this is no rounding.

float64 gradients of an exactly invariant function stay below 1e-12.
"""


@dataclass(frozen=True)
class WeightCheck:
    """One weight of a check: the residual of the law, and the numbers behind its assumptions.

    Attributes:
        residual: the greatest relative difference of |w_t|^2 to the prediction.
        step_error: the greatest relative difference of the law's own step to the rule's, over some
            steps.
        outside: the reason why the law says no step of its own in some of them.
        alone: the assumption by which the law's step is of weights of one unit; then the norm alone
            is checked.
        cosine: the greatest |cos(w, g)|, see `Trajectory.cosine`.
        zero_gradients: the steps in which the gradient of a unit is exactly 0.
        growth: |w_T|^2 / |w_0|^2 of the unit that grew most.
        apart: the share of a unit's step that is due to the other units; measured where nothing
            else explains the residual.
        other_views: the rules that act on other units than the weight's, which may be why.
        measured, predicted: |w_t|^2 of the run and of the law, of shape (steps + 1, units).
    """

    residual: float
    step_error: float
    cosine: float
    zero_gradients: int
    growth: float
    outside: str = ""
    alone: str = ""
    apart: float = 0.0
    other_views: tuple[str, ...] = ()
    measured: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    predicted: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    @property
    def passed(self) -> bool:
        """True if the law holds up to rounding, for the norms and for the steps."""
        return max(self.residual, self.step_error) <= TOLERANCE

    @property
    def steps(self) -> str:
        """The agreement of the steps, in text."""
        return "no step compared" if self.alone else f"steps to {self.step_error:.1e}"

    @property
    def complaints(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        complaints = []
        if self.cosine > NOT_ORTHOGONAL:
            complaints.append(f"<w, g> = 0 fails: |cos(w, g)| up to {self.cosine:.1e}")
        if self.zero_gradients:
            complaints.append(
                f"the gradient of a unit is exactly 0 in {self.zero_gradients} steps: "
                "no evidence of scale invariance there"
            )
        if self.apart > NOT_ORTHOGONAL:
            why = f" ({', '.join(self.other_views)})" if self.other_views else ""
            complaints.append(
                f"a unit does not move as if it were alone{why}: "
                f"its step is off by up to {self.apart:.1e}"
            )
        if self.outside:
            complaints.append(f"the law says no step here: {self.outside}")
        return complaints


@dataclass(frozen=True)
class Check:
    """A law against a run.

    Attributes:
        recipe, problem: their names.
        weights: the numbers of each weight.
        hyper_parameters: of the run.
        schedule: of its learning rate.
        law: the name of the law's recipe.
        identity: True if the cross term had to be measured: of the norm then only the identity
            |(1 - kappa) w + s|^2 is checked, beside the steps.
        differences: hyper-parameters that the law was derived for and the run did not have.
        broken: the assumption that the problem breaks on purpose.
    """

    recipe: str
    problem: str
    weights: Mapping[str, WeightCheck]
    hyper_parameters: Mapping[str, Any]
    schedule: str
    law: str
    identity: bool = False
    differences: tuple[str, ...] = ()
    broken: str = ""

    @property
    def residual(self) -> float:
        """The greatest residual of all weights, of norms and of steps."""
        return max(max(each.residual, each.step_error) for each in self.weights.values())

    @property
    def passed(self) -> bool:
        """True if the law holds for every weight."""
        return all(each.passed for each in self.weights.values())

    @property
    def complaints(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        of_weights = (
            f"{name}: {c}" for name, each in self.weights.items() for c in each.complaints
        )
        return [*self.differences, *of_weights]

    def __str__(self) -> str:
        verdict = (
            f"holds to {self.residual:.1e}"
            if self.passed
            else f"DOES NOT HOLD: residual {self.residual:.1e} > {TOLERANCE:.0e}"
        )
        kind = " (identity only: the cross term is open, and measured)" if self.identity else ""
        run = f"{self.recipe} on {self.problem}"
        run += f", {self.schedule} schedule" if self.schedule != "constant" else ""
        lines = [f"checked on runs: law of {self.law}, {run}{kind}: {verdict}"]
        lines += [f"  with {', '.join(f'{n}={v}' for n, v in self.hyper_parameters.items())}"]
        lines += [
            f"  {name}: norms to {each.residual:.1e}, {each.steps}, "
            f"|w|^2 grew {each.growth:.3g}-fold at most"
            for name, each in self.weights.items()
        ]
        lines += [f"  assumption broken on purpose: {self.broken}"] if self.broken else []
        alone = dict.fromkeys(each.alone for each in self.weights.values() if each.alone)
        lines += [f"  no step of several units is compared: {why}" for why in alone]
        return "\n".join([*lines, *(f"  {complaint}" for complaint in self.complaints)])

    __repr__ = __str__
