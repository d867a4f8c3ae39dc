"""The scalars of a reading: named parts of formulas, known signs, comparisons and their outcome.

Sympy does the arithmetic. A recorded step needs three things beside it:

*Comparisons* resolve by sympy where the domains of the symbols decide them. A squared norm is taken
as positive: the step is generic, so that no such norm happens to vanish, and the assumption is
recorded. So is one that a hyper-parameter is not 0. A comparison that neither decides (does the
clip act? is this step number 300?) stays open, and `where` gives a new symbol that stands for
either value.

*Roots* of compound expressions get names, and so do angles, so that sin^2 + cos^2 = 1 is applied to
a symbol.

*General position*: a scale-invariance test is a comparison that <w, g> = 0 would decide. Where
<w, g> is a general number, the test is taken to fail.
"""

from __future__ import annotations

import cmath
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import Interval
from spherenorm_theory.algebra._budget import require_size, spend
from spherenorm_theory.algebra._symbols import tidy
from spherenorm_theory.algebra._text import show

Condition = tuple[type[sp.Basic], sp.Expr, sp.Expr]
"""A relation and its two sides, which sympy must not decide."""

SHOWN = {sp.Gt: ">", sp.Lt: "<", sp.Ge: ">=", sp.Le: "<=", sp.Eq: "=", sp.Ne: "!="}
OPPOSITE = {sp.Gt: sp.Le, sp.Le: sp.Gt, sp.Lt: sp.Ge, sp.Ge: sp.Lt, sp.Eq: sp.Ne, sp.Ne: sp.Eq}
HALF = sp.Rational(1, 2)

LONG = 300
"""Nodes of an inner product beyond which it has a name. Those of the library have 240 at most."""


@dataclass
class Assumptions:
    """The names that were given to parts of formulas, the known signs, and the assumptions made.

    Attributes:
        definitions: the meaning of each name, in the order of the definitions.
        assumptions: the facts that were taken for granted, by their text.
        taken: the names of hyper-parameters and states, which no new name repeats.
        domains: the numbers that a hyper-parameter may be, by its symbol.
        scalars: the symbols of the states that are one number.
        general: <w, g>, where it is not 0.
        failed: the scale-invariance tests that were taken to fail.
        squares: squared norms, which are 0 only by chance.
        magnitudes: expressions that are at least 0.
        twins: for each hyper-parameter that may be 0, by a nonnegative symbol in its place.
    """

    definitions: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)
    assumptions: dict[str, Condition] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    domains: Mapping[sp.Symbol, Interval] = field(default_factory=dict)
    scalars: frozenset[sp.Symbol] = frozenset()
    general: sp.Symbol | None = None
    failed: list[sp.Rel] = field(default_factory=list)
    squares: set[sp.Expr] = field(default_factory=set)
    magnitudes: set[sp.Expr] = field(default_factory=set)
    twins: dict[sp.Symbol, sp.Symbol] = field(default_factory=dict)

    def assume(self, relation: type[sp.Basic], a: sp.Expr, b: sp.Expr, so: str = "") -> None:
        """Record once that a relation of two sides is assumed, and what follows from it in text."""
        text = f"{show(a)} {SHOWN[relation]} {show(b)}{so}"
        self.assumptions.setdefault(text, (relation, a, b))

    def free(self, letter: str, used: Collection[str], bare: bool = False) -> str:
        """A name that neither `used` nor `taken` holds: e, e2, e3 if `bare`, else e1, e2, e3."""
        names = (f"{letter}{n}" if n > 1 or not bare else letter for n in count(1))
        return next(name for name in names if name not in used and name not in self.taken)

    def name(self, letter: str, meaning: sp.Expr, **facts: bool) -> sp.Symbol:
        """A symbol that stands for `meaning`; the same meaning gives the same symbol."""
        for symbol, known in self.definitions.items():
            if known == meaning:
                return symbol
        symbol = sp.Symbol(self.free(letter, {s.name for s in self.definitions}), **facts)
        self.definitions[symbol] = meaning
        return symbol

    def expand(self, expression: sp.Expr, everything: bool = False) -> sp.Expr:
        """The expression in tidy form, with names replaced by their meanings.

        Only the names of angles are replaced, and only outside of sines and cosines; other names
        stay, as factors that a step happens to have. With `everything` all names are replaced but
        those of open cases.
        """
        functions = expression.atoms(sp.sin, sp.cos)
        angles = {symbol for f in functions for symbol in f.free_symbols}
        plain = {f: sp.Dummy() for f in functions}
        expression = expression.subs(plain)
        for symbol, meaning in reversed(self.definitions.items()):
            if (symbol in angles or everything) and not meaning.has(sp.Piecewise):
                expression = sp.expand(expression).subs(symbol, meaning)
        return tidy(expression.subs({dummy: f for f, dummy in plain.items()}))

    def spell_out(self, expression: sp.Expr) -> sp.Expr:
        """The expression with all names replaced by their meanings, as it stands."""
        for name, meaning in reversed(self.definitions.items()):
            if expression.has(name):
                expression = expression.subs(name, meaning)
        return expression

    def is_positive(self, expression: sp.Expr) -> bool:
        """Tell if the expression is above 0, or a squared norm."""
        if expression.is_positive or expression in self.squares:
            return True
        return expression.is_positive is None and self._has_positive_terms(expression)

    def is_nonnegative(self, *expressions: sp.Expr) -> bool:
        """Tell if all of the expressions are known to be at least 0."""
        return all(
            bool(e.is_nonnegative) or e in self.magnitudes or self.is_positive(e)
            for e in expressions
        )

    def _has_positive_terms(self, expression: sp.Expr) -> bool:
        """Tell if a rational function has positive terms alone, where momenta are 1 / (1 + x)."""
        momenta = {s for s in expression.free_symbols if _ends_at_one(self.domains.get(s))}
        if not momenta or not expression.is_rational_function():
            return False
        spend(expression)
        inside = {s: 1 / (1 + sp.Dummy(positive=True)) for s in momenta}
        parts = sp.fraction(sp.cancel(sp.together(expression.subs(inside))))
        terms = [term for part in parts for term in sp.Add.make_args(sp.expand(part))]
        return all(bool(term.is_positive) for term in terms)


