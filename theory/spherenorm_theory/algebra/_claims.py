"""Claims: relations that are decided, and printed as they are decided; proofs are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import sympy as sp

from spherenorm_theory.algebra._decide import is_nonnegative, is_positive, vanishes
from spherenorm_theory.algebra._text import latex, show

Meanings = Mapping[sp.Basic, sp.Basic]
"""The values of symbols; a `Lambda` for those of functions."""


class Kind(str, Enum):
    """The ways in which a claim is shown."""

    IDENTITY = "identity"
    """Both sides are the same by algebra, whatever the code does."""
    DERIVED = "derived"
    """One side is read off the record of a step."""
    INDUCTION = "proved by induction"
    """The claim holds at the start, and the record carries it over a step."""
    LITERATURE = "equals the literature's formula"
    """One side is derived, the other one published."""
    MEAN_FIELD = "mean-field"
    """Derived with products replaced by their means."""
    CHECKED = "checked on runs"
    """Compared with float64 runs, and not proved."""

    def __str__(self) -> str:
        return self.value


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
class Slope:
    """The step of a proof by slopes: two functions with one derivative and one value are the same.

    Attributes:
        over: the variable.
        start: its value at which the sides of the claim are compared.
    """

    over: sp.Symbol
    start: sp.Expr


@dataclass(frozen=True)
class Claim:
    """A relation that holds, and what shows it.

    Equations hold if the difference of the sides is 0. Inequalities have a certificate: the
    difference of the sides is `difference`, which is nonnegative by its form (positive, for a
    strict one). With `induction` these are shown at time 0 and from each step to the next.

    Attributes:
        about: the subject, in words.
        relation: the statement itself, an `Eq`, `Lt`, `Le`, `Gt` or `Ge`.
        kind: the way in which it is shown.
        meanings: the symbols of the relation as the record has them.
        difference: the greater side less the smaller one.
        induction: the step of the proof by induction, or by slopes.
        under: the claim's own hypotheses.

    Raises:
        TypeError: the statement is no relation.

    Example:
        >>> a, b = sp.symbols("a b", positive=True)
        >>> claim = Claim("means", sp.Le(2 * a * b, a**2 + b**2), Kind.IDENTITY,
        ...               difference=(a - b) ** 2)
        >>> print(claim, claim.holds)
        identity: 2*a*b <= a^2 + b^2 (means) True
    """

    about: str
    relation: sp.Rel
    kind: Kind
    meanings: Meanings = field(default_factory=dict)
    difference: sp.Expr | None = None
    induction: Induction | Slope | None = None
    under: tuple[sp.Basic | str, ...] = ()

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
        gap, rest = _read(gap, self.meanings), _read(sp.sympify(rest), self.meanings)
        if self.induction is None:
            return vanishes(gap - rest)
        induction = self.induction
        if isinstance(induction, Slope):
            begin, slope = gap.subs(induction.over, induction.start), gap.diff(induction.over)
            return rest == 0 and vanishes(slope) and vanishes(begin)
        begin = _read(gap.subs(induction.over, 0), induction.start)
        if not vanishes(begin) or not is_nonnegative(induction.factor):
            return False
        later = _read(gap.subs(induction.over, induction.over + 1), induction.after)
        return vanishes(later - induction.factor * gap - rest)

    def latex(self, letters: Mapping[str, str] | None = None) -> str:
        """The relation in LaTeX; see `spherenorm_theory.algebra.latex` for the letters."""
        return latex(self.relation, letters)

    @property
    def how(self) -> str:
        """The kind, with the claim's own hypotheses."""
        if not self.under:
            return str(self.kind)
        return f"{self.kind} under {{{', '.join(_words(each) for each in self.under)}}}"

    def __str__(self) -> str:
        return f"{self.how}: {show(self.relation)} ({self.about})"

    __repr__ = __str__


