"""Names for parts of a formula, and assumptions, as a reading of a step makes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

import sympy as sp

from spherenorm_theory.algebra._symbols import tidy
from spherenorm_theory.algebra._text import show

__all__ = ["Condition", "Naming"]

Condition = tuple[type[sp.Basic], sp.Expr, sp.Expr]
"""A relation and its two sides, which sympy must not decide."""

SHOWN = {sp.Gt: ">", sp.Lt: "<", sp.Ge: ">=", sp.Le: "<=", sp.Eq: "=", sp.Ne: "!="}


@dataclass
class Naming:
    """The names that were given to parts of formulas, and the assumptions that were made.

    Attributes:
        definitions: the meaning of each name, in the order of the definitions.
        assumptions: the facts that were taken for granted, in text.
        conditions: those of them that numbers can be asked for.
        taken: the names of hyper-parameters and states, which no new name repeats.
    """

    definitions: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    taken: frozenset[str] = frozenset()

    def assume(self, relation: type[sp.Basic], a: sp.Expr, b: sp.Expr, so: str = "") -> None:
        """Record the assumption that a relation holds, once.

        Args:
            relation, a, b: the relation and its sides.
            so: what follows from it, in text.
        """
        text = f"{show(a)} {SHOWN[relation]} {show(b)}{so}"
        if text not in self.assumptions:
            self.assumptions.append(text)
            self.conditions.append((relation, a, b))

    def free(self, letter: str, used: Collection[str], bare: bool = False) -> str:
        """A name that neither `used` nor `taken` holds: e, e2, e3 if `bare`, else e1, e2, e3.

        Args:
            letter: the name begins with it.
            used: the names that are in use.
            bare: the first name is the letter by itself.
        """
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