def _ends_at_one(interval: Interval | None) -> bool:
    return interval is not None and (interval.low, interval.high) == (0, 1)


# Signs, roots and angles


def signed(facts: Assumptions, expression: sp.Expr, *parts: sp.Expr) -> sp.Expr:
    """A product, power or sum of nonnegative parts, remembered as such."""
    positive = all(map(facts.is_positive, parts))
    (facts.squares if positive else facts.magnitudes).add(expression)
    return expression


def multiply(facts: Assumptions, a: sp.Expr, b: sp.Expr) -> sp.Expr:
    """The product of two scalars, remembered as nonnegative where it is known to be."""
    product = a * b
    if a == b:
        facts.magnitudes.add(product)
        return product
    return signed(facts, product, a, b) if facts.is_nonnegative(a, b) else product


def root(facts: Assumptions, x: sp.Expr) -> sp.Expr:
    """The square root of x, by name unless x is a product of powers of symbols."""
    bases = (factor.as_base_exp()[0] for factor in sp.Mul.make_args(x))
    if all(base.is_Symbol or base.is_number for base in bases):
        return sp.sqrt(x)
    sign = "positive" if facts.is_positive(x) else "nonnegative"
    return facts.name("r", sp.sqrt(x), **{sign: True})


def shorten(facts: Assumptions, x: sp.Expr) -> sp.Expr:
    """`x` without the squares of named roots, where that is a number; a name for a long `x`.

    A formula that is fed into the next one, as by the steps of an iteration, stays short so.

    Raises:
        BudgetError: it is too long to walk through.
    """
    require_size(x)
    roots = {n**2: m**2 for n, m in facts.definitions.items() if m.is_Pow and m.exp == HALF}
    if x.has(*(power.base for power in roots)) and _seems_constant(plain := x.subs(roots)):
        x = sp.cancel(plain)
    if sum(1 for _ in islice(sp.preorder_traversal(x), LONG + 1)) <= LONG:
        return x
    return facts.name("q", x, **{"positive" if x in facts.squares else "real": True})


def _seems_constant(x: sp.Expr) -> bool:
    """Tell if a formula has one value at two points; most have not, and this is seen quickly."""
    symbols = sorted(x.free_symbols, key=str)
    function = sp.lambdify(symbols, x, "numpy", dummify=True, cse=True)
    points = ([complex(n + 0.0731 * i) for i in range(len(symbols))] for n in (0.3, 0.7))
    with np.errstate(all="ignore"):
        first, second = (complex(function(*point)) for point in points)
    return cmath.isfinite(first) and abs(first - second) <= 1e-9 * abs(first)


def angle(facts: Assumptions, x: sp.Expr) -> sp.Expr:
    """A name for the angle x, or a multiple of one."""
    factor, rest = x.as_coeff_Mul()
    sign = "positive" if facts.is_positive(rest) else "real"
    return factor * (rest if rest.is_Symbol else facts.name("theta", rest, **{sign: True}))


# Comparisons


