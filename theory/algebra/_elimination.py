"""Solve polynomial equations by eliminating one unknown after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import sympy as sp

from theory.algebra._symbols import normalize_signs

__all__ = ["NoClosedFormError", "eliminate"]

Solution = dict[sp.Symbol, sp.Expr]


class NoClosedFormError(ValueError):
    """Elimination finds no solution; the message gives the reason."""


def eliminate(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    size: Callable[[sp.Expr], float],
) -> Solution:
    """The values of the unknowns at which all of the expressions are 0.

    Each step takes an unknown from an equation in which it is linear. If none is left, it takes one
    from a quadratic equation that holds no other unknown, and of the two roots the smaller one.

    Args:
        equations: polynomials, or quotients of them, in the unknowns.
        unknowns: positive symbols, or real ones.
        size: the magnitude by which two roots are compared.

    Raises:
        NoClosedFormError: the equations are no polynomials, or an unknown is neither linear nor
            quadratic, or an equation is left over.
    """
    try:
        return _eliminate(equations, unknowns, size)
    except sp.PolynomialError as error:
        raise NoClosedFormError(
            "no closed form, its equations are no polynomials in the products"
        ) from error


def _eliminate(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    size: Callable[[sp.Expr], float],
) -> Solution:
    solution: Solution = {}
    left, open_equations = [*unknowns], _nonzero(map(_polynomial, equations))
    while left and open_equations:
        choice = _easiest(open_equations, left)
        if choice is None:
            break
        equation, unknown = choice
        roots = map(normalize_signs, sp.solve(equation, unknown))
        value = min(roots, key=size)
        solution = {x: normalize_signs(v.subs(unknown, value)) for x, v in solution.items()}
        solution[unknown] = value
        left.remove(unknown)
        others = (e for e in open_equations if e is not equation)
        open_equations = _nonzero(_polynomial(e.subs(unknown, value)) for e in others)
    if left or open_equations:
        lacking = ", ".join(map(str, left)) or "an equation left over"
        raise NoClosedFormError(f"no closed form for {lacking}")
    return solution


def _easiest(
    equations: list[sp.Expr], unknowns: list[sp.Symbol]
) -> tuple[sp.Expr, sp.Symbol] | None:
    """The equation to solve next, and the unknown to solve it for."""
    pairs = [(e, x) for e in equations for x in unknowns if e.has(x)]
    choices = [(e, x) for e, x in pairs if sp.degree(e, x) == 1]
    choices = choices or [
        (e, x) for e, x in pairs if e.free_symbols & {*unknowns} == {x} and sp.degree(e, x) == 2
    ]
    if not choices:
        return None
    return min(choices, key=lambda c: (len(c[0].free_symbols & {*unknowns}), sp.count_ops(c[0])))


def _polynomial(expression: sp.Expr) -> sp.Expr:
    """The numerator, without the powers of positive symbols that divide it."""
    numerator = sp.fraction(sp.cancel(expression))[0]
    factors = sp.Mul.make_args(sp.factor_terms(numerator))
    return sp.expand(sp.Mul(*(f for f in factors if not f.as_base_exp()[0].is_positive)))


def _nonzero(equations: Iterable[sp.Expr]) -> list[sp.Expr]:
    return [e for e in equations if e != 0]
