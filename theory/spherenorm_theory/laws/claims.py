"""All that a law says, as claims: relations that are decided, and printed as they are decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sympy as sp

from spherenorm_theory.algebra.claims import Claim, Induction, Kind, positive_norms
from spherenorm_theory.algebra.statement import words
from spherenorm_theory.algebra.symbols import Inner, Norm, Vector, at, tidy
from spherenorm_theory.laws.split import CROSS, Split
from spherenorm_theory.laws.step import S

t, k = sp.symbols("t k", integer=True, nonnegative=True)
w, s, y = sp.IndexedBase(Norm("w")), sp.IndexedBase(Norm("s")), sp.IndexedBase(CROSS)


def claims_of(law: Split) -> tuple[Claim, ...]:
    """The claims of a law, each with its hypotheses."""
    found = _of_a_held_norm(law) if law.constant else _of_a_drive(law)
    return tuple(
        replace(
            each,
            meanings={x: law.entered(meaning) for x, meaning in each.meanings.items()},
            under=_hypotheses(law, each),
        )
        for each in found
    )


def _hypotheses(law: Split, claim: Claim) -> tuple[Any, ...]:
    """Those of the reading, the norms that the claim divides by, and its own; each once."""
    divided = positive_norms(claim.relation.rhs, *claim.meanings.values())
    under = (*map(law.entered, law.step.hypotheses), *divided, *claim.under)
    return tuple({words(each): each for each in under}.values())


def closed_form(law: Split) -> sp.Eq | None:
    """|w_{t+1}|^2 as a sum over the steps before; |w_t|^2 where the cross term is 0; or None."""
    keep = law.keep
    if law.constant:
        return None
    if law.cross == 0:
        if not keep.free_symbols <= {*law.step.traced.symbols.values()}:
            return None
        past = sp.Sum(keep ** (2 * (t - 1 - k)) * s[k] ** 2, (k, 0, t - 1))
        return _equal(w[t] ** 2, keep ** (2 * t) * w[0] ** 2 + past)
    if law.growth is None:
        return None
    A, B = law.growth
    lemma = tidy(keep * B - A) == 0
    power = A ** (t - k) if lemma else keep * B * A ** (t - 1 - k)
    past = sp.Sum(power * s[k] ** 2, (k, 0, t - 1))
    after = keep**2 * w[t] ** 2 + s[t] ** 2 + sp.Mul(2, past, evaluate=False)
    return _equal(w[t + 1] ** 2, after)


def _equal(left: sp.Expr, right: sp.Expr) -> sp.Eq:
    return sp.Eq(left, right, evaluate=False)


def _derived(about: str, left: sp.Expr, right: sp.Expr, meanings: Any) -> Claim:
    return Claim(about, _equal(left, right), Kind.DERIVED, meanings)


def _of_a_held_norm(law: Split) -> Iterator[Claim]:
    step, algebra, length = law.step, law.step.algebra, law.length
    assert length is not None
    squared = {w[t + 1] ** 2: at(_written(law, step.inner(step.weight, step.weight)), t)}
    yield _derived("the norm", w[t + 1], at(length, t), squared)
    for name in (n for n in step.weight if n in algebra.named and len(step.weight) == 1):
        left, square = at(Norm(name), t) ** 2, at(sp.expand(algebra.square(name)), t)
        yield _derived(f"the norm of {name}", left, square, {left: square})
    turned, along = at(Inner("w", "w'"), t), at(step.inner(Vector.atom("w"), step.weight), t)
    yield _derived("the turn", turned, along, {turned: along})


def _of_a_drive(law: Split) -> Iterator[Claim]:
    step, open_norm = law.step, bool(law.open_because)
    drift = 0 if law.cross == 0 else sp.Mul(2, law.keep, y[t], evaluate=False)
    drive, after = step.inner(law.drive, law.drive), step.inner(step.weight, step.weight)
    meanings = {w[t + 1] ** 2: at(after, t), s[t] ** 2: at(drive, t)}
    meanings |= {} if law.cross == 0 else {y[t]: at(law.cross, t)}
    norm = _derived(
        "the norm", w[t + 1] ** 2, law.keep**2 * w[t] ** 2 + s[t] ** 2 + drift, meanings
    )
    yield replace(norm, kind=Kind.IDENTITY) if open_norm else norm
    # By the record: where <w, s> is 0, the step is orthogonal to the weight.
    cross = at(step.inner(Vector.atom("w"), law.drive), t)
    yield _derived("the cross term", y[t], at(law.cross, t), {y[t]: cross})
    yield from _known_length(law)
    if law.growth is not None and law.cross != 0:
        yield _growth(law, *law.growth)
    elif not open_norm:
        for unknown in sorted(law.unknowns, key=str):
            yield _recursion(law, unknown)
    closed = closed_form(law)
    if closed is not None:
        yield _by_induction(law, closed)


def _written(law: Split, x: sp.Expr) -> sp.Expr:
    """A formula with the known lengths of atoms written out."""
    for atom, made in law.step.algebra.opaque.items():
        if made.square is not None and x.has(Norm(atom)) and not x.has(sp.Piecewise):
            x = x.subs(Norm(atom), sp.sqrt(made.square))
    return x


def _known_length(law: Split) -> Iterator[Claim]:
    """|s|, where it is known whatever the gradient is: of a sign, a letter, a unit vector."""
    if len(law.drive) != 1:
        return
    ((atom, factor),) = law.drive.items()
    algebra, square = law.step.algebra, None
    if atom in algebra.named:
        square = Norm(atom) ** 2
    elif atom in algebra.opaque and algebra.opaque[atom].square is not None:
        square = _written(law, algebra.opaque[atom].square)
    if square is None:
        return
    length = tidy(factor**2 * square)
    if not length.free_symbols & {*map(Norm, algebra.named)}:
        shown = at(length, t)
        yield _derived("the length of the step", at(S, t), shown, {at(S, t): shown})


def _recursion(law: Split, unknown: Any) -> Claim:
    """<w', m'> by the products of the step."""
    step, after = law.step, law.recursion[unknown]
    meanings = {at(unknown, t + 1): at(step.inner(step.weight, step.states[unknown.b]), t)}
    for each in after.atoms(Norm, Inner):
        names = {each.a, getattr(each, "b", each.a)}
        if "s" in names:
            (other,) = names - {"s"} or {None}
            vector = law.drive if other is None else Vector.atom(other)
            square = each**2 if isinstance(each, Norm) else each
            meanings[at(square, t)] = at(step.inner(vector, law.drive), t)
    return _derived("the recursion", at(unknown, t + 1), at(after, t), meanings)


def _growth(law: Split, A: sp.Expr, B: sp.Expr) -> Claim:
    """<w', s'> = A <w, s> + B |s|^2, from the recursion of the buffer."""
    step, (unknown,) = law.step, law.unknowns
    carried = sp.cancel(law.cross / unknown) * step.inner(step.weight, step.states[unknown.b])
    meanings = {
        y[t + 1]: at(carried, t),
        y[t]: at(law.cross, t),
        s[t] ** 2: at(step.inner(law.drive, law.drive), t),
    }
    after = sp.Add(A * y[t], B * s[t] ** 2, evaluate=False)
    return _derived("the recursion", y[t + 1], after, meanings)


def _by_induction(law: Split, closed: sp.Eq) -> Claim:
    """The closed form, carried over t by the record."""
    keep = law.keep
    if law.cross == 0:
        meanings, after, A = {}, {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2}, keep**2
        start = {}
    else:
        A, B = law.growth or (sp.S.Zero, sp.S.Zero)
        # Its cross term is (|w_{t+1}|^2 - keep^2 |w_t|^2 - |s_t|^2) / (2 keep) at each step.
        meanings = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2 + 2 * keep * y[t]}
        start, after = {y[0]: sp.S.Zero}, {y[t + 1]: A * y[t] + B * s[t] ** 2}
    induction = Induction(t, start, after, A)
    return Claim(
        "the norm at every step",
        closed,
        Kind.INDUCTION,
        meanings,
        induction=induction,
        under=law.at_start,
    )
