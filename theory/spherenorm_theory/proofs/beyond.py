"""Statements that the paper leaves open, proved from recorded steps in the same way."""

from __future__ import annotations

from typing import Any

import sympy as sp
import torch

from spherenorm import Chain, Recipe, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.algebra.claims import Claim, Induction, Kind, Proof, Refutation, read_as
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe
from spherenorm_theory.algebra.symbols import Inner, Norm, Vector
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.step import Step, one_step
from spherenorm_theory.proofs.equilibria import (
    equilibria_of_the_literature,
    matched_decay,
    ratio_laws,
)
from spherenorm_theory.proofs.notation import (
    AT_REST,
    CONSTANT,
    PLAIN,
    W_NEXT,
    OverTime,
    P,
    S,
    S_t,
    W,
    beta,
    claims,
    indexed,
    lr,
    m,
    of_float,
    scalar,
    t,
    w,
)

__all__ = [
    "adam_can_shrink",
    "equilibria_of_the_literature",
    "matched_decay",
    "momentum_by_any_name",
    "nesterov_never_shrinks",
    "ratio_laws",
    "sphere_keeps_the_norm",
]

X, X_NEXT = Inner("w", "s"), Inner("w'", "s'")
FROM_REST = (AT_REST, CONSTANT)


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
        under = (*law.step.hypotheses, CONSTANT)
        shown += claims(Kind.DERIVED, record, {name: carried}, under)
    return Proof(
        "Any heavy ball",
        (*shown, *_summed()),
        remark="dampening, an exponential average, a step size before or after the momentum",
    )


def _summed() -> tuple[Claim, ...]:
    """The sum of y' = beta (y + |s|^2) over the steps, and the growth that it makes."""
    X_t = indexed(X)
    i = sp.Symbol("k", integer=True, nonnegative=True)
    past, moved = sp.Sum(X_t[i], (i, 0, t - 1)), sp.Sum(S_t[i], (i, 0, t - 1))
    total = sp.Eq((1 - beta) * past, beta * moved - X_t[t])
    step = Induction(t, {X_t[0]: 0}, {X_t[t + 1]: beta * (X_t[t] + S_t[t])})
    growth = scalar("growth/Sum(|s|^2)")
    at_rest = total.rhs.coeff(moved) / total.lhs.coeff(past)  # where y_T = 0
    expected = sp.Eq(growth, (1 + beta) / (1 - beta))
    # |w'|^2 - |w|^2 = |s|^2 + 2 <w, s>
    ratio = {growth: 1 + 2 * at_rest}
    about = "the growth ratio, once the cross term is gone"
    return (
        Claim("the sum over the steps", total, Kind.INDUCTION, induction=step, under=FROM_REST),
        Claim(about, expected, Kind.DERIVED, ratio),
    )


def nesterov_never_shrinks(recipe: str | Recipe = "sgd") -> Proof:
    """Nesterov momentum never shrinks the norm: <w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step.

    |w'|^2 = |w|^2 + |s|^2 - 2 lr beta^2 <w, m>. With p = m', r = p - sqrt(beta) m and
    V = <w, m> + (lr sqrt(beta) / 2) |m|^2,

        V' = beta V - lr ((1 + beta - sqrt(beta)) |p|^2 + (sqrt(beta) / 2) |r|^2),

    so V <= 0 by induction from V = 0.
    """
    step = norm_growth(recipe, nesterov=True, **PLAIN).step
    drive, bounded = step.weight - w, _radial_bound(step)
    Y, M = Inner("w", "m"), Norm("m") ** 2
    slack = sp.Symbol("slack", nonnegative=True)
    worst = read_as(bounded.relation.rhs, {OverTime("m")[t]: M}) - slack
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
    shrinks = {"the norm never shrinks": (sp.Gt(W_NEXT, W), gain)}
    return Proof(
        "Nesterov",
        (
            *claims(Kind.INDUCTION, least, shrinks, bounded.under),
            *claims(Kind.DERIVED, record, statements, step.hypotheses),
            bounded,
        ),
        remark="the paper says its observations apply to Nesterov momentum; this is the proof",
    )


def _radial_bound(step: Step) -> Claim:
    """<w, m> <= -(lr sqrt(beta) / 2) |m|^2 at every step, by induction."""
    p, root = step.states["m"], sp.sqrt(beta)
    assert isinstance(p, Vector)
    Y, M = Inner("w", "m"), Norm("m") ** 2
    Y_t, M_t = indexed(Y), OverTime("m")
    now = {Y: Y_t[t], M: M_t[t]}
    after = {Y_t[t + 1]: step.inner(step.weight, p), M_t[t + 1]: step.inner(p, p)}
    mixed = p - m * root
    certain = (root - sp.Rational(1, 2)) ** 2 + sp.Rational(3, 4)
    rest = Norm("r") ** 2  # r = p - sqrt(beta) m
    return Claim(
        "the bound on the momentum's radial part, with r = p - sqrt(beta) m",
        sp.Le(Y_t[t], -lr * root / 2 * M_t[t]),
        Kind.INDUCTION,
        {P: read_as(step.inner(p, p), now), rest: read_as(step.inner(mixed, mixed), now)},
        difference=lr * (certain * P + root / 2 * rest),
        induction=Induction(
            t,
            {Y_t[0]: 0, M_t[0]: 0},
            {name: read_as(value, now) for name, value in after.items()},
            factor=beta,
        ),
        under=(*step.hypotheses, *FROM_REST),
    )


