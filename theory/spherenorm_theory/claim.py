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
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import sympy as sp

from spherenorm_theory.printing import Letters, Phrase, latex, show, words
from spherenorm_theory.symbols import GrowthError, Norm, canonical_form

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
    if not expression.has(sp.Function) and canonical_form(_with_whole_powers(expression)) == 0:
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


# Claims: relations that are decided, and printed as they are decided; proofs are made of them.


Substitution = Mapping[sp.Basic, sp.Basic]
"""The values of symbols; a `Lambda` for those of functions. Of a squared norm, that of the norm."""

Hypothesis: TypeAlias = Phrase
"""A relation, or words."""


class Kind(StrEnum):
    """The ways in which a claim is shown."""

    IDENTITY = "identity"
    """Both sides are the same by algebra, for any vectors and numbers."""
    DERIVED = "derived"
    """Read off the record of the step."""
    INDUCTION = "proved by induction"
    """Holds at the start, and the record carries it from each step to the next."""
    LITERATURE = "equals the literature's formula"
    """Derived here, and published there."""
    MEAN_FIELD = "mean-field"
    """Derived with products replaced by their means."""
    CHECKED = "checked on runs"
    """Compared with float64 runs, and not proved."""


@dataclass(frozen=True)
class Induction:
    """The step of an induction over time.

    Attributes:
        over: the time.
        start: values at time 0.
        after: values one step later, by those at the time; they come from the record.
        factor: by which the step multiplies the difference of the claim's sides.
    """

    time: sp.Symbol
    start: Substitution
    after: Substitution
    factor: sp.Expr = sp.Integer(1)  # noqa: RUF009  (immutable)


@dataclass(frozen=True)
class Claim:
    """A relation that holds, what shows it, and the hypotheses under which it does.

    Equations hold if the difference of the sides is 0. Inequalities have a certificate: the
    difference of the sides is `difference`, which is nonnegative by its form (positive, for a
    strict one). With `induction` these are shown at time 0 and from each step to the next.

    Attributes:
        about: the subject, in words.
        relation: the statement itself, an `Eq`, `Lt`, `Le`, `Gt` or `Ge`.
        kind: the way in which it is shown.
        meanings: the symbols of the relation as the record has them.
        difference: the greater side less the smaller one.
        induction: the step of the proof by induction.
        under: the hypotheses: those of the record that it was read from, and its own.

    Raises:
        TypeError: the statement is no relation.

    Example:
        >>> a, b = sp.symbols("a b", positive=True)
        >>> claim = Claim("means", sp.Le(2 * a * b, a**2 + b**2), Kind.IDENTITY,
        ...               difference=(a - b) ** 2)
        >>> print(claim, claim.holds)
        identity: 2 a b <= a^2 + b^2 (means) True
    """

    about: str
    relation: sp.Rel
    kind: Kind
    substitution: Substitution = field(default_factory=dict)
    difference: sp.Expr | None = None
    induction: Induction | None = None
    hypotheses: tuple[Hypothesis, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.relation, sp.Rel):
            raise TypeError(
                f"{self.about}: the statement must be a relation, got {self.relation!r} "
                "(sympy decides some relations; evaluate=False keeps them)"
            )

    @property
    def holds(self) -> bool:
        """True if the relation is shown."""
        relation = self.relation
        if isinstance(relation, sp.Eq):
            return self.difference is None and self._holds_by_algebra_or_induction(
                relation.lhs - relation.rhs
            )
        if self.difference is None or isinstance(relation, sp.Ne):
            return False
        strict = isinstance(relation, (sp.Lt, sp.Gt))
        # An inequality that is strict is said to be so; one by induction starts at equality.
        known = is_positive(self.difference) and self.induction is None
        if not is_nonnegative(self.difference) or strict != known:
            return False
        return self._holds_by_algebra_or_induction(relation.gts - relation.lts, self.difference)

    def _holds_by_algebra_or_induction(self, gap: sp.Expr, rest: sp.Expr | int = 0) -> bool:
        """True if the gap is `rest`, or starts at 0 and each step gives a multiple plus `rest`."""
        gap, rest = (
            substitute(gap, self.substitution),
            substitute(sp.sympify(rest), self.substitution),
        )
        if self.induction is None:
            return vanishes(gap - rest)
        induction = self.induction
        begin = substitute(gap.subs(induction.time, 0), induction.start)
        carries = is_nonnegative(induction.factor) or isinstance(self.relation, sp.Eq)
        if not vanishes(begin) or not carries:
            return False
        later = substitute(gap.subs(induction.time, induction.time + 1), induction.after)
        return vanishes(later - induction.factor * gap - rest)

    def latex(self, letters: Letters | None = None) -> str:
        """The relation in LaTeX; see `spherenorm_theory.printing.latex` for the letters."""
        return latex(self.relation, letters)

    @property
    def justification(self) -> str:
        """The kind, with the hypotheses."""
        held = ", ".join(map(words, self.hypotheses))
        return f"{self.kind} under {{{held}}}" if held else str(self.kind)

    def __str__(self) -> str:
        return f"{self.justification}: {show(self.relation)} ({self.about})"

    __repr__ = __str__


