"""Canonical forms, and the budget of symbolic work."""

import math

import pytest
import sympy as sp

from spherenorm_theory.algebra import BudgetError, budget, exact, normalize_signs, tidy
from tests.harness import refuses


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


def endless(x):
    with budget("mine", 10_000):
        while True:
            tidy(x + 1)


def too_long(x):
    with budget("mine"):
        tidy(sp.Add(*(x**n for n in range(2000))))


@pytest.mark.parametrize(
    ("work", "named"), [(endless, ["mine", "in x"]), (too_long, ["mine", 4000, "in x"])]
)
def test_work_that_never_ends_is_refused(work, named):
    with refuses(*named, by=BudgetError):
        work(sp.Symbol("x"))


def test_a_formula_that_is_short_until_it_is_multiplied_out_is_refused():
    a, b, c = sp.symbols("a b c")
    shares = [(a + b + n) / (a + c + n) for n in range(1, 7)]
    with refuses(20000, "in a, b, c", by=BudgetError), budget("m"):
        tidy(sp.Add(*shares) ** 9)
    assert tidy((a + 1) ** 200 / (a + 1) ** 199) == a + 1


def test_work_within_the_budget_is_done():
    with budget("outer"), budget("inner", 0):
        assert tidy(sp.Symbol("x") - sp.Symbol("x")) == 0
