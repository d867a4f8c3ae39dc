"""Canonical forms: exact numbers, zeros, signs."""

import math

import pytest
import sympy as sp

from spherenorm_theory.algebra import exact, normalize_signs, tidy


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.1, sp.Rational(1, 10)),
        (2, 2),
        (3.0, 3),
        (5**0.5, sp.sqrt(5)),
        (math.pi, sp.pi),
        (1 - 0.9, sp.Rational(1, 10)),
        (1 - 0.9999, sp.Rational(1, 10_000)),
        (-1 / 3, -sp.Rational(1, 3)),
        (1e-8, sp.Rational(1, 10**8)),
        (1.5e-17, sp.Rational(15, 10**18)),
        (0.123456789012, sp.Rational(123456789012, 10**12)),
    ],
)
def test_literals_are_exact(number, value):
    assert exact(number) == value


def test_forms():
    x, a = sp.symbols("x a", positive=True)
    assert tidy(sp.cos(a) ** 2 + sp.sin(a) ** 2 - 1) == 0
    assert tidy(2 * sp.sin(a / 2) ** 2 + sp.cos(a) - 1) == 0
    assert tidy(sp.cos(a) ** 2 - sp.sin(a) ** 2) != 0
    assert str(normalize_signs((x - 1) / (a - 1))) == "(1 - x)/(1 - a)"
