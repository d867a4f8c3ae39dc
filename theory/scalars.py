"""Scalar arithmetic of the interpreters: sympy expressions, comparisons that decide themselves, named intermediate values."""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy as sp

from theory.symbols import tidy
from theory.text import show

__all__ = ["Scalars"]


@dataclass
class Scalars:
    """Sympy scalars, with the three things that a traced step needs beside arithmetic.

    *Comparisons* resolve by sympy where they can. What is a sum of squares is taken as positive: the generic step, at which
    no such norm happens to vanish; the assumption is recorded. What stays open (does the clip act?) stays open, and `where`
    gives a new symbol for either value.

    *Roots* of compound expressions get names, so that sin^2 + cos^2 = 1 is applied to a symbol.

    Attributes:
        definitions: what each name stands for, in the order of the definitions.
        assumptions: what was taken for granted on the way.
        general: <w, g>, where it is not 0; a comparison that would hold if it were, the scale-invariance test, is taken to fail.
        failed: these comparisons.
    """

    definitions: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    general: sp.Symbol | None = None
    failed: list[sp.Rel] = field(default_factory=list)
    _nonnegative: set[sp.Expr] = field(default_factory=set)

    def assume(self, text: str) -> None:
        if text not in self.assumptions:
            self.assumptions.append(text)

    def name(self, letter: str, meaning: sp.Expr, **facts: bool) -> sp.Symbol:
        """A symbol that stands for `meaning`; one and the same for one meaning."""
        for symbol, known in self.definitions.items():
            if known == meaning:
                return symbol
        symbol = sp.Symbol(
            f"{letter}{1 + sum(s.name.startswith(letter) for s in self.definitions)}", **facts
        )
        self.definitions[symbol] = meaning
        return symbol

    def expand(self, expression: sp.Expr, everything: bool = False) -> sp.Expr:
        """`expression` in tidy form, with the names of angles replaced by their meaning wherever they are not inside a sine or cosine.

        Other names stay, as factors that a step happens to have; with `everything` they are replaced too, open cases excepted.
        """
        angles = {s for f in expression.atoms(sp.sin, sp.cos) for s in f.free_symbols}
        plain = {f: sp.Dummy() for f in expression.atoms(sp.sin, sp.cos)}
        expression = expression.subs(plain)
        for symbol, meaning in reversed(self.definitions.items()):
            if (symbol in angles or everything) and not meaning.has(sp.Piecewise):
                expression = sp.expand(expression).subs(symbol, meaning)
        return tidy(expression.subs({dummy: f for f, dummy in plain.items()}))

    def square(self, expression: sp.Expr) -> sp.Expr:
        """Remember that `expression` is a sum of squares."""
        self._nonnegative.add(expression)
        return expression

    def is_nonnegative(self, *expressions: sp.Expr) -> bool:
        return all(bool(e.is_nonnegative) or e in self._nonnegative for e in expressions)

    def root(self, x: sp.Expr) -> sp.Expr:
        monomial = all(
            base.is_Symbol or base.is_number
            for base, _ in (f.as_base_exp() for f in sp.Mul.make_args(x))
        )
        return sp.sqrt(x) if monomial else self.name("r", sp.sqrt(x), positive=True)

    def angle(self, x: sp.Expr) -> sp.Expr:
        """A name for x, or a multiple of one."""
        factor, rest = x.as_coeff_Mul()
        return factor * (rest if rest.is_Symbol else self.name("theta", rest, positive=True))

    def compare(self, relation: type[sp.Rel], a: sp.Expr, b: sp.Expr) -> sp.Basic:
        """True, False, or the open relation."""
        result = relation(a, b)
        if result in (sp.true, sp.false):
            return result
        if a in self._nonnegative and b == 0 and relation in (sp.Gt, sp.Ne, sp.Eq):
            self.assume(f"{show(tidy(a))} > 0")
            return sp.true if relation is not sp.Eq else sp.false
        a, b = tidy(a), tidy(b)
        result = relation(a, b)
        if result in (sp.true, sp.false):
            return result
        # A comparison that <w, g> = 0 would decide is a test for it.
        if (
            self.general is not None
            and self.general in result.free_symbols
            and result.subs(self.general, 0) == sp.true
        ):
            self.assume(f"not {show(result)}, so that no projection acts")
            self.failed.append(result)
            return sp.false
        if relation is sp.Eq:
            self.assume(f"{show(a)} != {show(b)}")
            return sp.false
        return result

    def where(self, condition: sp.Basic, a: sp.Expr, b: sp.Expr) -> sp.Expr:
        if condition == sp.true or a == b:
            return a
        if condition == sp.false:
            return b
        positive = bool(self.is_nonnegative(a, b))
        return self.name(
            "c",
            sp.Piecewise((a, condition), (b, True)),
            **({"positive": True} if positive else {"real": True}),
        )
