"""Every number, sign and relation of every statement is changed: its proof must then fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import sympy as sp

from spherenorm_theory import Proof
from spherenorm_theory.claim import Claim, Refutation

RELATIONS = sp.Eq, sp.Ne, sp.Lt, sp.Le, sp.Gt, sp.Ge
CONTRARY = {
    sp.Eq: [sp.Ne],
    sp.Ne: [sp.Eq],
    sp.Lt: [sp.Ge, sp.Gt],
    sp.Le: [sp.Ge, sp.Gt],
    sp.Gt: [sp.Le, sp.Lt],
    sp.Ge: [sp.Le, sp.Lt],
}
"""The relations that are false where the key is true of two different numbers, and the negation."""


def changes(expression: sp.Basic) -> Iterator[sp.Basic]:
    """The expression with one number or one sign changed, or one summand or factor left out."""
    if isinstance(expression, sp.Number):
        if expression.is_finite:
            yield from {expression + 1, 2 * expression, -expression} - {expression}
        return
    if isinstance(expression, sp.Sum | sp.Add | sp.Mul):
        yield -expression
    if isinstance(expression, sp.Add | sp.Mul):
        for n, part in enumerate(expression.args):
            other_parts = expression.args[:n] + expression.args[n + 1 :]
            yield expression.func(*other_parts)
            if expression.is_Add:
                yield expression.func(-part, *other_parts)
    if isinstance(expression, sp.IndexedBase) or not isinstance(expression, sp.Basic):
        return
    for n, part in enumerate(expression.args):
        for changed in changes(part):
            with suppress(ValueError):  # no formula, such as a derivative of order -1
                yield expression.func(*expression.args[:n], changed, *expression.args[n + 1 :])


def mutants(statement: Claim | Refutation) -> Iterator[Claim | Refutation]:
    """Claims with a changed statement; refutations with a changed statement or changed values."""
    relation = statement.relation
    sides = relation.lhs, relation.rhs
    kind = next(kind for kind in RELATIONS if isinstance(relation, kind))
    other_kinds = CONTRARY[kind] if isinstance(statement, Refutation) else {*RELATIONS} - {kind}
    changed = [other_kind(*sides, evaluate=False) for other_kind in other_kinds]
    changed += [kind(x, sides[1], evaluate=False) for x in changes(sides[0])]
    changed += [kind(sides[0], x, evaluate=False) for x in changes(sides[1])]
    relations = {relation}
    for mutant in changed:
        if mutant not in relations and not mutant.has(sp.nan, sp.zoo):
            relations.add(mutant)
            yield replace(statement, relation=mutant)
    if isinstance(statement, Refutation):
        lhs, rhs = statement.sides
        yield from (replace(statement, sides=(value, rhs)) for value in changes(lhs))
        yield from (replace(statement, sides=(lhs, value)) for value in changes(rhs))


def survivors(proof: Proof) -> Iterator[tuple[Claim | Refutation, Claim | Refutation, bool]]:
    """Each claim with each of its mutants, and True where the mutant still holds."""
    for statement in (*proof.claims, *proof.counterexamples):
        for mutant in mutants(statement):
            yield statement, mutant, mutant.holds and not _same(statement.relation, mutant.relation)


def _same(a: sp.Rel, b: sp.Rel) -> bool:
    """True if the two are one statement: (x - 1)^2 and (1 - x)^2, or the slopes of x and x + 1."""
    pairs = zip((a.lhs, a.rhs), (b.lhs, b.rhs), strict=True)
    return a.func == b.func and all(sp.expand((x - y).doit()) == 0 for x, y in pairs)
