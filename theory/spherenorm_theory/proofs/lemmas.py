"""The statements of the paper, each proved from the recorded step of a recipe.

Every function takes the recipe that it is about, so that a recipe with a fault can be shown to
fail. Notation: p_t is the momentum after the gradient of step t entered, and q_t is its projection.

Source: Heo et al., *AdamP*, ICLR 2021, arXiv:2006.08217.
"""

from __future__ import annotations

import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import Claim, Induction, Kind, Proof, Refutation
from spherenorm_theory.laws import W_NEXT, W, norm_growth, product
from spherenorm_theory.proofs._corollary_2_3 import corollary_2_3
from spherenorm_theory.proofs._notation import (
    FROM_REST,
    ORTHOGONAL,
    PLAIN,
    G,
    MomentumStep,
    P,
    W_t,
    X_t,
    beta,
    claims,
    g,
    indexed,
    k,
    lr,
    read_momentum,
    scalar,
    squared,
    t,
    w,
)
from spherenorm_theory.proofs._projection import equation_14, proposition_3_1

__all__ = [
    "corollary_2_3",
    "effective_step",
    "equation_14",
    "lemma_2_1",
    "lemma_2_2",
    "lemma_2_2_scheduled",
    "proposition_3_1",
]

P_t, lr_t, M_t = indexed(P), indexed(lr), indexed(product("w", "m"))


