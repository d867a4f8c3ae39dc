"""The scalars of a reading: comparisons, their outcome, and what a law assumes by them.

Sympy does the arithmetic. A comparison is decided

1. by the domains of the symbols. Norms are positive and hyper-parameters lie in open intervals; 0
   is structure. A norm that a decision rests on is among the hypotheses.
2. as a hypothesis, where the sides would be equal by chance alone, or where all numbers tried give
   a sum the same sign.
3. not at all (does the clip act? is this step number 300?): `where` gives a new symbol for either.

A scale-invariance test is one that <w, g> = 0 would decide. Where <w, g> is a general number, the
test is taken to fail.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy as sp

from spherenorm import Interval
from spherenorm_theory.symbols import Norm, canonical_form, check_size

OPPOSITE = {sp.Gt: sp.Le, sp.Le: sp.Gt, sp.Lt: sp.Ge, sp.Ge: sp.Lt, sp.Eq: sp.Ne, sp.Ne: sp.Eq}
TRIES = 60
"""Points at which the sign of an expression is tried."""


@dataclass
class Facts:
    """The scalars of a reading: facts that are known, and hypotheses.

    Attributes:
        domains: the numbers that a hyper-parameter may be, by its symbol.
        scalars: the symbols of the states that are one number.
        general: <w, g>, where it is not 0.
        other_names: names of vectors, which no symbol of a case repeats.
        hypotheses: the relations that were taken for granted, each with what follows, in text.
        failed: the scale-invariance tests that were taken to fail.
        cases: the meaning of each symbol that stands for an undecided choice.
    """

    domains: Mapping[sp.Symbol, Interval] = field(default_factory=dict)
    scalars: frozenset[sp.Symbol] = frozenset()
    wg_symbol: sp.Symbol | None = None
    other_names: frozenset[str] = frozenset()
    hypotheses: dict[sp.Rel, str] = field(default_factory=dict)
    tests_assumed_false: list[sp.Rel] = field(default_factory=list)
    open_branches: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)

    def add_hypothesis(
        self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr, consequence: str = ""
    ) -> None:
        """Note a hypothesis."""
        self.hypotheses.setdefault(relation(a, b, evaluate=False), consequence)

    def assume_nonzero_norms(self, *expressions: sp.Expr) -> None:
        """Note that the norms in some expressions are not 0."""
        for expression in expressions:
            for norm in sorted(sp.sympify(expression).atoms(Norm), key=str):
                self.add_hypothesis(sp.Gt, norm, sp.S.Zero)

    def is_positive(self, x: sp.Expr) -> bool:
        """Tell if a scalar is known to be above 0."""
        return bool(x.is_positive) or (x.is_positive is None and self._has_positive_terms(x))

    def is_nonnegative(self, x: sp.Expr) -> bool:
        """Tell if a scalar is known to be at least 0."""
        return bool(x.is_nonnegative) or self.is_positive(x)

    def is_share(self, symbol: sp.Basic) -> bool:
        """Tell if a symbol is of a hyper-parameter in (0, 1)."""
        interval = self.domains.get(symbol)
        return interval is not None and (interval.low, interval.high) == (0, 1)

    def _has_positive_terms(self, x: sp.Expr) -> bool:
        """Tell if all terms are positive, where a momentum in (0, 1) is written as 1 / (1 + y)."""
        shares = filter(self.is_share, x.free_symbols)
        inside = {s: 1 / (1 + sp.Dummy(positive=True)) for s in shares}
        if not inside or not x.is_rational_function():
            return False
        check_size(x)
        parts = sp.fraction(sp.cancel(sp.together(x.xreplace(inside))))
        terms = [term for part in parts for term in sp.Add.make_args(sp.expand(part))]
        return all(bool(term.is_positive) for term in terms)

    def compare(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        """True, False, or the open relation."""
        result = self._decide(relation, a, b)
        if result not in (sp.true, sp.false):
            a, b = canonical_form(a), canonical_form(b)
            result = self._decide(relation, a, b)
        if result in (sp.true, sp.false):
            self.assume_nonzero_norms(a, b)
            return result
        if self.wg_symbol in result.free_symbols and result.subs(self.wg_symbol, 0) == sp.true:
            self.add_hypothesis(OPPOSITE[relation], a, b, ", so that no projection acts")
            self.tests_assumed_false.append(result)
            return sp.false
        if relation in (sp.Eq, sp.Ne) and not self._depends_only_on_step_count(a - b):
            self.add_hypothesis(sp.Ne, a, b)
            return sp.false if relation is sp.Eq else sp.true
        if b == 0 and (sign := self._sampled_sign(a)):
            self.add_hypothesis(sp.Gt if sign > 0 else sp.Lt, a, b)
            return sp.true if relation(sign, 0) else sp.false
        return result

    def _decide(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        result = relation(a, b)
        if result in (sp.true, sp.false):
            return result
        if self.is_positive(a - b):
            return sp.true if relation in (sp.Gt, sp.Ge, sp.Ne) else sp.false
        if self.is_positive(b - a):
            return sp.true if relation in (sp.Lt, sp.Le, sp.Ne) else sp.false
        return result

    def _depends_only_on_step_count(self, x: sp.Expr) -> bool:
        """True for a function of counters and hyper-parameters, which meets a number now and then.

        One of vectors, or of hyper-parameters alone, does so by chance or by choice only.
        """
        others = x.free_symbols - self.scalars
        return bool(x.free_symbols & self.scalars) and not others - self.domains.keys()

    def _sampled_sign(self, x: sp.Expr) -> int:
        """1 or -1 for a sign that an expression has at all points tried, else 0."""
        if x.has(sp.Piecewise) or x.free_symbols & self.open_branches.keys():
            return 0
        rng, symbols = random.Random(0), sorted(x.free_symbols, key=str)
        function = sp.lambdify(symbols, x, "math", dummify=True)
        try:
            values = [function(*(self._sample(s, rng) for s in symbols)) for _ in range(TRIES)]
            signs = {(value > 0) - (value < 0) for value in values}
        except (ArithmeticError, ValueError, TypeError, NameError):
            return 0
        return signs.pop() if len(signs) == 1 else 0

    def _sample(self, symbol: sp.Symbol, rng: random.Random) -> float:
        """A number for a symbol; a momentum may be near its ends, and a count be even or odd."""
        size = float(10 ** rng.uniform(-3, 3))
        if self.is_share(symbol):
            return rng.choice([rng.random(), 1e-3, 0.999])
        if symbol in self.scalars and symbol.is_nonnegative and rng.random() < 0.5:
            return float(rng.choice([1, 2, 9, 10**4, 10**7]))
        return size if symbol.is_nonnegative else size * rng.choice([-1, 1])

    def where(self, condition: sp.Basic, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        """One of a and b where the condition is decided, else a symbol that stands for either."""
        if condition == sp.true or a == b:
            return a
        if condition == sp.false:
            return b
        meaning = sp.Piecewise((a, condition), (b, True))
        for symbol, known in self.open_branches.items():
            if known == meaning:
                return symbol
        sign = "real"
        if self.is_nonnegative(a) and self.is_nonnegative(b):
            sign = "positive" if self.is_positive(a) and self.is_positive(b) else "nonnegative"
        taken = {
            s.name for s in (*self.domains, *self.scalars, *self.open_branches)
        } | self.other_names
        names = (f"c{n}" for n in range(1, len(taken) + 2))
        symbol = sp.Symbol(next(n for n in names if n not in taken), **{sign: True})
        self.open_branches[symbol] = meaning
        return symbol
