"""Vectors of which only inner products are known, and canonical forms of scalars.

| expression | meaning |
|---|---|
| `Inner("w", "m")`, `Norm("w")` | <w, m>, and the positive number \\|w\\| |
| `Vector({"w": 1, "g": -lr})` | w - lr g |
| `sp.Symbol("w")` | each entry of w: a symbol without assumptions stands for a vector |
| `exact(1 - 0.9)` | 1/10 |
| `canonical_form(sin(x)**2 + cos(x)**2 - 1)` | 0 |
| `normalize_signs((x - 1) / (a - 1))` | (1 - x)/(1 - a) |

Nothing is known of an atom such as w but its products with the others, so that a result that is
derived from them holds in every dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy as sp

MAX_OPS = 4000
"""Largest number of operations of an expression to simplify; the library's have some hundreds."""

MAX_READABLE_OPS = 1000
"""Largest number of operations of a formula of products that is written out for a reader."""

DIMENSION = sp.Symbol("d", positive=True)
"""The number of entries of a unit."""

t, k = sp.symbols("t k", integer=True, nonnegative=True)
"""The time of a step, and the times before it in sums over steps."""


class GrowthError(ValueError):
    """A formula grew beyond what can be simplified in reasonable time."""


class Norm(sp.Symbol):  # type: ignore[misc]  # sympy has no types
    """The norm of a vector, which is positive: the vectors of a generic step are not 0.

    Example:
        >>> Norm("w"), sp.sqrt(Norm("w") ** 2)
        (|w|, |w|)
    """

    def __new__(cls, a: str) -> Norm:
        self: Norm = super().__new__(cls, f"|{a}|", positive=True)
        self.a = a
        return self

    def __getnewargs_ex__(self) -> Any:
        return (self.a,), {}


class Inner(sp.Symbol):  # type: ignore[misc]
    """The inner product of two different vectors; the weight comes first, then the alphabet.

    Example:
        >>> Inner("m", "w") is Inner("w", "m")
        True
    """

    def __new__(cls, a: str, b: str) -> Inner:
        a, b = sorted((a, b), key=lambda name: (name.rstrip("'") != "w", name))
        self: Inner = super().__new__(cls, f"<{a},{b}>", real=True)
        self.a, self.b = a, b
        return self

    def __getnewargs_ex__(self) -> Any:
        return (self.a, self.b), {}


class StepValue(sp.Symbol):  # type: ignore[misc]
    """A number that each step decides anew: a branch of its code, or the value of a schedule.

    Example:
        >>> from spherenorm_theory import show
        >>> show(StepValue("lr", positive=True))
        'lr_t'
    """


class Indicator(StepValue):
    """A number that is 1 where a condition holds, and else 0, so that it is its own square.

    Example:
        >>> Indicator("c1") ** 2
        c1
    """

    def __new__(cls, name: str) -> Indicator:
        self: Indicator = super().__new__(cls, name, nonnegative=True)
        return self

    def __getnewargs_ex__(self) -> Any:
        return (self.name,), {}

    def _eval_power(self, exponent: sp.Expr) -> sp.Expr | None:
        return self if exponent.is_Integer and exponent > 0 else None


def product(a: str, b: str) -> sp.Expr:
    """Return <a, b>, which is the square of a norm if the two are one vector."""
    return Norm(a) ** 2 if a == b else Inner(a, b)


