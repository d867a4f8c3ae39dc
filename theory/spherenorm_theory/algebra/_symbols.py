"""Canonical forms of sympy expressions: numbers that are exact, zeros that are recognized.

| expression | form |
|---|---|
| `exact(1 - 0.9)` | `1/10` |
| `tidy(sin(x)**2 + cos(x)**2 - 1)` | `0` |
| `normalize_signs((x - 1) / (a - 1))` | `(1 - x)/(1 - a)` |
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import sympy as sp

from spherenorm_theory.algebra._budget import spend


def exact(number: float) -> sp.Expr:
    """The number that a float stands for: 0.1 is 1/10, math.pi is pi, math.sqrt(5) is sqrt(5).

    A number that Python has computed, such as 1 - 0.9 = 0.09999999999999998, carries a rounding
    error that cannot be undone for certain. It is read as the nearest fraction with a denominator
    of at most 10^6 (every decimal of up to six places is one) if the two agree to 1e-15 and to nine
    digits: 1/10 here. Any other number is its shortest decimal.
    """
    if isinstance(number, int):
        return sp.Integer(number)
    for candidate in (sp.pi, sp.sqrt(round(number**2)) if 0 < number < 1e6 else sp.Integer(0)):
        if float(candidate) == number:
            return candidate
    simple = Fraction(number).limit_denominator(10**6)
    if abs(simple - Fraction(number)) <= min(1e-15 * max(1.0, abs(number)), 1e-9 * abs(number)):
        return sp.Rational(simple.numerator, simple.denominator)
    return sp.Rational(str(number))


def tidy(expression: sp.Expr) -> sp.Expr:
    """A canonical form in which an expression that equals 0 is 0.

    Holds for rational functions of symbols, roots, sines and cosines. Sines and cosines of one
    angle are reduced modulo sin^2 + cos^2 = 1; the square of the sine of half an angle becomes
    (1 - cos) / 2.
    """
    spend(expression)
    return _tidy(expression)


@lru_cache(maxsize=8192)  # the same parts of formulas come again and again
def _tidy(expression: sp.Expr) -> sp.Expr:
    half_angles = [f for f in expression.atoms(sp.sin) if (2 * f.args[0]).is_Symbol]
    for sine in half_angles:
        square = (1 - sp.cos(2 * sine.args[0])) / 2
        expression = sp.expand(expression).subs(sine**2, square)
    functions = sorted(expression.atoms(sp.sin, sp.cos), key=str)
    if not functions:
        return sp.factor_terms(sp.cancel(expression))
    plain = {f: sp.Dummy() for f in functions}
    numerator, denominator = sp.fraction(sp.cancel(expression.subs(plain)))
    for angle in {f.args[0] for f in functions}:
        sine, cosine = plain.get(sp.sin(angle)), plain.get(sp.cos(angle))
        if sine is not None and cosine is not None:
            circle = sine**2 + cosine**2 - 1
            numerator = sp.rem(numerator, circle, sine)
            denominator = sp.rem(denominator, circle, sine)
    reduced = sp.factor_terms(sp.cancel(numerator / denominator))
    return reduced.subs({dummy: f for f, dummy in plain.items()})


def normalize_signs(expression: sp.Expr) -> sp.Expr:
    """The expression in factors, each with its positive term first: (1 - beta), not (beta - 1)."""
    spend(expression)
    return _normalize_signs(expression)


@lru_cache(maxsize=8192)
def _normalize_signs(expression: sp.Expr) -> sp.Expr:
    sign, factors = sp.Integer(1), []
    for factor in sp.Mul.make_args(sp.factor(expression)):
        base, power = factor.as_base_exp()
        if base.is_Add and power.is_integer and _leads_with_minus(base):
            base, sign = sp.Add(*(-term for term in base.args)), sign * (-1) ** power
        factors.append(base**power)
    return sign * sp.Mul(*factors)


def _leads_with_minus(total: sp.Add) -> bool:
    constant = total.as_coeff_Add()[0]
    return bool(constant < 0 or (constant == 0 and total.could_extract_minus_sign()))
