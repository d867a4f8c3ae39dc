"""Facts about the scalars of a step: how comparisons are decided, and what a law assumes by them.

Sympy does the arithmetic. A comparison is decided in this order:

1. By the domains of the symbols. Norms are positive, and hyper-parameters lie in open intervals,
   as the number 0 selects other code. A norm on which a decision rests becomes a hypothesis.
2. By a hypothesis, where the two sides are equal by coincidence alone, or where a difference had
   the same sign at all sampled numbers.
3. Not at all (does the clip act? is this step number 300?). Then `where` returns a new symbol for
   the open branch.

A scale-invariance test is a comparison that <w, g> = 0 decides. Where <w, g> is a general number,
the test is assumed to be false.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sympy as sp

from spherenorm import Interval
from spherenorm_theory.symbols import Indicator, Norm, StepValue, canonical_form, check_size

OPPOSITE = {sp.Gt: sp.Le, sp.Le: sp.Gt, sp.Lt: sp.Ge, sp.Ge: sp.Lt, sp.Eq: sp.Ne, sp.Ne: sp.Eq}
STEPS = sp.Dummy("steps", real=True)
"""A function that is constant between its steps, such as a sign."""
SIGN_SAMPLES = 60
"""Number of random points at which the sign of an expression is sampled."""


@dataclass
class Facts:
    """Facts and hypotheses about the scalars of a step.

    Attributes:
        domains: the open interval of each hyper-parameter, by its symbol.
        scalars: the symbols of the states that are one number.
        wg_symbol: <w, g>, where it is a general number; else None.
        other_names: names of vectors, which no symbol of an open branch repeats.
        hypotheses: the assumed relations, each with its consequence in words, or "".
        tests_assumed_false: the scale-invariance tests that were assumed to be false.
        open_branches: the meaning of each symbol that stands for an undecided choice, or for the
            value of a schedule.
        scheduled: the symbols of the values of schedules.
    """

    domains: Mapping[sp.Symbol, Interval] = field(default_factory=dict)
    scalars: frozenset[sp.Symbol] = frozenset()
    wg_symbol: sp.Symbol | None = None
    other_names: frozenset[str] = frozenset()
    hypotheses: dict[sp.Rel, str] = field(default_factory=dict)
    tests_assumed_false: list[sp.Rel] = field(default_factory=list)
    open_branches: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)
    scheduled: list[sp.Symbol] = field(default_factory=list)

    # Hypotheses

    def add_hypothesis(
        self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr, consequence: str = ""
    ) -> None:
        """Assume `relation(a, b)`, unless it is assumed already."""
        self.hypotheses.setdefault(relation(a, b, evaluate=False), consequence)

    def assume_nonzero_norms(self, *expressions: sp.Expr) -> None:
        """Assume that each norm in some expressions is positive."""
        for expression in expressions:
            for norm in sorted(sp.sympify(expression).atoms(Norm), key=str):
                self.add_hypothesis(sp.Gt, norm, sp.S.Zero)

    # Signs

    def is_positive(self, x: sp.Expr) -> bool:
        """Tell if a scalar is known to be above 0."""
        return bool(x.is_positive) or (x.is_positive is None and self._has_positive_terms(x))

    def is_nonnegative(self, x: sp.Expr) -> bool:
        """Tell if a scalar is known to be at least 0."""
        return bool(x.is_nonnegative) or self.is_positive(x)

    def is_in_unit_interval(self, symbol: sp.Basic) -> bool:
        """Tell if a symbol is a hyper-parameter with the domain (0, 1), such as a momentum."""
        interval = self.domains.get(symbol)
        return interval is not None and (interval.low, interval.high) == (0, 1)

    def _has_positive_terms(self, x: sp.Expr) -> bool:
        """Tell if all terms are positive once each x in (0, 1) is written as 1 / (1 + y)."""
        symbols = filter(self.is_in_unit_interval, x.free_symbols)
        substitution = {symbol: 1 / (1 + sp.Dummy(positive=True)) for symbol in symbols}
        if not substitution or not x.is_rational_function():
            return False
        check_size(x)
        fraction = sp.fraction(sp.cancel(sp.together(x.xreplace(substitution))))
        terms = [term for part in fraction for term in sp.Add.make_args(sp.expand(part))]
        return all(bool(term.is_positive) for term in terms)

    # Comparisons

    def compare(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        """Return true, false, or the relation, if it stays open."""
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
        if relation in (sp.Eq, sp.Ne) and not self._may_vanish_at_a_step(a - b):
            self.add_hypothesis(sp.Ne, a, b)
            return sp.false if relation is sp.Eq else sp.true
        sign = self._sampled_sign(a) if b == 0 else 0
        if sign:
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

    def _may_vanish_at_a_step(self, x: sp.Expr) -> bool:
        """Tell if x can be 0 at a step without coincidence, in one of the branches that it holds.

        A function of vectors, or of hyper-parameters alone, is 0 by coincidence or by choice only.
        A function of counters and hyper-parameters is 0 at some step, and a count or a sign of
        vectors is 0 with some probability.
        """
        return any(self._is_discrete(case) for case in self._cases(x))

    def _cases(self, x: sp.Expr) -> Iterator[sp.Expr]:
        """Yield x in each combination of the open branches that it holds."""
        for symbol in sorted(x.free_symbols & self.open_branches.keys(), key=str):
            meaning = self.open_branches[symbol]
            is_choice = isinstance(meaning, sp.Piecewise)
            for value in [piece for piece, _ in meaning.args] if is_choice else [meaning]:
                yield from self._cases(x.xreplace({symbol: value}))
            return
        yield x

    def _is_discrete(self, x: sp.Expr) -> bool:
        """Tell if x is 0, or varies with counters or with steps of vectors, and not with vectors.

        A function that is constant between its steps, such as a sign, is one number there.
        """
        symbols = self._symbols_between_steps(x) - self.domains.keys()
        return x == 0 or (bool(symbols) and symbols <= self.scalars | {STEPS})

    def _symbols_between_steps(self, x: sp.Expr) -> set[sp.Basic]:
        """Return the symbols that x varies with where its signs and branches stay."""
        steps = dict.fromkeys(x.atoms(sp.sign, sp.floor, sp.ceiling, sp.Piecewise), STEPS)
        return set(x.xreplace(steps).free_symbols)

    def counts_vectors(self, x: sp.Expr) -> bool:
        """Tell if x is a count, or a flag, of what vectors decide: it varies with no length."""
        numbers = self.scalars | self.domains.keys()
        return not self.origins(x) <= numbers and all(
            self._symbols_between_steps(case) <= numbers | {STEPS} for case in self._cases(x)
        )

    def _sampled_sign(self, x: sp.Expr) -> int:
        """Return 1 or -1 if an expression has this sign at all sampled points, else 0.

        A remainder, as of every seventh step, has a sign of its own at points that few samples hit.
        """
        if x.has(sp.Piecewise, sp.Mod, sp.floor) or x.free_symbols & self.open_branches.keys():
            return 0
        rng, symbols = random.Random(0), sorted(x.free_symbols, key=str)
        function = sp.lambdify(symbols, x, "math", dummify=True)
        signs = set[int]()
        try:
            for _ in range(SIGN_SAMPLES):
                value = function(*(self._sample(symbol, rng) for symbol in symbols))
                signs.add((value > 0) - (value < 0))
        except (ArithmeticError, ValueError, TypeError, NameError):
            return 0
        return signs.pop() if len(signs) == 1 else 0

    def _sample(self, symbol: sp.Symbol, rng: random.Random) -> float:
        """Draw a number for a symbol: a momentum also near its ends, a counter even or odd."""
        size = float(10 ** rng.uniform(-3, 3))
        if self.is_in_unit_interval(symbol):
            return rng.choice([rng.random(), 1e-3, 0.999])
        if symbol in self.scalars and symbol.is_nonnegative and rng.random() < 0.5:
            start = [] if symbol.is_positive else [0]
            return float(rng.choice([1, 2, 9, 10**4, 10**7, *start]))
        return size if symbol.is_nonnegative else size * rng.choice([-1, 1])

    # Branches

    def origins(self, x: sp.Basic) -> set[sp.Basic]:
        """Return the symbols that x depends on, with those of its open branches in their place."""
        origins, to_visit = set[sp.Basic](), set(x.free_symbols)
        visited = set[sp.Basic]()
        while to_visit:
            symbol = to_visit.pop()
            visited.add(symbol)
            meaning = self.open_branches.get(symbol)
            if meaning is None:
                origins.add(symbol)
            else:
                to_visit |= meaning.free_symbols - visited
        return origins

    @property
    def switches(self) -> set[sp.Basic]:
        """The symbols that a condition of an open branch depends on."""
        conditions = [
            condition
            for meaning in self.open_branches.values()
            for choice in meaning.atoms(sp.Piecewise)
            for _, condition in choice.args
        ]
        return set[sp.Basic]().union(*map(self.origins, conditions))

    def where(self, condition: sp.Basic, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        """Return a or b where the condition is decided, else a symbol for the open branch."""
        if condition == sp.true or a == b:
            return a
        if condition == sp.false:
            return b
        choice = sp.Piecewise((a, condition), (b, True))
        for symbol, meaning in self.open_branches.items():
            if meaning == choice:
                return symbol
        sign = "real"
        if self.is_nonnegative(a) and self.is_nonnegative(b):
            sign = "positive" if self.is_positive(a) and self.is_positive(b) else "nonnegative"
        symbols = (*self.domains, *self.scalars, *self.open_branches)
        used_names = {symbol.name for symbol in symbols} | self.other_names
        numbered = (f"c{n}" for n in range(1, len(used_names) + 2))
        name = next(name for name in numbered if name not in used_names)
        symbol = Indicator(name) if (a, b) == (1, 0) else StepValue(name, **{sign: True})
        self.open_branches[symbol] = choice
        return symbol

    # Schedules

    def name_schedule(self, name: str, value: sp.Expr) -> sp.Symbol:
        """Return the symbol of a scheduled hyper-parameter, whose value is a function of the count.

        Args:
            name: name of the hyper-parameter.
            value: its value at the present step.
        """
        sign = "positive" if self.is_positive(value) else "real"
        symbol = StepValue(name, **{sign: True})
        if self.open_branches.setdefault(symbol, value) != value:
            raise NotImplementedError(f"the schedule of {name} has two values in one step")
        if symbol not in self.scheduled:
            self.scheduled.append(symbol)
        return symbol
