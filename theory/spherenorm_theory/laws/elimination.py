"""Solve polynomial equations by eliminating one unknown after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy as sp

from spherenorm_theory.algebra import GrowthError, normalize_signs

Solution = dict[sp.Symbol, sp.Expr]
MOST_TERMS = 300
"""The terms of an equation beyond which a closed form is given up: nobody would read it.

Those of the library have at most 65."""


def eliminate(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    choose: Callable[[list[sp.Expr]], sp.Expr],
    wanted: Sequence[sp.Symbol],
) -> Solution:
    """The values of some unknowns at which all of the expressions are 0.

    Each step takes an unknown from an equation in which it is linear. If none is left, it takes one
    from a quadratic equation that holds no other unknown.

    Args:
        equations: polynomials, or quotients of them, in the unknowns.
        unknowns: positive symbols, or real ones.
        choose: takes one of two roots.
        wanted: the unknowns whose values are asked for; they are eliminated last.

    Raises:
        GrowthError: an unknown is neither linear nor quadratic, an equation is left over, or one
            has grown too long.
        PolynomialError: the equations are no polynomials.
    """
    found: Solution = {}  # each in terms of those after it
    left, open_equations = [*unknowns], _nonzero(map(_polynomial, equations))
    while left and open_equations:
        linear, open_equations = _take_linear(open_equations, left, wanted)
        found |= linear
        left = [x for x in left if x not in found]
        choice = _find_quadratic(open_equations, left)
        if choice is None:
            break
        equation, unknown = choice
        roots = [*map(normalize_signs, sp.roots(sp.Poly(equation, unknown)))]
        value = found[unknown] = choose(roots) if len(roots) > 1 else roots[0]
        left.remove(unknown)
        others = (e for e in open_equations if e is not equation)
        open_equations = _nonzero(_polynomial(e.subs(unknown, value)) for e in others)
    if left or open_equations:
        raise GrowthError("its equations leave an unknown or an equation over")
    return _values(found, wanted)


def _values(found: Solution, wanted: Sequence[sp.Symbol]) -> Solution:
    """The values of unknowns that are each in terms of those after it."""
    needed = {*wanted}
    for unknown, value in found.items():
        if unknown in needed:
            needed |= value.free_symbols & found.keys()
    values: Solution = {}
    for unknown in [x for x in reversed(found) if x in needed]:
        values[unknown] = normalize_signs(found[unknown].subs(values))
    return {unknown: values[unknown] for unknown in wanted}


def _take_linear(
    equations: list[sp.Expr], unknowns: list[sp.Symbol], wanted: Sequence[sp.Symbol]
) -> tuple[Solution, list[sp.Expr]]:
    """Unknowns that are linear in an equation, in terms of those after them; the equations left.

    The equations are polynomials in a ring, whose common factors are divided out in each step:
    those of formulas are far slower, and grow.
    """
    ring, polynomials = sp.sring(equations, *unknowns)
    generators = dict(zip(unknowns, ring.gens, strict=True))
    taken: dict[sp.Symbol, Any] = {}
    while choice := _easiest(polynomials, generators, taken, wanted):
        equation, unknown = choice
        x = generators[unknown]

        def replaced(e: Any, x: Any = x, by: Any = equation) -> Any:
            return _primitive(_without(e, x, *(by.coeff_wrt(x, n) for n in (1, 0))), generators)

        polynomials = [r for e in polynomials if e is not equation and (r := replaced(e))]
        taken |= {known: replaced(e) for known, e in taken.items() if known in wanted}
        taken[unknown] = equation
    found: Solution = {}
    for unknown, equation in taken.items():
        slope, constant = (equation.coeff_wrt(generators[unknown], n) for n in (1, 0))
        found[unknown] = -constant.as_expr() / slope.as_expr()
    return found, [e.as_expr() for e in polynomials]


def _without(equation: Any, x: Any, slope: Any, constant: Any) -> Any:
    """A polynomial with x = -constant / slope, times a power of the slope."""
    degree = max(equation.degree(x), 0)
    if not degree:
        return equation
    shares = [equation.coeff_wrt(x, n) for n in range(degree + 1)]
    total, common = shares[-1], shares[-1].gcd(slope)
    total, power = total.exquo(common), slope.exquo(common)
    for share in reversed(shares[:-1]):
        total, power = share * power - total * constant, power * slope
    while total and not (common := total.gcd(slope)).is_ground:
        total = total.exquo(common)
    return total


def _primitive(equation: Any, generators: dict[sp.Symbol, Any]) -> Any:
    """A polynomial without the factors of all its coefficients, and positive unknowns."""
    if not equation:
        return equation
    _, equation = equation.primitive()
    for n, (unknown, x) in enumerate(generators.items()):
        if unknown.is_positive:
            equation = equation.exquo(x ** min(powers[n] for powers in equation.monoms()))
    if sum(map(_count, equation.values())) > MOST_TERMS:
        raise GrowthError("an equation of its stationary point has grown too long")
    return equation


def _count(coefficient: Any) -> int:
    """The number of terms of an element of a ring, 1 for a number."""
    return len(coefficient) if hasattr(coefficient, "terms") else 1


def _easiest(
    equations: list[Any],
    generators: dict[sp.Symbol, Any],
    found: Solution,
    wanted: Sequence[sp.Symbol],
) -> tuple[Any, sp.Symbol] | None:
    """The equation to solve next, and the unknown to solve it for; the wanted ones come last."""
    choices = []
    for n, equation in enumerate(equations):
        for unknown, x in generators.items():
            if unknown not in found and equation.degree(x) == 1:
                slope = equation.coeff_wrt(x, 1)
                cost = (unknown in wanted, not slope.is_ground, len(equation))
                length = sum(map(_count, slope.values()))
                choices.append((*cost, length, n, str(unknown), equation, unknown))
    return min(choices, key=lambda choice: choice[:6])[6:] if choices else None


def _find_quadratic(
    equations: list[sp.Expr], unknowns: list[sp.Symbol]
) -> tuple[sp.Expr, sp.Symbol] | None:
    """The shortest quadratic equation of one unknown."""
    choices = [
        (e, x)
        for e in equations
        for x in unknowns
        if e.free_symbols & {*unknowns} == {x} and sp.degree(e, x) == 2
    ]
    return min(choices, key=lambda choice: sp.count_ops(choice[0])) if choices else None


def _polynomial(expression: sp.Expr) -> sp.Expr:
    """The numerator, without the powers of positive symbols that divide it."""
    numerator = sp.fraction(sp.cancel(expression))[0]
    factors = sp.Mul.make_args(sp.factor_terms(numerator))
    return sp.expand(sp.Mul(*(f for f in factors if not f.as_base_exp()[0].is_positive)))


def _nonzero(equations: Iterable[sp.Expr]) -> list[sp.Expr]:
    return [e for e in equations if e != 0]
