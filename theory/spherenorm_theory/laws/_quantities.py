"""The quantities that laws are about: squared norms, inner products, the time."""

from __future__ import annotations

import sympy as sp

W = sp.Symbol("|w|^2", positive=True)
"""The squared norm of the weight."""

W_NEXT = sp.Symbol("|w'|^2", positive=True)
"""The squared norm of the weight after the step."""

S = sp.Symbol("|s|^2", positive=True)
"""The squared norm of the drive s, the part of a step that is not decay."""

GAMMA = sp.Symbol("gamma", positive=True)
"""The norm of the gradient at |w| = 1: a scale-invariant function has |g| = gamma / |w|."""


def product(a: str, b: str) -> sp.Symbol:
    """The symbol <a,b>."""
    return sp.Symbol(f"<{a},{b}>", real=True)


def primed(product: sp.Symbol) -> sp.Symbol:
    """The symbol of an inner product after the step: <w',m'> for <w,m>."""
    return sp.Symbol(product.name.replace(",", "',").replace(">", "'>"))
