"""Elimination, on equations with known solutions."""

import pytest
import sympy as sp

from spherenorm_theory.algebra import NoClosedFormError, eliminate

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