def compare(facts: Assumptions, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
    """True, False, or the open relation."""
    result = _decide(facts, relation, a, b)
    if result in (sp.true, sp.false):
        return result
    at_zero = bool({*result.free_symbols} & {*facts.twins})
    if b == 0 and a in facts.squares and not at_zero and relation in (sp.Gt, sp.Ne, sp.Eq):
        facts.assume(sp.Gt, tidy(a), b)
        return sp.true if relation is not sp.Eq else sp.false
    a, b = tidy(a), tidy(b)
    result = _decide(facts, relation, a, b)
    if result in (sp.true, sp.false):
        return result
    if _is_scale_invariance_test(facts, result):
        facts.assume(OPPOSITE[relation], a, b, ", so that no projection acts")
        facts.failed.append(result)
        return sp.false
    if relation in (sp.Eq, sp.Ne) and not at_zero and not _is_of_time(facts, a - b):
        facts.assume(sp.Ne, a, b)
        return sp.false if relation is sp.Eq else sp.true
    return result


def _decide(facts: Assumptions, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
    """The relation as sympy decides it; undecided where a hyper-parameter of 0 could change that.

    The undecided relation holds the twins of hyper-parameters, until `settle` decides it.
    """
    result = relation(a, b)
    careful = relation(*(at_zero(facts, x) for x in (a, b)))
    return result if careful == result or result not in (sp.true, sp.false) else careful


def _is_scale_invariance_test(facts: Assumptions, relation: sp.Rel) -> bool:
    if facts.general is None or facts.general not in relation.free_symbols:
        return False
    return bool(relation.subs(facts.general, 0) == sp.true)


def _is_of_time(facts: Assumptions, x: sp.Expr) -> bool:
    """True for a function of counters and hyper-parameters, which meets a number now and then.

    One of vectors, or of hyper-parameters alone, does so by chance or by choice only.
    """
    return bool(x.free_symbols & facts.scalars) and not (
        x.free_symbols - facts.scalars - facts.domains.keys()
    )


def where(facts: Assumptions, condition: sp.Basic, a: sp.Expr, b: sp.Expr) -> sp.Expr:
    """One of a and b where the condition is decided, else a symbol that stands for either."""
    condition = settle(facts, condition, a, b)
    if condition == sp.true or a == b:
        return a
    if condition == sp.false:
        return b
    sign = "real"
    if facts.is_positive(a) and facts.is_positive(b):
        sign = "positive"
    elif facts.is_nonnegative(a, b):
        sign = "nonnegative"
    return facts.name("c", sp.Piecewise((a, condition), (b, True)), **{sign: True})


# Comparisons that a hyper-parameter of 0 decides otherwise than all its other values


def settle(facts: Assumptions, condition: sp.Basic, a: Any, b: Any) -> sp.Basic:
    """The condition for a choice of a or b, decided as if no hyper-parameter were 0.

    If the choice would be another one at 0, the law assumes that it is not 0.
    """
    twins = {x: facts.twins[x] for x in condition.free_symbols if x in facts.twins}
    settled = condition.subs(twins)
    if not twins or _alike_at_zero(twins, condition, a, b):
        return settled
    for relation in sorted(condition.atoms(sp.Rel), key=str):
        inside = relation.subs(twins)
        if inside in (sp.true, sp.false) and inside != relation:
            kind = relation.func if inside == sp.true else OPPOSITE[relation.func]
            facts.assume(kind, *(side.subs(twins) for side in relation.args))
    return settled


def _alike_at_zero(
    twins: Mapping[sp.Symbol, sp.Symbol], condition: sp.Basic, a: Any, b: Any
) -> bool:
    """Tell if a and b are equal where x = 0, for a condition that compares x with 0."""
    if not isinstance(condition, sp.Rel) or 0 not in condition.args:
        return False
    (x,) = (side for side in condition.args if side != 0)
    numerator = sp.fraction(sp.cancel(x))[0]
    zeros = [twin for twin in twins if numerator.subs(twin, 0) == 0]
    rest = numerator / sp.Mul(*zeros)
    if not zeros or rest.is_nonzero is not True:
        return False
    difference = a - b
    terms = [difference] if isinstance(difference, sp.Expr) else difference.terms.values()
    return all(tidy(term.subs(twins[zero], 0)) == 0 for zero in zeros for term in terms)


def at_zero(facts: Assumptions, x: sp.Expr) -> sp.Expr:
    """`x` with a twin, a nonnegative symbol, for each positive one whose interval holds 0."""
    may = [s for s in x.free_symbols if s in facts.domains and 0 in facts.domains[s]]
    twins = {s: sp.Symbol(s.name, nonnegative=True) for s in may if s.is_positive}
    facts.twins.update({twin: s for s, twin in twins.items()})
    return x.xreplace(twins)
