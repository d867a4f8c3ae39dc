"""Claims: relations that are decided, and printed as they are decided; proofs are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import sympy as sp

from spherenorm_theory.algebra.decide import is_nonnegative, is_positive, vanishes
from spherenorm_theory.algebra.printing import Letters, latex, show
from spherenorm_theory.algebra.statement import Phrase, words
from spherenorm_theory.algebra.symbols import Norm

Meanings = Mapping[sp.Basic, sp.Basic]
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

    over: sp.Symbol
    start: Meanings
    after: Meanings
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
    meanings: Meanings = field(default_factory=dict)
    difference: sp.Expr | None = None
    induction: Induction | None = None
    under: tuple[Hypothesis, ...] = ()

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
            return self.difference is None and self._carried(relation.lhs - relation.rhs)
        if self.difference is None or isinstance(relation, sp.Ne):
            return False
        strict = isinstance(relation, (sp.Lt, sp.Gt))
        # An inequality that is strict is said to be so; one by induction starts at equality.
        known = is_positive(self.difference) and self.induction is None
        if not is_nonnegative(self.difference) or strict != known:
            return False
        return self._carried(relation.gts - relation.lts, self.difference)

    def _carried(self, gap: sp.Expr, rest: sp.Expr | int = 0) -> bool:
        """True if the gap is `rest`, or starts at 0 and each step gives a multiple plus `rest`."""
        gap, rest = read_as(gap, self.meanings), read_as(sp.sympify(rest), self.meanings)
        if self.induction is None:
            return vanishes(gap - rest)
        induction = self.induction
        begin = read_as(gap.subs(induction.over, 0), induction.start)
        carries = is_nonnegative(induction.factor) or isinstance(self.relation, sp.Eq)
        if not vanishes(begin) or not carries:
            return False
        later = read_as(gap.subs(induction.over, induction.over + 1), induction.after)
        return vanishes(later - induction.factor * gap - rest)

    def latex(self, letters: Letters | None = None) -> str:
        """The relation in LaTeX; see `spherenorm_theory.algebra.printing.latex` for the letters."""
        return latex(self.relation, letters)

    @property
    def how(self) -> str:
        """The kind, with the hypotheses."""
        held = ", ".join(map(words, self.under))
        return f"{self.kind} under {{{held}}}" if held else str(self.kind)

    def __str__(self) -> str:
        return f"{self.how}: {show(self.relation)} ({self.about})"

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
    at: Meanings
    sides: tuple[sp.Expr, sp.Expr]

    @property
    def holds(self) -> bool:
        """True if the sides have these values at the counterexample, where the relation fails."""
        values = (_at(side, self.at) for side in (self.relation.lhs, self.relation.rhs))
        agree = all(v == s for v, s in zip(values, self.sides, strict=True))
        return agree and self.relation.func(*self.sides) == sp.false

    @property
    def how(self) -> str:
        """The counterexample."""
        at = ", ".join(f"{show(s)} = {show(n)}" for s, n in self.at.items())
        left, right = map(show, self.sides)
        return f"fails at {at}: its sides are {left} and {right}"

    def __str__(self) -> str:
        return f"{show(self.relation)} ({self.about}) {self.how}"

    __repr__ = __str__


def read_as(expression: sp.Expr, meanings: Meanings) -> sp.Expr:
    """The expression with meanings in place of symbols; of a squared norm, in all its powers."""
    expression = sp.sympify(expression)
    plain: dict[sp.Basic, sp.Basic] = {}
    for symbol, meaning in meanings.items():
        if isinstance(symbol, sp.FunctionClass):
            expression = expression.replace(symbol, meaning)
        elif symbol.is_Pow and symbol.exp == 2:
            plain[symbol.base] = sp.sqrt(meaning)
        else:
            plain[symbol] = meaning
    return sp.sympify(expression.xreplace(plain))


def _at(expression: sp.Expr, numbers: Meanings) -> sp.Expr:
    """The value of an expression at numbers."""
    times = {s: n for s, n in numbers.items() if s.is_integer}
    return read_as(sp.sympify(expression).subs(times).doit(), numbers)


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
    readings: tuple[Refutation, ...] = ()
    remark: str = ""

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.name}: a proof needs a claim")

    @property
    def statement(self) -> Claim:
        """The first claim."""
        return self.claims[0]

    @property
    def under(self) -> tuple[Hypothesis, ...]:
        """The hypotheses of all claims."""
        found = {words(each): each for claim in self.claims for each in claim.under}
        return tuple(found.values())

    @property
    def failures(self) -> tuple[Claim | Refutation, ...]:
        """The claims that are not shown, and the refutations that refute nothing."""
        parts: tuple[Claim | Refutation, ...] = (*self.claims, *self.readings)
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
        held = ", ".join(map(words, self.under))
        return ", ".join(self.kinds) + (f" under {{{held}}}" if held else "")

    def latex(self, letters: Letters | None = None) -> str:
        """The statement in LaTeX; `spherenorm_theory.algebra.printing.latex` has the letters."""
        return self.statement.latex(letters)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}"]
        lines += [f"  {c.kind}: {show(c.relation)} ({c.about})" for c in self.claims]
        lines += [f"  another reading: {each}" for each in self.readings]
        return "\n".join([*lines, *([f"  note: {self.remark}"] if self.remark else [])])

    __repr__ = __str__
