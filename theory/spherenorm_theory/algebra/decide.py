"""Decide whether an expression is zero: numbers refute it, sympy proves it.

| expression | decided by |
|---|---|
| a rational function, roots, sines | a canonical form |
| sums, such as `Sum(a[k], (k, 0, t)) - ...` | a common upper limit, summand by summand |
| `Limit(...)`, `Derivative(...)`, `Subs(...)` | its value |
| an integral from a number to the same number | 0 |
"""

from __future__ import annotations

import random

import sympy as sp

from spherenorm_theory.algebra.symbols import GrowthError, tidy

CALCULUS = (sp.Limit, sp.Derivative, sp.Subs)
INTEGRALS = (sp.Integral, sp.betainc_regularized)


def vanishes(expression: sp.Expr) -> bool:
    """True if the expression is shown to be 0; one that is too long for that is not.

    The probe is at random numbers in the domains of the symbols, so that it rules out most
    expressions other than 0 before sympy starts on them.
    """
    expression = _evaluate(sp.sympify(expression))
    if expression == 0:
        return True
    if _probe(expression):
        return False
    try:
        return _sums_vanish(expression) if expression.has(sp.Sum) else _is_zero(expression)
    except GrowthError:
        return False


def is_nonnegative(expression: sp.Expr) -> bool:
    """True if sympy sees that the expression, which may hold sums, is at least 0."""
    return bool(_signed_sums(expression).is_nonnegative)


def is_positive(expression: sp.Expr) -> bool:
    """True if sympy sees that the expression, which may hold sums, is positive."""
    return bool(_signed_sums(expression).is_positive)


def _signed_sums(expression: sp.Expr) -> sp.Expr:
    """The expression with each sum of nonnegative summands as a nonnegative symbol."""
    sums = {
        s: sp.Dummy(nonnegative=True) for s in expression.atoms(sp.Sum) if s.function.is_nonnegative
    }
    return expression.xreplace(sums)


def _evaluate(expression: sp.Expr) -> sp.Expr:
    """The expression with the values of its limits, derivatives, empty integrals, short sums."""
    if not expression.has(sp.Sum, *INTEGRALS, *CALCULUS):
        return expression
    return sp.sympify(expression.replace(_has_a_value, _value))


def _has_a_value(e: sp.Basic) -> bool:
    if isinstance(e, sp.Sum):
        return all(bound.is_Integer for bound in e.limits[0][1:])
    return isinstance(e, CALCULUS) or _is_empty(e)


def _is_empty(e: sp.Basic) -> bool:
    """True for an integral from a number to the same number."""
    if isinstance(e, sp.Integral):
        return bool(e.limits[0][1] == e.limits[0][2])
    return isinstance(e, sp.betainc_regularized) and bool(e.args[2] == e.args[3])


def _value(e: sp.Basic) -> sp.Basic:
    return sp.Integer(0) if _is_empty(e) else e.doit()


def _is_zero(expression: sp.Expr) -> bool:
    if not expression.has(sp.Function) and tidy(_with_whole_powers(expression)) == 0:
        return True
    return bool(sp.simplify(expression) == 0)


def _with_whole_powers(expression: sp.Expr) -> sp.Expr:
    """x^(t + 2) as x^2 times a symbol that stands for x^t, so that x alone is cancelled."""
    stands: dict[tuple[sp.Expr, sp.Expr], sp.Dummy] = {}
    powers = {}
    for power in expression.atoms(sp.Pow):
        number, rest = power.exp.as_coeff_Add()
        if rest.free_symbols and number.is_Integer:
            stand = stands.setdefault((power.base, rest), sp.Dummy(positive=True))
            powers[power] = power.base**number * stand
    return expression.xreplace(powers)


# Numbers


def _probe(expression: sp.Expr) -> bool:
    """True if the expression has a value other than 0 at random numbers."""
    numbers = random.Random(0)
    whole = sorted((s for s in expression.free_symbols if s.is_integer), key=str)
    value = expression.subs({s: numbers.randint(3, 6) for s in whole})
    value = value.replace(lambda e: isinstance(e, sp.Sum), _add_up)
    for kind in (sp.Indexed, sp.Symbol):
        # The numbers are below 1: a momentum and a cosine are, and powers stay small.
        atoms = value.atoms(sp.Indexed) if kind is sp.Indexed else value.free_symbols
        chosen = {a: sp.Rational(numbers.randint(100, 900), 997) for a in sorted(atoms, key=str)}
        value = value.xreplace(chosen)
    try:
        value = sp.N(value, 30)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return bool(value.is_number and value.is_finite and abs(value) > sp.Float("1e-15"))


def _add_up(total: sp.Sum) -> sp.Expr:
    """A sum between numbers, term by term."""
    variable, low, top = total.limits[0]
    if not (low.is_Integer and top.is_Integer and low <= top):
        return total.doit()
    return sp.Add(*(total.function.subs(variable, n) for n in range(int(low), int(top) + 1)))


# Sums


def _sums_vanish(expression: sp.Expr) -> bool:
    """True if a rational function of sums is 0, as sums of equal limits are summand by summand."""
    names = {s: sp.Dummy() for s in expression.atoms(sp.Sum)}
    numerator, _ = sp.fraction(sp.cancel(expression.xreplace(names)))
    polynomial = sp.Poly(numerator, *names.values())
    if polynomial.total_degree() > 1:
        return False
    rest, shares = polynomial.coeff_monomial(1), {}
    for total, name in names.items():
        shares[total] = polynomial.coeff_monomial(name)
    groups, extra = _by_limits(shares)
    return _is_zero(rest + extra) and all(_is_zero(summand) for summand in groups.values())


def _by_limits(shares: dict[sp.Sum, sp.Expr]) -> tuple[dict[tuple[sp.Expr, ...], sp.Expr], sp.Expr]:
    """Sums with shares as one summand for each pair of limits, and the terms split off.

    Sums whose upper limits differ by a number are cut at the lowest of them.
    """
    index, extra = sp.Dummy(integer=True), sp.Integer(0)
    groups: dict[tuple[sp.Expr, ...], sp.Expr] = {}
    tops = [total.limits[0][2] for total in shares]
    for total, share in shares.items():
        (variable, low, top), summand = total.limits[0], total.function
        distances = [sp.expand(top - other) for other in tops]
        over = max(int(n) for n in distances if n.is_Integer)
        for n in range(over):
            extra += share * summand.subs(variable, top - n)
        key = low, sp.expand(top - over)
        groups[key] = groups.get(key, 0) + share * summand.subs(variable, index)
    return groups, extra