@dataclass(frozen=True)
class Refutation:
    """Another reading of a statement, which fails at some numbers.

    Attributes:
        about: the subject, in words.
        relation: the statement that fails.
        at: a counterexample: the values of all symbols.
        sides: the values of the two sides there.
    """

    about: str
    relation: sp.Rel
    at: Substitution
    sides: tuple[sp.Expr, sp.Expr]

    @property
    def holds(self) -> bool:
        """True if the sides have these values at the counterexample, where the relation fails."""
        values = (_value_at(side, self.at) for side in (self.relation.lhs, self.relation.rhs))
        agree = all(v == s for v, s in zip(values, self.sides, strict=True))
        return agree and self.relation.func(*self.sides) == sp.false

    @property
    def justification(self) -> str:
        """The counterexample."""
        at = ", ".join(f"{show(s)} = {show(n)}" for s, n in self.at.items())
        left, right = map(show, self.sides)
        return f"fails at {at}: its sides are {left} and {right}"

    def __str__(self) -> str:
        return f"{show(self.relation)} ({self.about}) {self.justification}"

    __repr__ = __str__


def substitute(expression: sp.Expr, substitution: Substitution) -> sp.Expr:
    """The expression with meanings in place of symbols; of a squared norm, in all its powers."""
    expression = sp.sympify(expression)
    plain: dict[sp.Basic, sp.Basic] = {}
    for symbol, meaning in substitution.items():
        if isinstance(symbol, sp.FunctionClass):
            expression = expression.replace(symbol, meaning)
        elif symbol.is_Pow and symbol.exp == 2:
            plain[symbol.base] = sp.sqrt(meaning)
        else:
            plain[symbol] = meaning
    return sp.sympify(expression.xreplace(plain))


def _value_at(expression: sp.Expr, numbers: Substitution) -> sp.Expr:
    """The value of an expression at numbers."""
    times = {s: n for s, n in numbers.items() if s.is_integer}
    return substitute(sp.sympify(expression).subs(times).doit(), numbers)


def positive_norms(*expressions: sp.Expr) -> tuple[sp.Rel, ...]:
    """|a| > 0 for each norm that the expressions divide by."""
    found: dict[str, sp.Rel] = {}
    for power in (p for e in expressions for p in sp.sympify(e).atoms(sp.Pow)):
        if power.exp.could_extract_minus_sign():
            for norm in sorted(power.base.atoms(Norm), key=str):
                found.setdefault(str(norm), sp.Gt(norm, 0, evaluate=False))
    return tuple(found.values())


@dataclass(frozen=True)
class Proof:
    """A statement, the claims that lead to it, and other readings of it, which fail.

    Text and LaTeX are printed from the relations that are decided. Words name their subjects.

    Attributes:
        name: such as "Lemma 2.2".
        claims: the statement, then the steps that it rests on; all must hold.
        readings: other readings of the statement, which are refuted.
        remark: a note for the reader, without formulas.

    Raises:
        ValueError: there are no claims, so that nothing would be proved.

    Example:
        >>> proof = lemmas.lemma_2_1()
        >>> print(proof.name, proof.proved)
        Lemma 2.1 True
    """

    name: str
    claims: tuple[Claim, ...]
    counterexamples: tuple[Refutation, ...] = ()
    remark: str = ""

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.name}: a proof needs a claim")

    @property
    def statement(self) -> Claim:
        """The first claim."""
        return self.claims[0]

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of all claims."""
        found = {words(each): each for claim in self.claims for each in claim.hypotheses}
        return tuple(found.values())

    @property
    def failures(self) -> tuple[Claim | Refutation, ...]:
        """The claims that are not shown, and the refutations that refute nothing."""
        parts: tuple[Claim | Refutation, ...] = (*self.claims, *self.counterexamples)
        return tuple(each for each in parts if not each.holds)

    @property
    def proved(self) -> bool:
        """True if nothing fails: the claims hold, and the other readings are false."""
        return not self.failures

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ways in which the claims are shown, the statement's first."""
        return tuple(dict.fromkeys(str(claim.kind) for claim in self.claims))

    @property
    def status(self) -> str:
        """The kinds of the claims and their hypotheses, or the subjects of all that failed."""
        if failed := self.failures:
            return f"NOT proved: {', '.join(each.about for each in failed)}"
        held = ", ".join(map(words, self.hypotheses))
        return ", ".join(self.kinds) + (f" under {{{held}}}" if held else "")

    def latex(self, letters: Letters | None = None) -> str:
        """The statement in LaTeX; `spherenorm_theory.printing.latex` has the letters."""
        return self.statement.latex(letters)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}"]
        lines += [f"  {c.kind}: {show(c.relation)} ({c.about})" for c in self.claims]
        lines += [f"  another reading: {each}" for each in self.counterexamples]
        return "\n".join([*lines, *([f"  note: {self.remark}"] if self.remark else [])])

    __repr__ = __str__
