"""The paper's notation, and one step of SGD with momentum in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import sympy as sp
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.algebra.claims import Claim, Hypothesis, Kind
from spherenorm_theory.algebra.symbols import Inner, Norm, Vector, exact
from spherenorm_theory.laws.claims import read_products
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.step import Step, express_inner

lr, beta, wd, rho, beta1 = (
    sp.Symbol(name, positive=True)
    for name in ("lr", "momentum", "weight_decay", "wd_ratio", "beta1")
)
t, k, l = sp.symbols("t k l", integer=True, nonnegative=True)  # noqa: E741
w, g, m = map(Vector.atom, "wgm")
P, Q, G, S, W, W_NEXT = (Norm(name) ** 2 for name in ("p", "q", "g", "s", "w", "w'"))

AT_REST = "m_0 = 0"
CONSTANT = "lr, momentum constant"

PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""The paper's momentum has neither decay nor dampening."""


class OverTime:
    """The squares of a norm over time: `OverTime("w")[t]` is |w_t|^2."""

    def __init__(self, name: str) -> None:
        self.base = sp.IndexedBase(Norm(name))

    def __getitem__(self, time: sp.Expr) -> sp.Expr:
        return self.base[time] ** 2


def indexed(symbol: sp.Symbol) -> sp.IndexedBase:
    """The values of a symbol over time."""
    return sp.IndexedBase(symbol)


Statement: TypeAlias = "sp.Rel | tuple[sp.Rel, sp.Expr]"
"""A relation; of an inequality, with the difference that certifies it."""


def claims(
    kind: Kind,
    record: Mapping[sp.Basic, sp.Basic],
    statements: Mapping[str, Statement],
    under: tuple[Hypothesis, ...] = (),
) -> tuple[Claim, ...]:
    """Statements by their subjects, that are read in one record and shown in one way."""
    rows = ((about, x if isinstance(x, tuple) else (x, None)) for about, x in statements.items())
    return tuple(
        Claim(about, each, kind, record, slack, under=under) for about, (each, slack) in rows
    )


def read(
    step: Step,
    vectors: Mapping[str, Vector],
    statements: Mapping[str, Statement],
    under: tuple[Hypothesis, ...] | None = None,
    kind: Kind = Kind.DERIVED,
) -> tuple[Claim, ...]:
    """Statements about vectors of a step: the products that they hold are read from its record.

    Args:
        step: the step on symbols.
        vectors: by the names that statements have for them, beside w, g and m.
        statements: by their subjects.
        under: the hypotheses; those of the step by default.
        kind: the way in which they are shown.
    """
    shown: list[Claim] = []
    for about, statement in statements.items():
        whole = sp.Tuple(*statement) if isinstance(statement, tuple) else statement
        record = read_products(step, {"w": w, "g": g, "m": m, **vectors}, whole)
        names = {symbol for symbol in whole.free_symbols if symbol.name in vectors}
        record |= {symbol: vectors[symbol.name].formula for symbol in names}
        held = step.hypotheses if under is None else under
        shown += claims(kind, record, {about: statement}, held)
    return tuple(shown)


def scalar(name: str) -> sp.Symbol:
    """A real number that a statement names."""
    return sp.Symbol(name, real=True)


W_t, P_t, S_t = map(OverTime, "wps")
X_t = indexed(Inner("w", "p"))


class MomentumStep(NamedTuple):
    """A step of SGD with momentum p = m'.

    Attributes:
        under: the premises of the record.
        X, cross: <w, m> and <w, p>.
        share: the number by which X enters <w, p>.
        squared, cross_after: |w'|^2 and <w', m'> in terms of |w|^2, X and |p|^2.
    """

    under: tuple[Hypothesis, ...]
    X: sp.Expr
    cross: sp.Expr
    share: sp.Expr
    squared: sp.Expr
    cross_after: sp.Expr


def read_momentum(recipe: str | Recipe) -> MomentumStep:
    """The step of a recipe like SGD with momentum, without decay and dampening."""
    step = norm_growth(recipe, **PLAIN).step
    p = step.states["m"]
    assert isinstance(p, Vector)
    X, cross = step.inner(w, m), step.inner(w, p)
    after = [express_inner(step, p, "p", step.weight, x) for x in (step.weight, p)]
    return MomentumStep(step.hypotheses, X, cross, sp.diff(cross, X), *after)


def of_float(x: float | Tensor) -> sp.Expr:
    """The number that a float64 step has computed."""
    return exact(round(float(x), 12))