class Vector(dict[str, sp.Expr]):
    """A linear combination of atoms, `{atom: coefficient}`; coefficients of 0 are left out.

    Example:
        >>> w, g = Vector.atom("w"), Vector.atom("g")
        >>> (w * sp.Integer(2) - g).scaled(sp.Rational(1, 2))
        {'w': 1, 'g': -1/2}
    """

    @staticmethod
    def atom(name: str) -> Vector:
        """Return the vector that is one atom."""
        return Vector({name: sp.S.One})

    def __add__(self, other: Vector) -> Vector:
        sums = {a: self[a] + other[a] for a in {**self, **other}}
        return Vector({a: total for a, total in sums.items() if total != 0})

    def __sub__(self, other: Vector) -> Vector:
        return self + other.scaled(sp.S.NegativeOne)

    def __mul__(self, scalar: sp.Expr) -> Vector:
        return self.scaled(scalar)

    def __missing__(self, atom: str) -> sp.Expr:
        return sp.S.Zero

    def scaled(self, scalar: sp.Expr) -> Vector:
        """Return the vector times a number."""
        return Vector({a: c * scalar for a, c in self.items()} if scalar != 0 else {})

    def map(self, function: Callable[[sp.Expr], sp.Expr]) -> Vector:
        """Return the vector with `function` of every coefficient."""
        images = {a: function(c) for a, c in self.items()}
        return Vector({a: c for a, c in images.items() if c != 0})

    def without(self, *atoms: str) -> Vector:
        """Return the vector without some atoms."""
        return Vector({a: c for a, c in self.items() if a not in atoms})

    def ratio_to(self, divisor: Vector) -> sp.Expr | None:
        """Return c with self = c divisor; None if there is no such number."""
        if not divisor or self.keys() != divisor.keys():
            return None
        factors = {sp.cancel(self[a] / divisor[a]) for a in divisor}
        return factors.pop() if len(factors) == 1 else None

    @property
    def formula(self) -> sp.Expr:
        """Each entry in symbols, with the factor of all terms: -lr (u - w), but w - lr u."""
        coefficients = {a: _factor(c) for a, c in self.items()}
        is_single = len(coefficients) == 1
        common = sp.S.One if is_single else sp.gcd_list([*coefficients.values()])
        if not coefficients:
            common = sp.S.One
        parts = {a: extract_sign(_factor(c / common)) for a, c in coefficients.items()}
        signs = [x for a, (x, _) in parts.items() if a != "w" or common == 1 or is_single]
        leading_sign = -1 if all(sign < 0 for sign in signs) else 1
        terms = (leading_sign * sign * c * _entry(a) for a, (sign, c) in parts.items())
        return sp.Mul(leading_sign * common, sp.Add(*terms))


@lru_cache(maxsize=8192)  # each interpretation of a step has the same coefficients
def _factor(expression: sp.Expr) -> sp.Expr:
    return sp.factor(sp.cancel(expression))


def _entry(name: str) -> sp.Expr:
    return sp.S.One if name == "1" else sp.Symbol(name)


def is_entry(symbol: sp.Basic) -> bool:
    """Tell if a symbol stands for each entry of a vector: it has no assumptions."""
    return bool(symbol.is_Symbol and symbol.is_real is None)


def map_formulas(x: Any, function: Callable[[sp.Expr], sp.Expr]) -> Any:
    """Return words and formulas with `function` of each formula, in vectors and tuples too."""
    if isinstance(x, Vector):
        return x.map(function)
    if isinstance(x, sp.Rel):
        return x.func(*map(function, x.args), evaluate=False)
    if isinstance(x, tuple):
        return tuple(map_formulas(part, function) for part in x)
    return function(x) if isinstance(x, sp.Expr) else x


def at(expression: sp.Expr, time: sp.Expr) -> sp.Expr:
    """Return the expression with vectors, norms and inner products at a time: |w_t| for |w|."""
    symbols = sp.sympify(expression).free_symbols
    timed = [s for s in symbols if isinstance(s, (Norm, Inner)) or is_entry(s)]
    return sp.sympify(expression).xreplace({s: sp.IndexedBase(s)[time] for s in timed})


def exact(number: float) -> sp.Expr:
    """Return the number that a float stands for: 1/10 for 0.1, pi, sqrt(5) for math.sqrt(5).

    A number that Python has computed, such as 1 - 0.9 = 0.09999999999999998, carries a rounding
    error that cannot be undone for certain. It is read as the nearest fraction with a denominator
    of at most 10^6 (every decimal of up to six places is one) if the two agree to 1e-15 and to nine
    digits: 1/10 here. Any other number is its shortest decimal.
    """
    if isinstance(number, int):
        return sp.Integer(number)
    for candidate in (sp.pi, sp.sqrt(round(number**2)) if 0 < number < 1e6 else sp.S.Zero):
        if float(candidate) == number:
            return candidate
    nearest = Fraction(number).limit_denominator(10**6)
    tolerance = min(1e-15 * max(1.0, abs(number)), 1e-9 * abs(number))
    if abs(nearest - Fraction(number)) <= tolerance:
        return sp.Rational(nearest.numerator, nearest.denominator)
    return sp.Rational(str(number))


def check_size(expression: sp.Expr, max_ops: int = MAX_OPS) -> None:
    """Refuse a formula that is too long to simplify.

    Raises:
        GrowthError: it has more than `max_ops` operations, as where an iteration doubles it.
    """
    count = 0
    for node in sp.preorder_traversal(expression):
        count += max(len(node.args) - 1, 1)
        if count > max_ops:
            names = ", ".join(sorted(map(str, expression.free_symbols)))
            raise GrowthError(f"a formula grew beyond {max_ops} operations in {names}")


