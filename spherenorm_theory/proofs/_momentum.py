"""One step of SGD with momentum, in the quantities of Lemma 2.2."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import Vector
from spherenorm_theory.laws import OneStep, compared_step, express_inner
from spherenorm_theory.proofs._notation import PLAIN, m, w

__all__ = ["MomentumStep", "read_momentum"]


@dataclass(frozen=True)
class MomentumStep:
    """The products after one step in terms of |w|^2, X = <w, m> and |p|^2, where p = m'.

    Attributes:
        step: the step on symbols.
        p: the momentum that moves the weight.
        squared: |w'|^2.
        cross_after: <w', m'>.
    """

    step: OneStep
    p: Vector
    squared: sp.Expr
    cross_after: sp.Expr

    @property
    def X(self) -> sp.Expr:  # noqa: N802  (the symbol of the proofs)
        """<w, m>, the cross term before the step."""
        return self.step.inner(w, m)

    @property
    def cross(self) -> sp.Expr:
        """<w, p>, a multiple of X."""
        return self.step.inner(w, self.p)

    @property
    def share(self) -> sp.Expr:
        """The number by which X enters <w, p>."""
        return sp.diff(self.cross, self.X)


def read_momentum(recipe: str | Recipe) -> MomentumStep:
    """The step of a recipe like SGD with momentum, without decay and dampening."""
    step = compared_step(recipe, **PLAIN)
    p = step.states["m"]
    assert isinstance(p, Vector)
    squared = express_inner(step, p, "p", step.weight, step.weight)
    cross_after = express_inner(step, p, "p", step.weight, p)
    return MomentumStep(step, p, squared, cross_after)
