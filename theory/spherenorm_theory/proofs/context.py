"""The paper's notation, and statements about the vectors of a step, which its record decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sympy as sp
import torch

from spherenorm import Recipe
from spherenorm_theory.claim import Claim, Hypothesis, Induction, Kind, Substitution, substitute
from spherenorm_theory.hyper_parameters import resolve_recipe
from spherenorm_theory.step import Step, express_inner
from spherenorm_theory.symbols import Inner, Norm, Vector, at, exact

lr, beta, wd, rho, beta1 = (
    sp.Symbol(name, positive=True)
    for name in ("lr", "momentum", "weight_decay", "wd_ratio", "beta1")
)
t, k = sp.symbols("t k", integer=True, nonnegative=True)
w, g, m = map(Vector.atom, "wgm")
G, M, P, Q, S, W, W_NEXT = (Norm(name) ** 2 for name in ("g", "m", "p", "q", "s", "w", "w'"))
WM, WP, WS = (Inner("w", name) for name in "mps")

AT_REST = "m_0 = 0"
CONSTANT = "lr, momentum constant"
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""The paper's momentum has neither decay nor dampening."""

Row: TypeAlias = tuple[Any, ...]
"""Subject and statement; of an inequality, with the greater side less the smaller one."""


@dataclass(frozen=True)
class Reading:
    """A step, and names for vectors in it: w, g, m, w', and those that a proof adds.

    Attributes:
        step: the step on symbols.
        others: vectors by the names that statements have for them; m' is m a step later.
        letter: one of them, in which products are written in place of the gradient.
        where: further names, and what they stand for in products.
        by: what earlier claims say of symbols that the record leaves.
        under: hypotheses beside those of the step.
    """

    step: Step
    others: Mapping[str, Vector] = field(default_factory=dict)
    letter: str = ""
    where: Substitution = field(default_factory=dict)
    by: Substitution = field(default_factory=dict)
    hypotheses: tuple[Hypothesis, ...] = ()

    def shown(self, *rows: Row, kind: Kind = Kind.DERIVED) -> tuple[Claim, ...]:
        """Claims of which the record gives the products."""
        found = list[Claim]()
        for about, relation, *gaps in rows:
            gap, substitution = (gaps[0] if gaps else None), self.substitution(relation, *gaps)
            hypotheses = (*self.step.hypotheses, *self.hypotheses)
            found.append(Claim(about, relation, kind, substitution, gap, hypotheses=hypotheses))
        return tuple(found)

    def induction(self, about: str, relation: sp.Rel, *gap: sp.Expr) -> Claim:
        """A claim about the momentum, which is 0 at the start; beta carries what is left of it."""
        read = replace(self, hypotheses=(AT_REST, *self.hypotheses))
        (claim,) = read.shown((about, relation, *gap), kind=Kind.INDUCTION)
        after = self.substitution(*(side.subs(t, t + 1) for side in relation.args))
        start = {at(WM, 0): sp.S.Zero, at(M, 0): sp.S.Zero}
        carried = Induction(t, start, after, beta)
        return replace(claim, substitution=self.substitution(*gap), induction=carried)

    def substitution(self, *formulas: sp.Basic) -> dict[sp.Basic, sp.Basic]:
        """The norms, products and names of formulas by the record, at t and a step later."""
        vectors = {"w": w, "g": g, "m": m, "w'": self.step.weight, **self.others}
        whole, found = sp.Tuple(*formulas), dict[sp.Basic, sp.Basic]()
        for x in whole.atoms(sp.Indexed) or whole.atoms(Norm, Inner):
            label, time = (x.base.label, x.indices[0]) if isinstance(x, sp.Indexed) else (x, t)
            ends = [label.a, getattr(label, "b", label.a)] if hasattr(label, "a") else []
            pair = [vectors.get(end + "'" * (time == t + 1)) for end in ends]
            if pair and None not in pair and time in (t, t + 1):
                value = self._inner(*pair)
                key = x**2 if isinstance(label, Norm) else x
                found[key] = at(value, t) if isinstance(x, sp.Indexed) else value
        for symbol in whole.free_symbols:
            if symbol in self.where:
                meaning = self.where[symbol]
                found[symbol] = substitute(meaning, self.substitution(meaning))
            elif symbol.name in vectors:
                found[symbol] = vectors[symbol.name].formula
        return {x: substitute(value, self.by) for x, value in found.items()}

    def _inner(self, a: Any, b: Any) -> sp.Expr:
        if not self.letter:
            return self.step.inner(a, b)
        return express_inner(self.step, self.others[self.letter], self.letter, a, b)


def scalar(name: str) -> sp.Symbol:
    """A real number that a statement names."""
    return sp.Symbol(name, real=True)


def momentum_of(step: Step) -> Vector:
    """The momentum after the gradient entered."""
    p = step.states["m"]
    assert isinstance(p, Vector)
    return p


def step_in_the_plane(
    recipe: str | Recipe, weight: list[int], grad: list[int], *momentum: list[int], **numbers: Any
) -> list[sp.Expr]:
    """w' of the rule's code in float64, from its first state or from a momentum."""
    rule = resolve_recipe(recipe)(**numbers)
    before, gradient, *buffers = (
        torch.tensor([x], dtype=torch.float64) for x in (weight, grad, *momentum)
    )
    state = {**rule.init(before), **dict(zip(rule.state_keys, buffers, strict=False))}
    new, _ = rule.step(before, gradient, state)
    return [exact(round(float(x), 12)) for x in new[0]]
