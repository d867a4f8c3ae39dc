"""The budget of symbolic work."""

import pytest
import sympy as sp

from theory.algebra import BudgetError, budget, tidy


def endless():
    with budget("mine", 0.1):
        while True:
            tidy(sp.Symbol("x") + 1)


def too_long(x):
    with budget("mine"):
        tidy(sp.Add(*(x**n for n in range(2000))))


def test_work_that_never_ends_is_interrupted():
    with pytest.raises(BudgetError, match=r"mine: no law within 0\.1 seconds; .* grew too large"):
        endless()


def test_a_formula_of_too_many_terms_is_refused():
    with pytest.raises(BudgetError, match=r"mine: a formula grew beyond 4000 terms: .* in x"):
        too_long(sp.Symbol("x"))


def test_work_within_the_budget_is_done():
    with budget("outer"), budget("inner", 0.0):
        assert tidy(sp.Symbol("x") - sp.Symbol("x")) == 0
