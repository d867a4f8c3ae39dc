"""All that a law says, as claims: relations that are decided, and printed as they are decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy as sp

from spherenorm_theory.algebra.claims import Claim, Hypothesis, Induction, Kind, positive_norms
from spherenorm_theory.algebra.statement import words
from spherenorm_theory.algebra.symbols import Inner, Norm, Vector, at, tidy
from spherenorm_theory.laws.split import CROSS, Split
from spherenorm_theory.laws.step import Step

t, k = sp.symbols("t k", integer=True, nonnegative=True)
w, s, y = sp.IndexedBase(Norm("w")), sp.IndexedBase(Norm("s")), sp.IndexedBase(CROSS)


def read_products(
    step: Step, vectors: Mapping[str, Vector], relation: sp.Basic
) -> dict[sp.Basic, sp.Basic]:
    """The meanings of a relation's products: of |a|^2 and <a, b>, or of these at t and t + 1.

    Args:
        step: of which the products are.
        vectors: by their names in the relation; a' is a at t + 1.
        relation: whose products are read; or several.
    """
    found: dict[sp.Basic, sp.Basic] = {}
    indexed = relation.atoms(sp.Indexed)
    for x in indexed or relation.atoms(Norm, Inner):
        label, later = (x.base.label, "'" * int(x.indices[0] == t + 1)) if indexed else (x, "")
        names = [name + later for name in (label.a, getattr(label, "b", label.a))]
        if all(name in vectors for name in names):
            value = step.inner(*(vectors[name] for name in names))
            key = x**2 if isinstance(label, Norm) else x
            found[key] = at(value, t) if indexed else value
    return found


def claims_of(law: Split) -> tuple[Claim, ...]:
    """The claims of a law, each with its hypotheses."""
    found = _of_a_held_norm(law) if law.constant else _of_a_drive(law)
    return tuple(replace(each, under=_hypotheses(law, each)) for each in found)


def _hypotheses(law: Split, claim: Claim) -> tuple[Hypothesis, ...]:
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
        return sp.Eq(w[t] ** 2, keep ** (2 * t) * w[0] ** 2 + past, evaluate=False)
    if law.growth is None:
        return None
    A, B = law.growth
    lemma = tidy(keep * B - A) == 0
    power = A ** (t - k) if lemma else keep * B * A ** (t - 1 - k)
    past = sp.Sum(power * s[k] ** 2, (k, 0, t - 1))
    after = keep**2 * w[t] ** 2 + s[t] ** 2 + sp.Mul(2, past, evaluate=False)
    return sp.Eq(w[t + 1] ** 2, after, evaluate=False)


def _derived(law: Split, about: str, left: sp.Expr, right: sp.Expr) -> Claim:
    """A claim that is read off the record of the step."""
    step, relation = law.step, sp.Eq(left, right, evaluate=False)
    states = {m: x for m, x in step.states.items() if isinstance(x, Vector)}
    vectors = {"w": Vector.atom("w"), "w'": step.weight, "s": law.drive}
    vectors |= {m: Vector.atom(m) for m in states} | {f"{m}'": x for m, x in states.items()}
    meanings = read_products(step, vectors, relation)
    if y[t + 1] in relation.atoms(sp.Indexed):
        # <w', s'> is the same share of <w', m'> as <w, s> of <w, m>.
        (unknown,) = law.unknowns
        after = step.inner(step.weight, step.states[unknown.b])
        meanings[y[t + 1]] = at(sp.cancel(law.cross / unknown) * after, t)
    meanings = {
        x: law.entered(_written(law, meaning) if x.is_Pow else meaning)
        for x, meaning in meanings.items()
    }
    return Claim(about, relation, Kind.DERIVED, meanings)


def _of_a_held_norm(law: Split) -> Iterator[Claim]:
    step, algebra, length = law.step, law.step.algebra, law.length
    assert length is not None
    yield _derived(law, "the norm", w[t + 1], at(length, t))
    if len(step.weight) == 1:
        for name in (n for n in step.weight if n in algebra.named):
            square = at(law.entered(sp.expand(algebra.square(name))), t)
            left = at(Norm(name), t) ** 2
            yield Claim(f"the norm of {name}", sp.Eq(left, square, evaluate=False), Kind.DERIVED,
                        {left: square})  # fmt: skip
    along = law.entered(step.inner(Vector.atom("w"), step.weight))
    yield _derived(law, "the turn", at(Inner("w", "w'"), t), at(along, t))


def _of_a_drive(law: Split) -> Iterator[Claim]:
    open_norm = bool(law.open_because)
    drift = 0 if law.cross == 0 else sp.Mul(2, law.keep, y[t], evaluate=False)
    after = law.keep**2 * w[t] ** 2 + s[t] ** 2 + drift
    norm = _derived(law, "the norm", w[t + 1] ** 2, after)
    yield replace(norm, kind=Kind.IDENTITY) if open_norm else norm
    # By the record: where <w, s> is 0, the step is orthogonal to the weight.
    yield _derived(law, "the cross term", y[t], at(law.cross, t))
    if (length := _known_length(law)) is not None:
        yield _derived(law, "the length of the step", s[t] ** 2, length)
    if law.growth is not None and law.cross != 0:
        A, B = law.growth
        after = sp.Add(A * y[t], B * s[t] ** 2, evaluate=False)
        yield _derived(law, "the recursion", y[t + 1], after)
    elif not open_norm:
        for unknown in sorted(law.unknowns, key=str):
            after = at(law.recursion[unknown], t)
            yield _derived(law, "the recursion", at(unknown, t + 1), after)
    closed = closed_form(law)
    if closed is not None:
        yield _by_induction(law, closed)


def _written(law: Split, x: sp.Expr) -> sp.Expr:
    """A squared norm at time t, with the known lengths of atoms written out."""
    for atom, made in reversed(law.step.algebra.opaque.items()):
        label = sp.IndexedBase(Norm(atom))[t]
        if made.square is not None and x.has(label) and not x.has(sp.Piecewise):
            x = x.subs(label, sp.sqrt(at(made.square, t)))
    return x


def _known_length(law: Split) -> sp.Expr | None:
    """|s|^2, where it is known whatever the gradient is: of a sign, a letter, a unit vector."""
    if len(law.drive) != 1:
        return None
    ((atom, factor),) = law.drive.items()
    algebra = law.step.algebra
    square = Norm(atom) ** 2 if atom in algebra.named else None
    if atom in algebra.opaque:
        square = algebra.opaque[atom].square
    if square is None:
        return None
    length = _written(law, at(tidy(factor**2 * square), t))
    unknown = {sp.IndexedBase(Norm(name))[t] for name in algebra.named}
    return None if length.free_symbols & unknown else length


def _by_induction(law: Split, closed: sp.Eq) -> Claim:
    """The closed form, carried over t by the record."""
    keep, (A, B) = law.keep, law.growth or (sp.S.Zero, sp.S.Zero)
    if law.cross == 0:
        meanings, start, A = {}, {}, keep**2
        after = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2}
    else:
        # Its cross term is (|w_{t+1}|^2 - keep^2 |w_t|^2 - |s_t|^2) / (2 keep) at each step.
        meanings = {w[t + 1] ** 2: keep**2 * w[t] ** 2 + s[t] ** 2 + 2 * keep * y[t]}
        start, after = {y[0]: sp.S.Zero}, {y[t + 1]: A * y[t] + B * s[t] ** 2}
    induction = Induction(t, start, after, A)
    return Claim("the norm at every step", closed, Kind.INDUCTION, meanings,
                 induction=induction, under=law.at_start)  # fmt: skip
