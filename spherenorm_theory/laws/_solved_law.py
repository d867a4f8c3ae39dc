"""A law of a step and its solution in time: the recurrence of the cross terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import sympy as sp

from spherenorm_theory.algebra import tidy
from spherenorm_theory.laws._quantities import W, product
from spherenorm_theory.laws._recurrence import LinearRecurrence, collect_recurrence
from spherenorm_theory.laws._step_law import StepLaw


@dataclass(frozen=True)
class SolvedLaw(StepLaw):
    """The law of a step from the first one on.

    Attributes:
        first: the law of the first step, from the state that `init` returns. It may differ from
            the later ones, as torch.optim's dampening does.
    """

    first: StepLaw | None = None

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
