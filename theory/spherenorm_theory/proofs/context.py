"""The paper's notation, and the steps of a proof: `derived_from`, `by_induction`, `refuted_by`.

A proof is about the recorded step of a recipe. `ProofContext` knows the vectors of that step, and
writes the products of a statement in the products of the record; a claim then holds if its sides
are equal in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy as sp
import torch

from spherenorm import Recipe
from spherenorm_theory.claim import (
    Claim,
    Hypothesis,
    Induction,
    ProofKind,
    Refutation,
    Substitution,
    substitute,
)
from spherenorm_theory.hyper_parameters import resolve_recipe
from spherenorm_theory.norm_law import norm_growth
from spherenorm_theory.printing import words
from spherenorm_theory.step import Step, express_inner, products_of_record
from spherenorm_theory.symbols import Inner, Norm, Vector, exact, t

# The paper's notation

lr, beta, wd, rho, beta1 = (
    sp.Symbol(name, positive=True)
    for name in ("lr", "momentum", "weight_decay", "wd_ratio", "beta1")
)
w, g, m = map(Vector.atom, "wgm")
G, M, P, Q, S, W, W_NEXT = (Norm(name) ** 2 for name in ("g", "m", "p", "q", "s", "w", "w'"))
WM, WP, WS = (Inner("w", name) for name in "mps")

ZERO_INITIAL_MOMENTUM = "m_0 = 0"
CONSTANT = "lr, momentum constant"
WITHOUT_DECAY: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0}
"""Hyper-parameters of the paper's momentum, which has neither decay nor dampening."""


def scalar(name: str) -> sp.Symbol:
    """Return a real number that a statement names."""
    return sp.Symbol(name, real=True)


def momentum_of(step: Step) -> Vector:
    """Return the momentum p after the gradient entered."""
    p = step.states["m"]
    assert isinstance(p, Vector)
    return p


@dataclass(frozen=True)
class ProofContext:
    """A recorded step with names for the vectors and numbers of a statement.

    The vectors w, g, m and w' always have their names.

    Attributes:
        step: the step on symbols.
        vectors: further vectors by name; m' is the vector m one step later.
        basis: one of them, whose products replace those of the gradient.
        definitions: further names, and what they stand for in products.
        lemmas: values of symbols by earlier claims.
        hypotheses: assumptions in addition to those of the step.

    Example:
        >>> record = ProofContext.of("sgd", momentum=0.0)
        >>> claim = derived_from("the norm", sp.Eq(W_NEXT, W + lr**2 * G), record)
        >>> print(claim.holds, claim)
        True derived under {<w, g> = 0}: |w'|^2 = |w|^2 + lr^2 |g|^2 (the norm)
    """

    step: Step
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    basis: str = ""
    definitions: Substitution = field(default_factory=dict)
    lemmas: Substitution = field(default_factory=dict)
    hypotheses: tuple[Hypothesis, ...] = ()

    @staticmethod
    def of(recipe: str | Recipe, **hyper_parameters: Any) -> ProofContext:
        """Return the context of a recipe's step, without decay and dampening."""
        return ProofContext(norm_growth(recipe, **{**WITHOUT_DECAY, **hyper_parameters}).step)

    @staticmethod
    def of_momentum(recipe: str | Recipe) -> ProofContext:
        """Return the context of a recipe like SGD, in products of its momentum p.

        In the paper's notation, p_t = beta p_{t-1} + g_t, and m_t = p_{t-1} is the state before the
        step, so that m' = p.
        """
        context = ProofContext.of(recipe)
        p = momentum_of(context.step)
        return replace(context, vectors={"p": p, "m'": p}, basis="p")

    def substitution(self, *formulas: sp.Basic) -> dict[sp.Basic, sp.Basic]:
        """Return the norms, products and names of formulas in the products of the record.

        Products at the times t and t + 1 are those before and after the step.
        """
        vectors = {"w": w, "g": g, "m": m, "w'": self.step.weight, **self.vectors}
        formula = sp.Tuple(*formulas)
        values = products_of_record(self._inner, vectors, formula)
        for symbol in formula.free_symbols:
            if symbol in self.definitions:
                definition = self.definitions[symbol]
                values[symbol] = substitute(definition, self.substitution(definition))
            elif symbol.name in vectors:
                values[symbol] = vectors[symbol.name].formula
        return {x: substitute(value, self.lemmas) for x, value in values.items()}

    def _inner(self, a: Vector, b: Vector) -> sp.Expr:
        if not self.basis:
            return self.step.inner(a, b)
        return express_inner(self.step, self.vectors[self.basis], self.basis, a, b)

    def with_values(self, values: Substitution) -> ProofContext:
        """Return the context with values of symbols, such as lr_t for lr."""
        return replace(self, lemmas={**self.lemmas, **values})

    def with_lemmas(self, *lemmas: Claim) -> ProofContext:
        """Return the context in which earlier equations hold, with their hypotheses."""
        equations = {lemma.relation.lhs: lemma.relation.rhs for lemma in lemmas}
        assumed = [x for lemma in lemmas for x in lemma.hypotheses]
        return replace(
            self,
            lemmas={**self.lemmas, **equations},
            hypotheses=_distinct(*assumed, *self.hypotheses),
        )


