"""Claims and proofs: relations that are decided, and printed from the relations that are decided.

A claim is an equation or an inequality of sympy, with what shows it: algebra, the record of a step,
or an induction over time. Whether an expression is 0 is decided in two steps: numbers refute it,
and sympy proves it.

| expression | decided by |
|---|---|
| a rational function, roots, sines | its canonical form |
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

Substitution = Mapping[sp.Basic, sp.Basic]
"""Values for symbols; the key of a squared norm stands for all powers of the norm. A function's
value is a `Lambda`."""

Hypothesis: TypeAlias = Phrase
"""A relation, or words."""

CALCULUS = (sp.Limit, sp.Derivative, sp.Subs)
"""Expressions that sympy evaluates by `doit`."""


class ProofKind(StrEnum):
    """The ways in which a claim is shown."""

    IDENTITY = "identity"
    """Both sides are equal by algebra, for any vectors and numbers."""
    DERIVED = "derived"
    """It follows from the record of the step."""
    INDUCTION = "proved by induction"
    """It holds at the start, and the record carries it from each step to the next."""
    LITERATURE = "equals the literature's formula"
    """Derived here, and published in the cited paper."""
    MEAN_FIELD = "mean-field"
    """Derived with products replaced by their means."""
    CHECKED = "checked on runs"
    """Compared with float64 runs, and not proved."""


@dataclass(frozen=True)
class Induction:
    """The base and the step of an induction over time.

    Attributes:
        time: the symbol of time.
        start: values at time 0.
        after: values one step later, in values at the time; they come from the record.
        factor: the number by which a step multiplies the difference of the claim's sides.
    """

    time: sp.Symbol
    start: Substitution
    after: Substitution
    factor: sp.Expr = sp.Integer(1)  # noqa: RUF009  (immutable)


@dataclass(frozen=True)
class Claim:
    """A relation that holds, what shows it, and the hypotheses under which it does.

    An equation holds if the difference of its sides is 0. An inequality needs a certificate: the
    difference of its sides is `difference`, which is nonnegative by its form, or positive for a
    strict inequality. With `induction`, both are shown at time 0 and from each step to the next.

    Attributes:
        about: subject of the claim, in words.
        relation: the statement itself, an `Eq`, `Lt`, `Le`, `Gt` or `Ge`.
        kind: the way in which it is shown.
        substitution: the symbols of the relation as the record has them.
        difference: the greater side minus the smaller one.
        induction: base and step of the proof by induction.
        hypotheses: the assumptions of the record that it was read from, and its own.

    Raises:
        TypeError: the statement is no relation.

    Example:
        >>> a, b = sp.symbols("a b", positive=True)
        >>> claim = Claim("means", sp.Le(2 * a * b, a**2 + b**2), ProofKind.IDENTITY,
        ...               difference=(a - b) ** 2)
        >>> print(claim, claim.holds)
        identity: 2 a b <= a^2 + b^2 (means) True
    """

    about: str
    relation: sp.Rel
    kind: ProofKind
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
            is_equal = self._holds_by_algebra_or_induction(relation.lhs - relation.rhs)
            return self.difference is None and is_equal
        if self.difference is None or isinstance(relation, sp.Ne):
            return False
        # An inequality with a positive difference is stated as a strict one. By induction it is
        # not strict, as it starts with equality.
        is_strict = isinstance(relation, (sp.Lt, sp.Gt))
        is_strictly_positive = is_positive(self.difference) and self.induction is None
        if not is_nonnegative(self.difference) or is_strict != is_strictly_positive:
            return False
        return self._holds_by_algebra_or_induction(relation.gts - relation.lts, self.difference)

    def _holds_by_algebra_or_induction(
        self, difference: sp.Expr, certificate: sp.Expr | int = 0
    ) -> bool:
        """Tell if the difference of the sides is as certified.

        Without induction, the difference equals the certificate. With it, the difference is 0 at
        the start, and each step multiplies it by the factor and adds the certificate.
        """
        difference = substitute(difference, self.substitution)
        certificate = substitute(sp.sympify(certificate), self.substitution)
        if self.induction is None:
            return vanishes(difference - certificate)
        induction, time = self.induction, self.induction.time
        keeps_sign = is_nonnegative(induction.factor) or isinstance(self.relation, sp.Eq)
        at_start = substitute(difference.subs(time, 0), induction.start)
        if not vanishes(at_start) or not keeps_sign:
            return False
        later = substitute(difference.subs(time, time + 1), induction.after)
        return vanishes(later - induction.factor * difference - certificate)

    def latex(self, letters: Letters | None = None) -> str:
        """Return the relation in LaTeX; see `spherenorm_theory.printing.latex` for the letters."""
        return latex(self.relation, letters)

    @property
    def justification(self) -> str:
        """The kind, with the hypotheses."""
        assumed = ", ".join(map(words, self.hypotheses))
        return f"{self.kind} under {{{assumed}}}" if assumed else str(self.kind)

    def __str__(self) -> str:
        return f"{self.justification}: {show(self.relation)} ({self.about})"

    __repr__ = __str__


@dataclass(frozen=True)
class Refutation:
    """Another reading of a statement, with a counterexample.

    Attributes:
        about: subject of the reading, in words.
        relation: the statement that is false.
        at: the counterexample: values of all symbols.
        sides: the values of the two sides there.
    """

    about: str
    relation: sp.Rel
    at: Substitution
    sides: tuple[sp.Expr, sp.Expr]

    @property
    def holds(self) -> bool:
        """True if the sides have these values at the counterexample, where the relation fails."""
        values = [_value_at(side, self.at) for side in (self.relation.lhs, self.relation.rhs)]
        return values == [*self.sides] and self.relation.func(*self.sides) == sp.false

    @property
    def justification(self) -> str:
        """The counterexample."""
        values = ", ".join(f"{show(symbol)} = {show(value)}" for symbol, value in self.at.items())
        lhs, rhs = map(show, self.sides)
        return f"fails at {values}: its sides are {lhs} and {rhs}"

    def __str__(self) -> str:
        return f"{show(self.relation)} ({self.about}) {self.justification}"

    __repr__ = __str__


@dataclass(frozen=True)
class Proof:
    """A statement, the claims that lead to it, and other readings of it, which are false.

    Text and LaTeX are printed from the relations that are decided. Words name their subjects.

    Attributes:
        name: name of the statement, such as "Lemma 2.2".
        claims: the statement, then the steps that it rests on; all must hold.
        counterexamples: other readings of the statement, which are refuted.
        remark: a note for the reader, without formulas.
        verdict: how the statement compares with the paper's, in one sentence; empty for statements
            that are not the paper's.
        section: the section and the equations of the paper.

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
    verdict: str = ""
    section: str = ""

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.name}: a proof needs a claim")

    @property
    def statement(self) -> Claim:
        """The first claim."""
        return self.claims[0]

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of all claims, each once."""
        by_text = {words(x): x for claim in self.claims for x in claim.hypotheses}
        return tuple(by_text.values())

    @property
    def failures(self) -> tuple[Claim | Refutation, ...]:
        """The claims that are not shown, and the counterexamples that refute nothing."""
        parts: tuple[Claim | Refutation, ...] = (*self.claims, *self.counterexamples)
        return tuple(part for part in parts if not part.holds)

    @property
    def proved(self) -> bool:
        """True if all claims hold and the other readings are refuted."""
        return not self.failures

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ways in which the claims are shown, the statement's first."""
        return tuple(dict.fromkeys(str(claim.kind) for claim in self.claims))

    @property
    def status(self) -> str:
        """The kinds of the claims and their hypotheses, or the subjects of all that failed."""
        failures = self.failures
        if failures:
            return f"not proved: {', '.join(part.about for part in failures)}"
        assumed = ", ".join(map(words, self.hypotheses))
        return ", ".join(self.kinds) + (f" under {{{assumed}}}" if assumed else "")

    def latex(self, letters: Letters | None = None) -> str:
        """Return the statement in LaTeX; `spherenorm_theory.printing.latex` has the letters."""
        return self.statement.latex(letters)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}"]
        lines += [f"  {c.kind}: {show(c.relation)} ({c.about})" for c in self.claims]
        lines += [f"  another reading: {reading}" for reading in self.counterexamples]
        return "\n".join([*lines, *([f"  note: {self.remark}"] if self.remark else [])])

    __repr__ = __str__