def lemma_2_1(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.1: gradient descent grows the norm by the squared step.

    |w'|^2 = |w|^2 + lr^2 |g|^2.
    """
    step = norm_growth(recipe, momentum=0.0, **PLAIN).step
    record = {W_NEXT: step.inner(step.weight, step.weight), G: step.inner(g, g)}
    grown = lr**2 * G
    statements = {
        "the norm after a step": sp.Eq(W_NEXT, W + grown),
        "monotone": (sp.Gt(W_NEXT, W), grown),
    }
    return Proof(
        "Lemma 2.1",
        claims(Kind.DERIVED, record, statements),
        under=("gradient descent", ORTHOGONAL, sp.Ne(sp.Symbol("g"), 0)),
    )


def lemma_2_2(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2: with momentum, |w_{t+1}|^2 = |w_t|^2 + lr^2 P_t + 2 lr^2 sum_{k<t} beta^(t-k) P_k.

    As in the paper, it remains to prove <w_t, p_t> = -lr sum_{k<t} beta^(t-k) P_k, by induction for
    symbolic t.
    """
    momentum = read_momentum(recipe)
    past = sp.Sum(beta ** (t - k) * P_t[k], (k, 0, t - 1))
    cross = _cross_term(momentum, past)
    grown = {W_t[t + 1]: _after(momentum, cross.relation.rhs / momentum.share)}
    term = 2 * lr**2 * past
    lemma = sp.Eq(W_t[t + 1], W_t[t] + lr**2 * P_t[t] + term)
    faster = sp.Ge(W_t[t + 1], W_t[t] + lr**2 * P_t[t])
    X = product("w", "p")
    one = sp.Eq(W_NEXT, W + lr**2 * P - 2 * lr * X)
    return Proof(
        "Lemma 2.2",
        (
            Claim("the norm at every step", lemma, Kind.INDUCTION, grown),
            Claim("one step", one, Kind.DERIVED, {W_NEXT: momentum.squared, X: momentum.cross}),
            cross,
            Claim("momentum adds growth", faster, Kind.INDUCTION, grown, difference=term),
        ),
        under=(*FROM_REST, "lr and momentum constant", "no decay, no dampening"),
    )


def _cross_term(momentum: MomentumStep, past: sp.Expr) -> Claim:
    """<w_t, p_t>, by induction from the first step on."""
    share = momentum.share
    after = share * momentum.cross_after.xreplace({momentum.X: X_t[t] / share, P: P_t[t]})
    return Claim(
        "the cross term",
        sp.Eq(X_t[t], -lr * past),
        Kind.INDUCTION,
        induction=Induction(
            t,
            start={X_t[0]: momentum.first.inner(w, momentum.first.states["m"])},
            after={X_t[t + 1]: after},
            factor=sp.diff(after, X_t[t]),
        ),
    )


def _after(momentum: MomentumStep, cross: sp.Expr, rate: sp.Expr = lr) -> sp.Expr:
    """|w_{t+1}|^2 with `cross` for <w_t, m_t>."""
    return momentum.squared.xreplace({W: W_t[t], P: P_t[t], momentum.X: cross, lr: rate})


def lemma_2_2_scheduled(recipe: str | Recipe = "sgd") -> Proof:
    """Lemma 2.2 under a learning-rate schedule.

    The paper's experiments use one, and its lemma leaves it out: each old term keeps the rate of
    its own step.
    """
    momentum = read_momentum(recipe)
    carried = momentum.cross_after.xreplace({momentum.X: M_t[t], P: P_t[t], lr: lr_t[t]})
    cross = Claim(
        "the cross term",
        sp.Eq(M_t[t], -sp.Sum(lr_t[k] * beta ** (t - 1 - k) * P_t[k], (k, 0, t - 1))),
        Kind.INDUCTION,
        induction=Induction(t, {M_t[0]: 0}, {M_t[t + 1]: carried}, factor=sp.diff(carried, M_t[t])),
    )
    past = sp.Sum(lr_t[k] * beta ** (t - k) * P_t[k], (k, 0, t - 1))
    lemma = sp.Eq(W_t[t + 1], W_t[t] + lr_t[t] ** 2 * P_t[t] + 2 * lr_t[t] * past)
    grown = {W_t[t + 1]: _after(momentum, cross.relation.rhs, lr_t[t])}
    return Proof(
        "Lemma 2.2 under a schedule",
        (Claim("the norm at every step", lemma, Kind.INDUCTION, grown), cross),
        (_printed_under_a_schedule(momentum),),
        under=(*FROM_REST, "momentum constant", "no decay, no dampening"),
        remark="after a decay of the rate the old terms weigh more than printed: "
        "the norm keeps growing by past, larger steps",
    )


def _printed_under_a_schedule(momentum: MomentumStep) -> Refutation:
    """The lemma with lr_t for lr, against three recorded steps."""
    past = sp.Sum(beta ** (t - k) * P_t[k], (k, 0, t - 1))
    growth = lr_t[t] ** 2 * P_t[t] + 2 * lr_t[t] ** 2 * past
    rates, lengths = (sp.Rational(1, 2), sp.Rational(1, 3), sp.Rational(1, 5)), (3, 5, 2)
    numbers = {beta: sp.Rational(1, 2), W_t[2]: sp.Integer(7)}
    cross: sp.Expr = sp.Integer(0)
    for n, (rate, length) in enumerate(zip(rates, lengths, strict=True)):
        numbers |= {lr_t[n]: rate, P_t[n]: sp.Integer(length)}
        step = {momentum.X: cross, lr: rate, P: sp.Integer(length), beta: numbers[beta]}
        after = momentum.squared.xreplace({**step, W: numbers[W_t[2]]})
        cross = momentum.cross_after.xreplace(step)
    return Refutation(
        "one rate for all terms",
        sp.Eq(W_t[t + 1], W_t[t] + growth),
        {t: sp.Integer(2), **numbers, W_t[3]: after},
        (sp.Rational(2269, 300), sp.Rational(367, 50)),
    )


def effective_step(recipe: str | Recipe = "sgd") -> Proof:
    """Eq. 5: the effective step |w'/|w'| - w/|w|| is about |w' - w| / |w'|.

    Exactly, |effective step|^2 = |w' - w|^2 / |w'|^2 + (1 - |w| / |w'|)^2 for a step orthogonal to
    w, with the relative error lr^2 |g|^2 / (4 |w|^2) + ...
    """
    step = norm_growth(recipe, momentum=0.0, **PLAIN).step
    norm, turned = step.inner(step.weight, step.weight), step.inner(w, step.weight)
    moved = step.inner(step.weight - w, step.weight - w)
    # rho = |w'| / |w| = sqrt(1 + x), where x = lr^2 |g|^2 / |w|^2
    x, rho, exact, approximate = (
        sp.Symbol(name, positive=True) for name in ("x", "rho", "effective^2", "approximate^2")
    )
    by = {step.inner(g, g): (rho**2 - 1) * W / lr**2}
    record = {
        exact: 2 - 2 * turned.subs(by) / (W * rho),
        approximate: moved.subs(by) / (W * rho**2),
    }
    growing = {name: meaning.subs(rho, sp.sqrt(1 + x)) for name, meaning in record.items()}
    gap = (1 - 1 / rho) ** 2
    relative = sp.Limit((exact / approximate - 1) / x, x, 0)
    size = {x: lr**2 * squared("g") / W, rho: sp.sqrt(1 + lr**2 * squared("g") / W)}
    steps = {
        "both effective steps": sp.Eq(exact, approximate + gap),
        "an underestimate": (sp.Ge(exact, approximate), gap),
    }
    grown = {"growth": sp.Eq(scalar("|w'|^2"), rho**2 * W)}
    error = {"relative error of the square": sp.Eq(relative, sp.Rational(1, 4))}
    return Proof(
        "Eq. 5",
        (
            *claims(Kind.DERIVED, record, steps),
            *claims(Kind.DERIVED, {scalar("|w'|^2"): norm, **size}, grown),
            *claims(Kind.IDENTITY, size, {"size of the step": sp.Eq(rho**2, 1 + x)}),
            *claims(Kind.DERIVED, growing, error),
        ),
        under=(ORTHOGONAL, "gradient descent"),
        remark="a step along the weight moves no direction at all, so the cosine of weight and "
        "step has to vanish with the rate",
    )