def _distinct(*hypotheses: Hypothesis) -> tuple[Hypothesis, ...]:
    return tuple({words(hypothesis): hypothesis for hypothesis in hypotheses}.values())


# The named steps of a proof


def derived_from(
    about: str,
    relation: sp.Rel,
    record: ProofContext,
    *lemmas: Claim,
    difference: sp.Expr | None = None,
    kind: ProofKind | None = None,
) -> Claim:
    """Claim a relation that follows from the record of a step, and from earlier claims.

    Args:
        about: subject of the claim.
        relation: the relation.
        record: the recorded step.
        *lemmas: equations that were proved before.
        difference: the greater side minus the smaller one, for an inequality.
        kind: kind of the claim; by default that of an induction among the lemmas, else "derived".
    """
    context = record.with_lemmas(*lemmas)
    if kind is None:
        by_induction = any(lemma.kind is ProofKind.INDUCTION for lemma in lemmas)
        kind = ProofKind.INDUCTION if by_induction else ProofKind.DERIVED
    certificate = () if difference is None else (difference,)
    return Claim(
        about,
        relation,
        kind,
        context.substitution(relation, *certificate),
        difference,
        hypotheses=_distinct(*record.step.hypotheses, *context.hypotheses),
    )


def by_induction(
    about: str,
    relation: sp.Rel,
    record: ProofContext | Claim,
    *,
    start: Substitution,
    step: sp.Expr,
    assuming: tuple[Hypothesis, ...],
    difference: sp.Expr | None = None,
) -> Claim:
    """Claim a relation between quantities at time t, by induction over t.

    With D_t the difference of its sides, it shows D_0 = 0 and D_{t+1} = step D_t. For an inequality
    it shows D_{t+1} = step D_t + `difference`, where both are nonnegative.

    Args:
        about: subject of the claim.
        relation: the relation, in norms and products at time t.
        record: what gives these one step later: the recorded step, or a claim a' = f(a) for one
            product, which was derived from it.
        start: the values at time 0.
        step: the factor by which a step multiplies the difference of the sides.
        assuming: the hypotheses of the start, and those under which each step is alike.
        difference: what a step adds to the difference of the sides, for an inequality.
    """
    certificate = () if difference is None else (difference,)
    if isinstance(record, Claim):
        after = _recursion_of(record)
        hypotheses = _distinct(*assuming)
        substitution: Substitution = {}
    else:
        after = record.substitution(*(side.subs(t, t + 1) for side in relation.args))
        hypotheses = _distinct(*record.step.hypotheses, *assuming, *record.hypotheses)
        substitution = record.substitution(*certificate)
    induction = Induction(t, start, after, step)
    return Claim(
        about, relation, ProofKind.INDUCTION, substitution, difference, induction, hypotheses
    )


def _recursion_of(claim: Claim) -> Substitution:
    """Return {a_{t+1}: f(a_t)} from the claim a' = f(a) about one product."""
    product = claim.relation.lhs
    names = (product.a.rstrip("'"), product.b.rstrip("'"))
    label = sp.IndexedBase(Inner(*names))
    symbols = claim.relation.rhs.free_symbols
    at_t = {x: sp.IndexedBase(x)[t] for x in symbols if isinstance(x, (Norm, Inner))}
    return {label[t + 1]: claim.relation.rhs.xreplace(at_t)}


def refuted_by(
    about: str, relation: sp.Rel, at: Substitution, sides: tuple[sp.Expr, sp.Expr]
) -> Refutation:
    """Refute another reading of a statement.

    Args:
        about: subject of the reading.
        relation: the relation that is false.
        at: a counterexample: values of all symbols.
        sides: the values of the two sides there.
    """
    return Refutation(about, relation, at, sides)


def step_in_the_plane(
    recipe: str | Recipe, weight: list[int], grad: list[int], *momentum: list[int], **numbers: Any
) -> list[sp.Expr]:
    """Return w' by the rule's code in float64, from its first state or from a momentum.

    Args:
        recipe: the recipe.
        weight: the weight, two entries.
        grad: the gradient, two entries.
        *momentum: the momentum before the step; by default the rule's own start.
        **numbers: hyper-parameters.
    """
    rule = resolve_recipe(recipe)(**numbers)
    before, gradient, *buffers = (
        torch.tensor([x], dtype=torch.float64) for x in (weight, grad, *momentum)
    )
    state = {**rule.init(before), **dict(zip(rule.state_keys, buffers, strict=False))}
    new, _ = rule.step(before, gradient, state)
    return [exact(round(float(x), 12)) for x in new[0]]
