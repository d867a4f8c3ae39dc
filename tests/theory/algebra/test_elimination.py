"""Elimination, canonical forms, and the budget of symbolic work."""

import math

import pytest
import sympy as sp

from spherenorm_theory.algebra import (
    BudgetError,
    NoClosedFormError,
    budget,
    eliminate,
    exact,
    normalize_signs,
    tidy,
)
from tests.harness import refuses

a, x, y, z = sp.symbols("a x y z", positive=True)


def size(root):
    """At 1 for every symbol."""
    return abs(float(root.subs(dict.fromkeys(root.free_symbols, 1))))


def test_linear_equations():
    solution = eliminate([x + y - a, x - y], [x, y], size)
    assert {unknown: sp.simplify(value) for unknown, value in solution.items()} == {
        x: a / 2,
        y: a / 2,
    }


def test_of_two_roots_the_smaller_one_is_taken():
    solution = eliminate([(x - a) * (x - 3 * a), y - 2 * x], [x, y], size)
    assert solution == {x: a, y: 2 * a}


def test_the_wanted_unknowns_alone():
    assert eliminate([x + y - a, x - y], [x, y], size, wanted=[y]) == {y: a / 2}


@pytest.mark.parametrize(
    ("equations", "why"),
    [
        ([x**3 - x - a], "no closed form for x"),
        ([x - a, x - 2 * a], "an equation left over"),
        ([sp.exp(x) * y - a, x - sp.exp(y)], "are no polynomials"),
    ],
)
def test_no_closed_form(equations, why):
    unknowns = sorted({*sp.Tuple(*equations).free_symbols} - {a}, key=str)
    with pytest.raises(NoClosedFormError, match=why):
        eliminate(equations, unknowns, size)


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