@dataclass(frozen=True)
class Refutation:
    """A relation as it is printed somewhere, which fails at some numbers.

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

    def latex(self, letters: Mapping[str, str] | None = None) -> str:
        """The relation that fails, in LaTeX."""
        return latex(self.relation, letters)

    @property
    def how(self) -> str:
        """The counterexample in text."""
        at = ", ".join(f"{show(symbol)} = {show(value)}" for symbol, value in self.at.items())
        left, right = map(show, self.sides)
        return f"fails at {at}: its sides are {left} and {right}"

    def __str__(self) -> str:
        return f"{show(self.relation)} ({self.about}) {self.how}"

    __repr__ = __str__


def _read(expression: sp.Expr, meanings: Meanings) -> sp.Expr:
    """The expression in the terms of the record.

    Symbols are known by their names: the record may know more of a symbol's domain.
    """
    expression = sp.sympify(expression)
    for function, meaning in meanings.items():
        if isinstance(function, sp.FunctionClass):
            expression = expression.replace(function, meaning)
    plain = {s: m for s, m in meanings.items() if not isinstance(s, sp.FunctionClass)}
    read = sp.sympify(expression.xreplace(plain))
    by_name: dict[str, sp.Symbol] = {}
    for symbol in sorted(expression.free_symbols | read.free_symbols, key=sp.default_sort_key):
        if isinstance(symbol, sp.Symbol):
            by_name.setdefault(symbol.name, symbol)
    same = {
        s: by_name[s.name]
        for s in read.free_symbols
        if isinstance(s, sp.Symbol) and s is not by_name[s.name]
    }
    return read.xreplace(same) if same else read


def _at(expression: sp.Expr, numbers: Meanings) -> sp.Expr:
    """The value of an expression at numbers."""
    times = {s: n for s, n in numbers.items() if s.is_integer}
    return _read(sp.sympify(expression).subs(times).doit(), numbers)


def _words(hypothesis: sp.Basic | str) -> str:
    return hypothesis if isinstance(hypothesis, str) else show(hypothesis)


@dataclass(frozen=True)
class Proof:
    """A statement, the claims that lead to it, and the printed statements that fail.

    Text and LaTeX are printed from the relations that are decided. Words name their subjects.

    Attributes:
        name: such as "Lemma 2.2".
        claims: the statement, then the steps that it rests on; all must hold.
        refuted: the statement as it is printed, where that fails.
        under: the hypotheses of all claims.
        remark: a note for the reader, without formulas.
        verdict: the status in words, for a statement that is refuted as printed.

    Raises:
        ValueError: there are no claims, so that nothing would be proved.

    Example:
        >>> proof = lemmas.lemma_2_1()
        >>> print(proof.name, proof.proved, proof.holds_as_printed)
        Lemma 2.1 True True
    """

    name: str
    claims: tuple[Claim, ...]
    refuted: tuple[Refutation, ...] = ()
    under: tuple[sp.Basic | str, ...] = ()
    remark: str = ""
    verdict: str = "not as printed; corrected and proved"

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.name}: a proof needs a claim")

    @property
    def statement(self) -> Claim:
        """The first claim."""
        return self.claims[0]

    @property
    def failures(self) -> tuple[Claim | Refutation, ...]:
        """The claims that are not shown, and the refutations that refute nothing."""
        parts: tuple[Claim | Refutation, ...] = (*self.claims, *self.refuted)
        return tuple(each for each in parts if not each.holds)

    @property
    def proved(self) -> bool:
        """True if nothing fails: the claims hold, and what is refuted is false."""
        return not self.failures

    @property
    def holds_as_printed(self) -> bool:
        """True if the statement is proved and nothing printed is refuted."""
        return self.proved and not self.refuted

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ways in which the claims are shown, the statement's first."""
        return tuple(dict.fromkeys(str(claim.kind) for claim in self.claims))

    @property
    def status(self) -> str:
        """The kinds of the claims and their hypotheses, or the subjects of all that failed."""
        if failed := self.failures:
            return f"NOT proved: {', '.join(each.about for each in failed)}"
        held = ", ".join(h if isinstance(h, str) else show(h) for h in self.under)
        shown = ", ".join(self.kinds) + (f" under {{{held}}}" if held else "")
        return f"{self.verdict}: {shown}" if self.refuted else shown

    def latex(self, letters: Mapping[str, str] | None = None) -> str:
        """The statement in LaTeX; see `spherenorm_theory.algebra.latex` for the letters."""
        return self.statement.latex(letters)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.status}", *(f"  {claim}" for claim in self.claims)]
        lines += [f"  as printed: {each}" for each in self.refuted]
        return "\n".join([*lines, *([f"  note: {self.remark}"] if self.remark else [])])

    __repr__ = __str__
