"""Statements that the paper leaves open, proved from recorded steps in the same way."""

from __future__ import annotations

from typing import Any

import sympy as sp

from spherenorm import Chain, Recipe, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.algebra import Claim, Induction, Kind, Proof, Refutation, Vector, trace
from spherenorm_theory.laws import (
    W_NEXT,
    OneStep,
    S,
    W,
    norm_growth,
    one_step,
    product,
    step_in_coordinates,
)
from spherenorm_theory.proofs._equilibria import (
    equilibria_of_the_literature,
    matched_decay,
    projected_buffer,
    ratio_laws,
)
from spherenorm_theory.proofs._notation import (
    FROM_REST,
    ORTHOGONAL,
    PLAIN,
    P,
    beta,
    claims,
    indexed,
    lr,
    m,
    scalar,
    squared,
    t,
    w,
)

__all__ = [
    "adam_can_shrink",
    "equilibria_of_the_literature",
    "matched_decay",
    "momentum_by_any_name",
    "nesterov_never_shrinks",
    "projected_buffer",
    "ratio_laws",
    "sphere_keeps_the_norm",
]

X, X_NEXT = product("w", "s"), product("w'", "s'")
MIXED = squared("p-sqrt(beta)*m")


def average_momentum(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with an exponential average for momentum."""
    return chain(r.ExponentialAverage(momentum), r.StepSize(lr))


def step_size_inside(lr: Scalar = 0.1, momentum: Scalar = 0.9) -> Chain:
    """SGD with the learning rate inside the momentum, as SGDG has it."""
    return chain(r.StepSize(lr), r.HeavyBall(momentum))


HEAVY_BALLS: dict[str, tuple[str | Recipe, dict[str, Any]]] = {
    "heavy ball": ("sgd", PLAIN),
    "dampened": ("sgd", {"weight_decay": 0.0}),
    "exponential average": (average_momentum, {}),
    "step size inside": (step_size_inside, {}),
}
"""Recipes with a heavy ball, and the hyper-parameters that are held."""


def momentum_by_any_name(*recipes: str | Recipe) -> Proof:
    """One law for all heavy balls: y_t = <w_t, s_t> follows y' = beta (y + |s|^2).

    So growth tends to (1 + beta) / (1 - beta) sum |s|^2. Dampening, averaging and the place of the
    step size change the step s, not the law in s: summed over t < T,
    (1 - beta) sum y_t = beta sum |s_t|^2 - y_T, and y_T -> 0 where the steps do.
    """
    carried = sp.Eq(X_NEXT, beta * (X + S))
    shown: list[Claim] = []
    for name, (recipe, given) in (
        {str(each): (each, {}) for each in recipes} or HEAVY_BALLS
    ).items():
        law = norm_growth(recipe, **given)
        (unknown,) = law.cross.free_symbols & {*law.recursion}
        per_buffer = law.cross / unknown
        record = {X_NEXT: per_buffer * law.recursion[unknown], X: law.cross}
        start = one_step(law.step.traced, first=True)
        moved, buffer = start.weight - w, start.states[law.step.buffers[0]]
        first = {
            X_NEXT: per_buffer * start.inner(start.weight, buffer),
            S: start.inner(moved, moved),
        }
        shown += claims(Kind.DERIVED, record, {name: carried})
        shown += claims(Kind.DERIVED, first, {f"{name}, first step": sp.Eq(X_NEXT, beta * S)})
    return Proof(
        "Any heavy ball",
        (*shown, *_summed()),
        under=(ORTHOGONAL, "lr and momentum constant", "no decay", "momentum in (0, 1)"),
        remark="dampening, an undamped first step included, an exponential average, a step size "
        "before or after the momentum",
    )


def _summed() -> tuple[Claim, ...]:
    """The sum of y' = beta (y + |s|^2) over the steps, and the growth that it makes."""
    X_t, S_t = indexed(X), indexed(S)
    i = sp.Symbol("k", integer=True, nonnegative=True)
    past, moved = (sp.Sum(each[i], (i, 0, t - 1)) for each in (X_t, S_t))
    total = sp.Eq((1 - beta) * past, beta * moved - X_t[t])
    step = Induction(t, {X_t[0]: 0}, {X_t[t + 1]: beta * (X_t[t] + S_t[t])})
    growth = scalar("growth/Sum(|s|^2)")
    at_rest = total.rhs.coeff(moved) / total.lhs.coeff(past)  # where y_T = 0
    return (
        Claim("the sum over the steps", total, Kind.INDUCTION, induction=step),
        Claim(
            "the growth ratio, once the cross term is gone",
            sp.Eq(growth, (1 + beta) / (1 - beta)),
            Kind.DERIVED,
            # |w'|^2 - |w|^2 = |s|^2 + 2 <w, s>
            {growth: 1 + 2 * at_rest},
        ),
    )


def nesterov_never_shrinks(recipe: str | Recipe = "sgd") -> Proof:
    """Nesterov momentum never shrinks the norm: <w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step.

    |w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>. With p = m' and
    V = <w, m> + (lr sqrt(beta) / 2) |m|^2,

        V' = beta V - lr ((1 + beta - sqrt(beta)) |p|^2 + (sqrt(beta) / 2) |p - sqrt(beta) m|^2),

    so V <= 0 by induction from V = 0.
    """
    step = norm_growth(recipe, nesterov=True, **PLAIN).step
    drive, bounded = step.weight - w, _radial_bound(step)
    Y, M = product("w", "m"), squared("m")
    slack = sp.Symbol("slack", nonnegative=True)
    worst = bounded.relation.rhs.xreplace({indexed(M)[t]: M}) - slack
    grown = S - 2 * lr * beta**2 * Y
    least = {W_NEXT: (W + grown).xreplace({Y: worst})}
    gain = S + lr**2 * beta ** sp.Rational(5, 2) * M + 2 * lr * beta**2 * slack
    record = {
        X: step.inner(w, drive),
        W_NEXT: step.inner(step.weight, step.weight),
        S: step.inner(drive, drive),
    }
    statements = {
        "the cross term": sp.Eq(X, -lr * beta**2 * Y),
        "the norm": sp.Eq(W_NEXT, W + grown),
    }
    return Proof(
        "Nesterov",
        (
            *claims(Kind.INDUCTION, least, {"the norm never shrinks": (sp.Gt(W_NEXT, W), gain)}),
            *claims(Kind.DERIVED, record, statements),
            bounded,
        ),
        under=(*FROM_REST, "lr and momentum constant", "no decay, no dampening"),
        remark="the paper says its observations apply to Nesterov momentum; this is the proof",
    )


def _radial_bound(step: OneStep) -> Claim:
    """<w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step, by induction."""
    p, root = step.states["m"], sp.sqrt(beta)
    assert isinstance(p, Vector)
    Y, M = product("w", "m"), squared("m")
    Y_t, M_t = indexed(Y), indexed(M)
    now = {Y: Y_t[t], M: M_t[t]}
    after = {Y_t[t + 1]: step.inner(step.weight, p), M_t[t + 1]: step.inner(p, p)}
    mixed = p - m * root
    certain = (root - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4)
    return Claim(
        "the bound on the momentum's radial part",
        sp.Le(Y_t[t], -lr * root / 2 * M_t[t]),
        Kind.INDUCTION,
        {P: step.inner(p, p).xreplace(now), MIXED: step.inner(mixed, mixed).xreplace(now)},
        difference=lr * (certain * P + root / 2 * MIXED),
        induction=Induction(
            t,
            {Y_t[0]: 0, M_t[0]: 0},
            {name: value.xreplace(now) for name, value in after.items()},
            factor=beta,
        ),
    )


def adam_can_shrink(recipe: str | Recipe = "adam", projected: str | Recipe = "adamp") -> Proof:
    """Adam's first step can shrink the norm.

    Its step is not orthogonal to w, even where the gradient is. A projection makes it so.
    """
    traced = trace(recipe, dimension=2, weight_decay=0.0, eps=0.0)
    law = norm_growth(recipe, weight_decay=0.0)
    drive = law.drive
    split = {
        W_NEXT: law.norm_after,
        S: law.step.inner(drive, drive),
        X: law.step.inner(w, drive),
    }
    rate = sp.Rational(1, 10)
    cases = ([1, 2], [-2, 1]), ([2, 1], [-1, 2])  # weight, gradient
    shrinking, growing = (_first_step(traced, *case) for case in cases)
    length = sp.Integer(sum(c**2 for c in cases[0][0]))
    falls, rises = (f"a first step from w = {w}, with g = {g}" for w, g in cases)
    turned = {falls: sp.Eq(X, -lr), "the gradient is orthogonal there": ORTHOGONAL}
    kept = {X: norm_growth(projected, weight_decay=0.0).cross}
    falling, orthogonal = claims(Kind.DERIVED, shrinking, turned)
    return Proof(
        "Adam",
        (
            *claims(Kind.IDENTITY, split, {"one step": sp.Eq(W_NEXT, W + S + 2 * X)}),
            falling,
            *claims(Kind.DERIVED, growing, {rises: sp.Eq(X, lr)}),
            orthogonal,
            *claims(Kind.DERIVED, kept, {"with the projection": sp.Eq(X, 0)}),
        ),
        (
            Refutation(
                '"our observations are also applicable to ... Adam": the norm grows',
                sp.Ge(W_NEXT, W),
                {W: length, lr: rate, W_NEXT: shrinking[W_NEXT].subs(lr, rate)},
                (sp.Rational(241, 50), sp.Integer(5)),
            ),
        ),
        under=("no decay",),
        verdict="a tendency, no law: the sign of Adam's cross term is open",
    )  # fmt: skip


def _first_step(traced: Any, weight: list[int], grad: list[int]) -> dict[sp.Basic, sp.Expr]:
    """|w'|^2, <w, s> and <w, g> of a first step in the plane."""
    new, _, _ = step_in_coordinates(traced, [*map(sp.Integer, weight)], [*map(sp.Integer, grad)])
    drive = [after - before for after, before in zip(new[0], weight, strict=True)]
    pairs = {"drive": zip(weight, drive, strict=True), "grad": zip(weight, grad, strict=True)}
    along, orthogonal = (sp.simplify(sum(a * b for a, b in pair)) for pair in pairs.values())
    norm = sp.simplify(sum(c**2 for c in new[0]))
    return {W_NEXT: norm, X: along, sp.Symbol("<w,g>"): orthogonal}


def sphere_keeps_the_norm(*recipes: str | Recipe) -> Proof:
    """On the sphere the norm is constant, for any buffer, and a tangent buffer stays tangent.

    So that a buffer, which is 0 at the start, is tangent from the start on.
    """
    X_next = product("w'", "m'")
    shown: list[Claim] = []
    for recipe in recipes or ("sgdg", "adamg"):
        law = norm_growth(recipe)
        norm = {f"{law.name}, norm": sp.Eq(W_NEXT, W)}
        shown += claims(Kind.DERIVED, {W_NEXT: law.norm_after}, norm)
        step = one_step(law.step.traced, tangent=True)
        tangent = sp.Eq(X_next, 0)
        for buffer in step.buffers:
            record = {X_next: step.inner(step.weight, step.states[buffer])}
            about, under = f"{law.name}, buffer", (sp.Eq(sp.Symbol("<w,m>"), 0),)
            shown.append(Claim(about, tangent, Kind.INDUCTION, record, under=under))
    return Proof(
        "On the sphere",
        tuple(shown),
        remark="exponential map and parallel transport, clip or not; a buffer of zeros is tangent",
    )
