"""The paper's notation: symbols and atoms that the proofs share."""

from __future__ import annotations

from typing import Any

import sympy as sp

from spherenorm_theory.algebra import Vector
from spherenorm_theory.laws import W

__all__ = [
    "PLAIN",
    "G",
    "P",
    "Q",
    "W_t",
    "X_t",
    "beta",
    "beta1",
    "combination",
    "g",
    "indexed",
    "k",
    "l",
    "lr",
    "m",
    "rho",
    "scalar",
    "squared",
    "t",
    "w",
    "wd",
]

lr, beta, wd, rho, beta1 = (
    sp.Symbol(name, positive=True)
    for name in ("lr", "momentum", "weight_decay", "wd_ratio", "beta1")
)
t, k, l = sp.symbols("t k l", integer=True, nonnegative=True)  # noqa: E741
w, g, m = map(Vector.atom, "wgm")

PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""The paper's momentum has neither decay nor dampening."""


def squared(vector: str) -> sp.Symbol:
    """The squared norm of a vector, such as |p|^2."""
    return sp.Symbol(f"|{vector}|^2", positive=True)


def scalar(name: str) -> sp.Symbol:
    """A real number that a statement names."""
    return sp.Symbol(name, real=True)


def indexed(symbol: sp.Symbol) -> sp.IndexedBase:
    """The values of a symbol over time."""
    return sp.IndexedBase(symbol)


def combination(vector: Vector) -> sp.Expr:
    """A vector as an expression in its atoms, so that an equation of vectors is one of numbers."""
    return sp.Add(*(c * sp.Symbol(atom) for atom, c in vector.terms.items()))


P, Q, G = map(squared, "pqg")
W_t, X_t = indexed(W), indexed(sp.Symbol("<w,p>", real=True))