# Substitution


def substitute(expression: sp.Expr, substitution: Substitution) -> sp.Expr:
    """Return the expression with values in place of symbols.

    The key |a|^2 replaces |a| in all its powers.
    """
    expression = sp.sympify(expression)
    exchange: dict[sp.Basic, sp.Basic] = {}
    for symbol, value in substitution.items():
        if isinstance(symbol, sp.FunctionClass):
            expression = expression.replace(symbol, value)
        elif symbol.is_Pow and symbol.exp == 2:
            exchange[symbol.base] = sp.sqrt(value)
        else:
            exchange[symbol] = value
    return sp.sympify(expression.xreplace(exchange))


def _value_at(expression: sp.Expr, values: Substitution) -> sp.Expr:
    """Return the value of an expression at numbers for all its symbols."""
    times = {symbol: number for symbol, number in values.items() if symbol.is_integer}
    return substitute(sp.sympify(expression).subs(times).doit(), values)


def positive_norms(*expressions: sp.Expr) -> tuple[sp.Rel, ...]:
    """Return |a| > 0 for each norm that the expressions divide by."""
    relations: dict[str, sp.Rel] = {}
    for power in (p for e in expressions for p in sp.sympify(e).atoms(sp.Pow)):
        if power.exp.could_extract_minus_sign():
            for norm in sorted(power.base.atoms(Norm), key=str):
                relations.setdefault(str(norm), sp.Gt(norm, 0, evaluate=False))
    return tuple(relations.values())


