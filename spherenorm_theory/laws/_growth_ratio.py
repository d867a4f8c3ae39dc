"""Growth ratios: the norm's growth relative to that of the steps by themselves."""

from __future__ import annotations

import contextlib
from typing import Any

import sympy as sp
from sympy.solvers.solveset import NonlinearError

from spherenorm import Recipe
from spherenorm_theory.algebra import Trace, normalize_signs, tidy
from spherenorm_theory.laws._norm_growth import NormGrowth, norm_growth
from spherenorm_theory.laws._quantities import S
from spherenorm_theory.laws._stationary import drop_transients, find_stationary_buffers


def growth_ratio(recipe: str | Recipe | Trace | NormGrowth, **given: Any) -> sp.Expr:
    """(|w'|^2 - (1 - kappa)^2 |w|^2) / |s|^2 after many steps, for random gradients of one size.

    The factor by which momentum multiplies the growth that the steps alone bring: 1 for a projected
    recipe, (1 + beta) / (1 - beta) for SGD with momentum (Corollary 2.3). It is one number where
    the recursion of <w, s> holds no norm but |s|^2. Coupled decay has none: it enters the momentum,
    <w, s> holds a multiple of |w|^2, and the ratio is a function of |w|^2 / |s|^2, both means.

    Args:
        recipe: as for `norm_growth`, or a law.
        given: hyper-parameters to hold at a value.

    Raises:
        NoEquilibriumError: the products of the buffers have no closed form.

    Example:
        >>> growth_ratio("sgd", weight_decay=0.0)
        (momentum + 1)/(1 - momentum)
    """
    law = recipe if isinstance(recipe, NormGrowth) else norm_growth(recipe, **given)
    if law.constant:
        return sp.Integer(0)
    if law.cross == 0:
        return sp.Integer(1)
    keep, cross = (drop_transients(e, law.step) for e in (1 - law.kappa, law.cross))
    at_rest, squared = _at_rest(law)
    return normalize_signs(sp.cancel(1 + 2 * keep * cross.subs(at_rest) / squared))


def _at_rest(law: NormGrowth) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The cross terms in the mean over many steps, and |s|^2.

    Their recursions give them where these hold no product but |s|^2; otherwise the products of the
    buffers are solved for too.
    """
    at_rest: dict[sp.Symbol, sp.Expr] = {}
    unknowns = sorted(law.unknowns, key=str)
    if unknowns and not law.open_because:
        equations = [tidy(drop_transients(law.recursion[u], law.step) - u) for u in unknowns]
        with contextlib.suppress(NonlinearError):
            for values in sp.linsolve(equations, unknowns):
                at_rest = dict(zip(unknowns, values, strict=True))
    symbols = (s for value in at_rest.values() for s in value.free_symbols)
    if not at_rest or any(str(s).endswith(",s>") for s in symbols):
        return find_stationary_buffers(law)
    return at_rest, S
