"""Scalar arithmetic of the algebras: sympy expressions, decided comparisons, named values."""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy as sp

from spherenorm_theory.algebra._naming import Condition
from spherenorm_theory.algebra._symbols import tidy
from spherenorm_theory.algebra._zeros import OPPOSITE, Zeros

__all__ = ["Condition", "Scalars"]


@dataclass
class Scalars(Zeros):
    """Sympy scalars, and three things that a recorded step needs beside arithmetic.

    *Comparisons* resolve by sympy where the domains of the symbols decide them. A squared norm is
    taken as positive: the step is generic, so that no such norm happens to vanish, and the
    assumption is recorded. So is one that a hyper-parameter is not 0. A comparison that neither
    decides (does the clip act? is this step number 300?) stays open, and `where` gives a new symbol
    that stands for either value.

    *Roots* of compound expressions get names, and so do angles, so that sin^2 + cos^2 = 1 is
    applied to a symbol.

    *General position*: a scale-invariance test is a comparison that <w, g> = 0 would decide. Where
    <w, g> is a general number, the test is taken to fail.

    Attributes:
        general: <w, g>, where it is not 0.
        failed: the tests that were taken to fail.
    """

    general: sp.Symbol | None = None
    failed: list[sp.Rel] = field(default_factory=list)

    def compare(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        """True, False, or the open relation."""
        result = self._decide(relation, a, b)
        if result in (sp.true, sp.false):
            return result
        at_zero = bool({*result.free_symbols} & {*self._twins})
        if b == 0 and a in self._squares and not at_zero and relation in (sp.Gt, sp.Ne, sp.Eq):
            self.assume(sp.Gt, tidy(a), b)
            return sp.true if relation is not sp.Eq else sp.false
        a, b = tidy(a), tidy(b)
        result = self._decide(relation, a, b)
        if result in (sp.true, sp.false):
            return result
        if self._is_scale_invariance_test(result):
            self.assume(OPPOSITE[relation], a, b, ", so that no projection acts")
            self.failed.append(result)
            return sp.false
        if relation in (sp.Eq, sp.Ne) and not at_zero and not self._is_of_time(a - b):
            self.assume(sp.Ne, a, b)
            return sp.false if relation is sp.Eq else sp.true
        return result

    def _decide(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        """The relation as sympy decides it, unless a hyper-parameter of 0 decides it otherwise.

        That one holds symbols that may be 0, until `settle` decides it.
        """
        result = relation(a, b)
        careful = relation(*map(self.at_zero, (a, b)))
        return result if careful == result or result not in (sp.true, sp.false) else careful

    def _is_scale_invariance_test(self, relation: sp.Rel) -> bool:
        if self.general is None or self.general not in relation.free_symbols:
            return False
        return bool(relation.subs(self.general, 0) == sp.true)

    def _is_of_time(self, x: sp.Expr) -> bool:
        """True for a function of counters and hyper-parameters, which meets a number now and then.

        One of vectors, or of hyper-parameters alone, does so by chance or by choice only.
        """
        return bool(x.free_symbols & self.scalars) and not (
            x.free_symbols - self.scalars - self.domains.keys()
        )

    def where(self, condition: sp.Basic, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        """One of a and b where the condition is decided, else a symbol that stands for either."""
        condition = self.settle(condition, a, b)
        if condition == sp.true or a == b:
            return a
        if condition == sp.false:
            return b
        facts = {"real": True}
        if self.is_positive(a) and self.is_positive(b):
            facts = {"positive": True}
        elif self.is_nonnegative(a, b):
            facts = {"nonnegative": True}
        return self.name("c", sp.Piecewise((a, condition), (b, True)), **facts)