# Expressions that are 0, or of one sign


def vanishes(expression: sp.Expr) -> bool:
    """Tell if the expression is shown to be 0; False if it is too long to be simplified.

    Random numbers in the domains of the symbols rule out most expressions other than 0 before sympy
    starts on them.
    """
    expression = _evaluate(sp.sympify(expression))
    if expression == 0:
        return True
    if _has_nonzero_value(expression):
        return False
    try:
        return _sums_vanish(expression) if expression.has(sp.Sum) else _is_zero(expression)
    except GrowthError:
        return False


def is_nonnegative(expression: sp.Expr) -> bool:
    """Tell if sympy sees that the expression, which may hold sums, is at least 0."""
    return bool(_with_signed_sums(expression).is_nonnegative)


def is_positive(expression: sp.Expr) -> bool:
    """Tell if sympy sees that the expression, which may hold sums, is positive."""
    return bool(_with_signed_sums(expression).is_positive)


def _with_signed_sums(expression: sp.Expr) -> sp.Expr:
    """Return the expression with a nonnegative symbol for each sum of nonnegative summands."""
    sums = [x for x in expression.atoms(sp.Sum) if x.function.is_nonnegative]
    return expression.xreplace({x: sp.Dummy(nonnegative=True) for x in sums})


def _evaluate(expression: sp.Expr) -> sp.Expr:
    """Return the expression with values for its limits, derivatives and empty integrals.

    Sums between numbers are evaluated, too.
    """
    if not expression.has(sp.Sum, sp.Integral, sp.betainc_regularized, *CALCULUS):
        return expression
    return sp.sympify(expression.replace(_can_be_evaluated, _evaluate_node))


def _can_be_evaluated(node: sp.Basic) -> bool:
    if isinstance(node, sp.Sum):
        return all(bound.is_Integer for bound in node.limits[0][1:])
    return isinstance(node, CALCULUS) or _is_empty_integral(node)


def _is_empty_integral(node: sp.Basic) -> bool:
    """Tell if a node is an integral from a number to the same number."""
    if isinstance(node, sp.Integral):
        return bool(node.limits[0][1] == node.limits[0][2])
    return isinstance(node, sp.betainc_regularized) and bool(node.args[2] == node.args[3])


