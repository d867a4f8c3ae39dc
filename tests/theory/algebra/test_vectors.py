"""Formal vectors and their Gram table."""

import sympy as sp

from spherenorm_theory.algebra import Space, Vector


def test_space():
    space = Space({("w", "g"): sp.Integer(0)})
    w, g = Vector.atom("w"), Vector.atom("g")
    assert space.inner(w + g, w - g) == space.gram("w", "w") - space.gram("g", "g")
    assert space.gram("m", "w") == space.gram("w", "m")
    assert (w - w).terms == {}
    assert str(w * sp.Integer(2) - g) == "2*w - g"
