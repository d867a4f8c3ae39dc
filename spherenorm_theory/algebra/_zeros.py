"""Comparisons that a hyper-parameter of 0 decides otherwise than all its other values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from spherenorm_theory.algebra._signs import Signs
from spherenorm_theory.algebra._symbols import tidy

__all__ = ["OPPOSITE", "Zeros"]

OPPOSITE = {sp.Gt: sp.Le, sp.Le: sp.Gt, sp.Lt: sp.Ge, sp.Ge: sp.Lt, sp.Eq: sp.Ne, sp.Ne: sp.Eq}


@dataclass
class Zeros(Signs):
    """Hyper-parameters that may be 0: each has a twin, a symbol that may be 0."""

    _twins: dict[sp.Symbol, sp.Symbol] = field(default_factory=dict)

    def settle(self, condition: sp.Basic, a: Any, b: Any) -> sp.Basic:
        """The condition for a choice of a or b, decided where no hyper-parameter is 0.

        If the choice at 0 is another one, this is an assumption.
        """
        twins = {x: self._twins[x] for x in condition.free_symbols if x in self._twins}
        settled = condition.subs(twins)
        if not twins or self._alike_at_zero(twins, condition, a, b):
            return settled
        for relation in sorted(condition.atoms(sp.Rel), key=str):
            inside = relation.subs(twins)
            if inside in (sp.true, sp.false) and inside != relation:
                kind = relation.func if inside == sp.true else OPPOSITE[relation.func]
                self.assume(kind, *(side.subs(twins) for side in relation.args))
        return settled

    def _alike_at_zero(
        self, twins: Mapping[sp.Symbol, sp.Symbol], condition: sp.Basic, a: Any, b: Any
    ) -> bool:
        """Tell if a and b are one wherever a condition x = 0 or x > 0 depends on x being 0."""
        if not isinstance(condition, sp.Rel) or 0 not in condition.args:
            return False
        (x,) = (side for side in condition.args if side != 0)
        numerator = sp.fraction(sp.cancel(x))[0]
        zeros = [twin for twin in twins if numerator.subs(twin, 0) == 0]
        rest = numerator / sp.Mul(*zeros)
        if not zeros or rest.is_nonzero is not True:
            return False
        difference = a - b
        terms = [difference] if isinstance(difference, sp.Expr) else difference.terms.values()
        return all(tidy(term.subs(twins[zero], 0)) == 0 for zero in zeros for term in terms)

    def at_zero(self, x: sp.Expr) -> sp.Expr:
        """`x` with symbols that may be 0, the twins, in place of the hyper-parameters that may."""
        may = [s for s in x.free_symbols if s in self.domains and 0 in self.domains[s]]
        twins = {s: sp.Symbol(s.name, nonnegative=True) for s in may if s.is_positive}
        self._twins.update({twin: s for s, twin in twins.items()})
        return x.xreplace(twins)
