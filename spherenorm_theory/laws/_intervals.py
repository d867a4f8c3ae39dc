"""Bounds of the cross term of a law that stays open."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import sympy as sp

from spherenorm_theory.algebra import DIMENSION, show
from spherenorm_theory.laws._quantities import S, W
from spherenorm_theory.laws._step_law import StepLaw

__all__ = ["bound_of_cross", "bound_of_drive", "write_interval"]

ONE = (np.sign, np.tanh)
"""Entrywise operations of which every entry is at most 1."""


def bound_of_cross() -> sp.Expr:
    """The number c with -c <= <w, s> <= c: |w| |s|, by the inequality of Cauchy and Schwarz."""
    return sp.sqrt(W) * sp.sqrt(S)


def bound_of_drive(law: StepLaw) -> sp.Expr | None:
    """A number that |s| never exceeds, where every vector of the drive has one; else None."""
    bounds = []
    for atom, coefficient in law.drive.terms.items():
        entry = _bound_of_entry(law, atom)
        fixed = coefficient.free_symbols <= {*law.step.traced.symbols.values()}
        if entry is None or not fixed:
            return None
        bounds.append(sp.Abs(coefficient) * entry * sp.sqrt(DIMENSION))
    return sp.Add(*bounds) if bounds else None


def _bound_of_entry(law: StepLaw, atom: str) -> sp.Expr | None:
    if atom not in law.step.algebra.meanings:
        return None
    function, arguments = law.step.algebra.meanings[atom]
    if function in ONE:
        return sp.Integer(1)
    ends = arguments[1:]
    if function is np.clip and all(isinstance(end, sp.Expr) for end in ends):
        return sp.Max(*map(sp.Abs, ends))
    return None


def write_interval(law: StepLaw) -> Iterator[str]:
    """The bounds that an open law still gives, in text."""
    keep = show(1 - law.kappa)
    yield "-|w| |s| <= <w,s> <= |w| |s|"
    yield f"| |{keep}| |w| - |s| | <= |w'| <= |{keep}| |w| + |s|"
    bound = bound_of_drive(law)
    if bound is not None:
        yield f"|s| <= {show(bound)}"