def _evaluate_node(node: sp.Basic) -> sp.Basic:
    return sp.Integer(0) if _is_empty_integral(node) else node.doit()


def _is_zero(expression: sp.Expr) -> bool:
    if not expression.has(sp.Function) and canonical_form(_split_powers(expression)) == 0:
        return True
    return bool(sp.simplify(expression) == 0)


def _split_powers(expression: sp.Expr) -> sp.Expr:
    """Return x^(t + 2) as x^2 times a symbol for x^t, so that powers of x cancel."""
    symbols: dict[tuple[sp.Expr, sp.Expr], sp.Dummy] = {}
    powers = {}
    for power in expression.atoms(sp.Pow):
        number, exponent = power.exp.as_coeff_Add()
        if exponent.free_symbols and number.is_Integer:
            symbol = symbols.setdefault((power.base, exponent), sp.Dummy(positive=True))
            powers[power] = power.base**number * symbol
    return expression.xreplace(powers)


def _has_nonzero_value(expression: sp.Expr) -> bool:
    """Tell if the expression has a value other than 0 at random numbers."""
    rng = random.Random(0)
    integers = sorted((s for s in expression.free_symbols if s.is_integer), key=str)
    value = expression.subs({s: rng.randint(3, 6) for s in integers})
    value = value.replace(lambda e: isinstance(e, sp.Sum), _add_up)
    for node_type in (sp.Indexed, sp.Symbol):
        # The numbers are below 1: a momentum and a cosine are, and powers stay small.
        atoms = value.atoms(sp.Indexed) if node_type is sp.Indexed else value.free_symbols
        numbers = {x: sp.Rational(rng.randint(100, 900), 997) for x in sorted(atoms, key=str)}
        value = value.xreplace(numbers)
    try:
        value = sp.N(value, 30)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return bool(value.is_number and value.is_finite and abs(value) > sp.Float("1e-15"))


def _add_up(total: sp.Sum) -> sp.Expr:
    """Return a sum between numbers, term by term."""
    variable, low, top = total.limits[0]
    if not (low.is_Integer and top.is_Integer and low <= top):
        return total.doit()
    return sp.Add(*(total.function.subs(variable, n) for n in range(int(low), int(top) + 1)))


def _sums_vanish(expression: sp.Expr) -> bool:
    """Tell if a rational function of sums is 0, comparing sums of equal limits by summands."""
    names = {total: sp.Dummy() for total in expression.atoms(sp.Sum)}
    numerator, _ = sp.fraction(sp.cancel(expression.xreplace(names)))
    polynomial = sp.Poly(numerator, *names.values())
    if polynomial.total_degree() > 1:
        return False
    coefficients = {total: polynomial.coeff_monomial(name) for total, name in names.items()}
    summands, split_terms = _group_by_limits(coefficients)
    remainder = polynomial.coeff_monomial(1) + split_terms
    return _is_zero(remainder) and all(map(_is_zero, summands.values()))


def _group_by_limits(
    coefficients: dict[sp.Sum, sp.Expr],
) -> tuple[dict[tuple[sp.Expr, ...], sp.Expr], sp.Expr]:
    """Return one summand for each pair of limits, and the terms that were split off.

    Sums whose upper limits differ by a number are cut at the lowest of them.
    """
    index, split_terms = sp.Dummy(integer=True), sp.Integer(0)
    summands: dict[tuple[sp.Expr, ...], sp.Expr] = {}
    tops = [total.limits[0][2] for total in coefficients]
    for total, coefficient in coefficients.items():
        (variable, low, top), summand = total.limits[0], total.function
        distances = [sp.expand(top - other_top) for other_top in tops]
        n_split = max(int(n) for n in distances if n.is_Integer)
        for n in range(n_split):
            split_terms += coefficient * summand.subs(variable, top - n)
        key = low, sp.expand(top - n_split)
        summands[key] = summands.get(key, 0) + coefficient * summand.subs(variable, index)
    return summands, split_terms
