"""Inner products rewritten: one vector takes the place of the gradient that it was made of.

Lemma 2.2 reads best in the momentum p = beta m + g, and a law of norm growth in the step s, rather
than in the gradient g.
"""

from __future__ import annotations

import sympy as sp

from spherenorm_theory.algebra import Space, Vector
from spherenorm_theory.laws._one_step import OneStep
from spherenorm_theory.laws._quantities import product

__all__ = ["express_inner"]


def express_inner(step: OneStep, vector: Vector, letter: str, a: Vector, b: Vector) -> sp.Expr:
    """<a, b>, with `vector` substituted for its newest atom.

    The newest atom is the gradient, or the vector that a preconditioner made of it: neither the
    weight nor a state. |letter|^2 and each <m, letter> are new symbols. Vectors are substituted,
    not scalars, so that the result holds for coefficients of any kind.

    Args:
        step: the step that the vectors belong to.
        vector: such as the drive s of the step.
        letter: the name of `vector` in the result.
        a, b: the vectors of the inner product.
    """
    fresh = [atom for atom in vector.terms if atom != "w" and atom not in step.states]
    if len(fresh) != 1:
        return step.inner(a, b)
    (newest,) = fresh
    w = Vector.atom("w")
    space = Space({**step.algebra.space.known, ("w", letter): step.inner(w, vector)})
    for m in step.buffers:
        inner = step.inner(Vector.atom(m), vector)
        holds_newest = bool(inner.free_symbols & space.gram(m, newest).free_symbols)
        space.known[m, letter] = product(m, letter) if holds_newest else inner
    rest = Vector.atom(letter) - vector.without(newest)

    def substitute(x: Vector) -> Vector:
        share: sp.Expr = x[newest] / vector[newest]
        return x.without(newest) + rest.__mul__(share)

    return step.algebra.expand(space.inner(substitute(a), substitute(b)))