def canonical_form(expression: sp.Expr) -> sp.Expr:
    """Return the canonical form, which is 0 for an expression that equals 0.

    This is true of rational functions of symbols, roots, sines and cosines: those of one angle are
    reduced modulo sin^2 + cos^2 = 1, and the square of the sine of half an angle is (1 - cos) / 2.

    Raises:
        GrowthError: the expression is too long.
    """
    expression = sp.sympify(expression)
    check_size(expression)
    return _canonical_form(expression)


@lru_cache(maxsize=8192)  # the same parts of formulas come again and again
def _canonical_form(expression: sp.Expr) -> sp.Expr:
    angles = {f.args[0] for f in expression.atoms(sp.sin, sp.cos)}
    for sine in expression.atoms(sp.sin):
        if sp.cancel(2 * sine.args[0]) in angles:
            square = (1 - sp.cos(sp.cancel(2 * sine.args[0]))) / 2
            expression = sp.expand(expression).subs(sine**2, square)
    functions = sorted(expression.atoms(sp.sin, sp.cos), key=str)
    if not functions:
        return sp.factor_terms(sp.cancel(expression))
    dummies = {f: sp.Dummy() for f in functions}
    numerator, denominator = sp.fraction(sp.cancel(expression.xreplace(dummies)))
    for angle in {f.args[0] for f in functions}:
        sine, cosine = dummies.get(sp.sin(angle)), dummies.get(sp.cos(angle))
        if sine is not None and cosine is not None:
            circle = sine**2 + cosine**2 - 1
            numerator = sp.rem(numerator, circle, sine)
            denominator = sp.rem(denominator, circle, sine)
    reduced = sp.factor_terms(sp.cancel(numerator / denominator))
    return reduced.xreplace({dummy: f for f, dummy in dummies.items()})


@lru_cache(maxsize=8192)
def normalize_signs(expression: sp.Expr) -> sp.Expr:
    """Return the expression in factors with the positive term first: 1 - beta, not beta - 1."""
    check_size(expression)
    sign, factors = extract_sign(sp.factor(expression))
    return sign * sp.Mul(*sp.Mul.make_args(factors))


@lru_cache(maxsize=8192)
def shortest_form(expression: sp.Expr) -> sp.Expr:
    """Return the expression in factors, with sums as a number and a product where that is shorter.

    Example:
        >>> lr, wd, tau = sp.symbols("lr wd tau", positive=True)
        >>> print(normalize_signs(1 - lr * wd * (1 - tau)), shortest_form(1 - lr * wd * (1 - tau)))
        lr*tau*wd - lr*wd + 1 -lr*wd*(1 - tau) + 1
    """
    in_factors = normalize_signs(expression)

    def split_off_number(total: sp.Add) -> sp.Expr:
        number, terms = total.as_coeff_Add()
        sign, factors = extract_sign(sp.factor(terms))
        return number + sign * factors

    with_numbers = in_factors.replace(
        lambda x: x.is_Add and x.as_coeff_Add()[0] != 0, split_off_number
    )
    return min(in_factors, with_numbers, key=sp.count_ops)


def extract_sign(x: sp.Expr) -> tuple[int, sp.Expr]:
    """Return (sign, y) with x = sign y, and no factor of y that leads with a minus, like x - 1."""
    sign, factors = 1, []
    for factor in sp.Mul.make_args(x):
        base, power = factor.as_base_exp()
        negative = factor.is_Number and factor < 0
        if negative or (base.is_Add and power.is_odd and _leads_with_minus(base)):
            sign, base = -sign, -base
        elif base.is_Add and power.is_even and _leads_with_minus(base):
            base = -base
        factors.append(base**power)
    return sign, sp.Mul(*factors, evaluate=False) if len(factors) > 1 else factors[0]


def _leads_with_minus(total: sp.Add) -> bool:
    """Tell if a sum is like x - 1, whose usual form is 1 - x; for vectors, if all signs are -."""
    if any(map(is_entry, total.free_symbols)):
        return all(extract_sign(term)[0] < 0 for term in total.args)
    constant = total.as_coeff_Add()[0]
    return bool(constant < 0 or (constant == 0 and total.could_extract_minus_sign()))