RATE = sp.Rational(1, 10)


def adam_can_shrink(recipe: str | Recipe = "adam", projected: str | Recipe = "adamp") -> Proof:
    """Adam's first step can shrink the norm.

    Its step is not orthogonal to w, even where the gradient is. A projection makes it so. The paper
    remarks that its observations apply to Adam: as a tendency they may, as a law they do not.
    """
    law = norm_growth(recipe, weight_decay=0.0)
    split = {
        W_NEXT: law.step.inner(law.step.weight, law.step.weight),
        S: law.step.inner(law.drive, law.drive),
        X: law.step.inner(w, law.drive),
    }
    cases = ([1, 2], [-2, 1]), ([2, 1], [-1, 2])  # weight, gradient
    shrinking, growing = (_first_step(recipe, *case) for case in cases)
    length = sp.Integer(sum(c**2 for c in cases[0][0]))
    falls, rises = (f"a first step from w = {a}, with g = {b}, lr = 1/10" for a, b in cases)
    kept = norm_growth(projected, weight_decay=0.0)
    falling = {falls: sp.Eq(X, -lr), "the gradient is orthogonal there": sp.Eq(Inner("w", "g"), 0)}
    return Proof(
        "Adam",
        (
            *claims(Kind.IDENTITY, split, {"one step": sp.Eq(W_NEXT, W + S + 2 * X)}),
            *claims(Kind.DERIVED, shrinking, falling),
            *claims(Kind.DERIVED, growing, {rises: sp.Eq(X, lr)}),
            *claims(Kind.DERIVED, {X: kept.cross}, {"with the projection": sp.Eq(X, 0)},
                    kept.hypotheses),
        ),
        (
            Refutation(
                "a step of Adam grows the norm",
                sp.Ge(W_NEXT, W),
                {W: length, lr: RATE, W_NEXT: shrinking[W_NEXT]},
                (sp.Rational(241, 50), sp.Integer(5)),
            ),
        ),
        remark="a tendency, no law: the sign of Adam's cross term is open",
    )  # fmt: skip


def _first_step(
    recipe: str | Recipe, weight: list[int], grad: list[int]
) -> dict[sp.Basic, sp.Expr]:
    """|w'|^2, <w, s> and <w, g> of a first step of the code in the plane, at lr = 1/10."""
    rule = resolve_recipe(recipe)(lr=float(RATE), eps=0.0, weight_decay=0.0)
    before, gradient = (torch.tensor([x], dtype=torch.float64) for x in (weight, grad))
    new, _ = rule.step(before, gradient, rule.init(before))
    along, orthogonal = (before * (new - before)).sum(), (before * gradient).sum()
    return {
        W_NEXT: of_float(new.square().sum()),
        X: of_float(along),
        Inner("w", "g"): of_float(orthogonal),
        lr: RATE,
    }


def sphere_keeps_the_norm(*recipes: str | Recipe) -> Proof:
    """On the sphere the norm is constant, for any buffer, and a tangent buffer stays tangent.

    So that a buffer, which is 0 at the start, is tangent from the start on.
    """
    X_next = Inner("w'", "m'")
    shown: list[Claim] = []
    for recipe in recipes or ("sgdg", "adamg"):
        law = norm_growth(recipe)
        plain = law.step
        norm = {f"{law.name}, norm": sp.Eq(W_NEXT, W)}
        squared = {W_NEXT: plain.inner(plain.weight, plain.weight)}
        shown += claims(Kind.DERIVED, squared, norm, plain.hypotheses)
        tangent = tuple(("w", each) for each in plain.buffers)
        step = one_step(plain.traced, orthogonal=tangent)
        for buffer in step.buffers:
            after = step.states[buffer]
            assert isinstance(after, Vector)
            record = {X_next: step.inner(step.weight, after)}
            about, under = f"{law.name}, buffer", (*step.hypotheses, AT_REST)
            shown.append(Claim(about, sp.Eq(X_next, 0), Kind.INDUCTION, record, under=under))
    return Proof(
        "On the sphere",
        tuple(shown),
        remark="exponential map and parallel transport, clip or not; a buffer of zeros is tangent",
    )
