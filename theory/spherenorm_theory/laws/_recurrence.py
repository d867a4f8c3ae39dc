"""The solution of a law in time: the recurrence of its cross terms, and its closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy as sp

from spherenorm_theory.algebra import normalize_signs, tidy
from spherenorm_theory.laws._quantities import W, product
from spherenorm_theory.laws._step_law import StepLaw

t, k, j = sp.symbols("t k j", integer=True, nonnegative=True)
FACTOR = sp.Symbol("a", positive=True)
"""The factor of a recurrence z' = a z + b, where only its name matters."""


@dataclass(frozen=True)
class LinearRecurrence:
    """z' = A z + b.

    The inner products among the unknowns start at 0, since buffers do; |w|^2 starts anywhere.

    Attributes:
        unknowns: z, the entries that the recurrence is about.
        matrix: A, in hyper-parameters.
        rest: b, in hyper-parameters and in quantities such as |s|^2 that change from step to step.
        constants: the hyper-parameters, which stay the same from step to step.
    """

    unknowns: tuple[sp.Symbol, ...]
    matrix: sp.Matrix
    rest: sp.Matrix
    constants: frozenset[sp.Symbol]

    def closed_form(self, varying: tuple[str, ...] = ()) -> sp.Eq | None:
        """The unknown at step t as a sum over the steps before it; None for several unknowns.

        An indexed symbol such as |s|^2[k] is the value at step k.

        Args:
            varying: names of the hyper-parameters that follow a schedule; `lr` becomes lr[k].
        """
        if len(self.unknowns) > 1:
            return None
        start, summand = self._solution(self.matrix[0, 0], varying)
        total = start + sp.Sum(summand, (k, 0, t - 1))
        return sp.Eq(sp.IndexedBase(self.unknowns[0])[t], total, evaluate=False)

    def induction(self, varying: tuple[str, ...] = ()) -> dict[str, sp.Expr]:
        """Residuals of the proof of the closed form by induction over t; all 0 if it holds.

        With z' = a z + b the recurrence and F(t) the closed form, for symbolic t: F(0) is the start
        value, and F(t+1) - a F(t) - b vanishes, summand by summand for k < t, and for the new
        summand k = t. The factor a is kept as a symbol.
        """
        if self._moving(self.matrix[0, 0], varying):
            varying = (*varying, FACTOR.name)
        start, summand = self._solution(FACTOR, varying)
        a, b = self._at(t, FACTOR, varying), self._at(t, self.rest[0], varying)
        ahead, start_ahead = summand.subs(t, t + 1), start.subs(t, t + 1)
        # The factor of step t is split off the products over j <= t, so that both sides hold the
        # same product.
        products = (ahead + start_ahead).atoms(sp.Product)
        split = {p: p.subs(t, t - 1) * p.function.subs(j, t) for p in products}
        return {
            "t = 0": sp.simplify(start.subs(t, 0).doit() - self._begin()),
            "start value": sp.simplify(start_ahead.subs(split) - a * start),
            "k < t": sp.simplify(ahead.subs(split) - a * summand),
            "k = t": sp.simplify(ahead.subs(k, t).doit() - b),
        }

    def _solution(self, factor: sp.Expr, varying: tuple[str, ...]) -> tuple[sp.Expr, sp.Expr]:
        """The share of the start value in z_t, and that of step k, for z' = factor z + b."""

        def carry(low: sp.Expr) -> sp.Expr:
            """The product of the factors of the steps from `low` to t - 1."""
            if not self._moving(factor, varying):
                return factor ** (t - low)
            return sp.Product(self._at(j, factor, varying), (j, low, t - 1))

        begin = self._begin()
        start = begin * carry(sp.Integer(0)) if begin != 0 else begin
        return start, carry(k + 1) * self._at(k, self.rest[0], varying)

    def _begin(self) -> sp.Expr:
        (unknown,) = self.unknowns
        return sp.IndexedBase(unknown)[0] if unknown == W else sp.Integer(0)

    def _at(self, step: sp.Expr, expression: sp.Expr, varying: tuple[str, ...]) -> sp.Expr:
        """The expression at a step: each symbol that changes is replaced by its value there."""
        moving = self._moving(expression, varying)
        return expression.subs({s: sp.IndexedBase(s)[step] for s in moving})

    def _moving(self, expression: sp.Expr, varying: tuple[str, ...]) -> list[sp.Symbol]:
        """The symbols of an expression that change from step to step."""
        lasting = self.constants | {FACTOR}
        return [s for s in expression.free_symbols if s.name in varying or s not in lasting]


def collect_recurrence(
    after: Mapping[sp.Symbol, sp.Expr],
    unknowns: tuple[sp.Symbol, ...],
    constants: frozenset[sp.Symbol],
) -> LinearRecurrence | None:
    """The recurrence of `unknowns`, whose values after one step are `after`; None if not linear."""
    rows = [[normalize_signs(sp.diff(after[x], y)) for y in unknowns] for x in unknowns]
    matrix = sp.Matrix(rows)
    linear = matrix * sp.Matrix(unknowns)
    rest = sp.Matrix([normalize_signs(after[x] - linear[i]) for i, x in enumerate(unknowns)])
    if matrix.free_symbols - constants or rest.free_symbols & {*unknowns}:
        return None
    return LinearRecurrence(unknowns, matrix, rest, constants)


@dataclass(frozen=True)
class SolvedLaw(StepLaw):
    """The law of a step from the first one on, and its solution in time."""

    @cached_property
    def system(self) -> LinearRecurrence | None:
        """The recurrence of the cross terms, and of |w|^2 where they require it; None if open."""
        if self.open_because or self.constant:
            return None
        required = self.unknowns
        unknowns = tuple(unknown for unknown in self.recursion if unknown in required)
        after = {W: self.law.rhs, **self.recursion}
        if not unknowns or any(after[unknown].has(W) for unknown in unknowns):
            unknowns = (W, *unknowns)
        return collect_recurrence(after, unknowns, frozenset(self.step.traced.symbols.values()))

    @cached_property
    def starts_alike(self) -> bool:
        """True if the first step follows the recursion too, with the products of the buffers 0."""
        if self.first is None:
            return True
        past = {product(*pair) for m in self.step.buffers for pair in ((m, "s"), ("w", m))}
        zero = dict.fromkeys(past, 0)
        pairs = [(self.kappa, self.first.kappa)]
        pairs += [(e, self.first.recursion.get(u, sp.nan)) for u, e in self.recursion.items()]
        return all(tidy(later.subs(zero) - first) == 0 for later, first in pairs)

    def closed_form(self, varying: tuple[str, ...] = ()) -> sp.Eq | None:
        """The cross term (or |w|^2, where there is none) at step t as a sum over earlier steps.

        None if there is no recurrence, if it has more than one unknown (z_t is then the sum of
        A^(t-1-k) b_k, see `system`), or if the first step is of another kind.

        Args:
            varying: names of the hyper-parameters that follow a schedule; `lr` becomes lr[k].
        """
        if self.system is None or not self.starts_alike:
            return None
        return self.system.closed_form(varying)

    def induction(self, varying: tuple[str, ...] = ()) -> dict[str, sp.Expr]:
        """Residuals of the proof of `closed_form` by induction over t; all 0 if it holds.

        Args:
            varying: as for `closed_form`.

        Raises:
            ValueError: there is no closed form.
        """
        if self.system is None or self.closed_form(varying) is None:
            why = self.open_because or "several unknowns, or another first step"
            raise ValueError(f"{self.name}: there is no closed form to prove: {why}")
        return self.system.induction(varying)
