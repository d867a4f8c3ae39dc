"""The paper's notation, and one step of SGD with momentum in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import Claim, Kind, Vector
from spherenorm_theory.laws import OneStep, W, express_inner, norm_growth

lr, beta, wd, rho, beta1 = (
    sp.Symbol(name, positive=True)
    for name in ("lr", "momentum", "weight_decay", "wd_ratio", "beta1")
)
t, k, l = sp.symbols("t k l", integer=True, nonnegative=True)  # noqa: E741
w, g, m = map(Vector.atom, "wgm")

ORTHOGONAL = sp.Eq(sp.Symbol("<w,g>"), 0)
FROM_REST = ORTHOGONAL, "no momentum before the first step"

PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""The paper's momentum has neither decay nor dampening."""


def claims(
    kind: Kind,
    record: Mapping[sp.Basic, sp.Basic],
    statements: Mapping[str, sp.Rel | tuple[sp.Rel, sp.Expr]],
) -> tuple[Claim, ...]:
    """Statements by their subjects, that are read in one record and shown in one way.

    Of an inequality, the statement is the relation with the difference that certifies it.
    """
    rows = ((about, x if isinstance(x, tuple) else (x, None)) for about, x in statements.items())
    return tuple(Claim(about, each, kind, record, slack) for about, (each, slack) in rows)


def squared(vector: str) -> sp.Symbol:
    """The squared norm of a vector, such as |p|^2."""
    return sp.Symbol(f"|{vector}|^2", positive=True)


def scalar(name: str) -> sp.Symbol:
    """A real number that a statement names."""
    return sp.Symbol(name, real=True)


def indexed(symbol: sp.Symbol) -> sp.IndexedBase:
    """The values of a symbol over time."""
    return sp.IndexedBase(symbol)


P, Q, G = map(squared, "pqg")
W_t, X_t = indexed(W), indexed(sp.Symbol("<w,p>", real=True))


@dataclass(frozen=True)
class MomentumStep:
    """The products after one step in terms of |w|^2, X = <w, m> and |p|^2, where p = m'.

    Attributes:
        step, first: the step on symbols, and the first one.
        p: the momentum that moves the weight.
        squared: |w'|^2.
        cross_after: <w', m'>.
    """

    step: OneStep
    first: OneStep
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
    law = norm_growth(recipe, **PLAIN)
    step, p = law.step, law.step.states["m"]
    assert isinstance(p, Vector)
    assert law.first is not None
    squared = express_inner(step, p, "p", step.weight, step.weight)
    cross_after = express_inner(step, p, "p", step.weight, p)
    return MomentumStep(step, law.first.step, p, squared, cross_after)
