"""Statements that the paper leaves open, proved from recorded steps in the same way."""

from __future__ import annotations

from typing import Any

import sympy as sp
import torch

from spherenorm import Chain, Recipe, Scalar, chain
from spherenorm import rules as r
from spherenorm_theory.algebra.claims import Claim, Induction, Kind, Proof, Refutation, read_as
from spherenorm_theory.algebra.hyper_parameters import resolve_recipe
from spherenorm_theory.algebra.symbols import DIMENSION, Inner, Norm, Vector
from spherenorm_theory.laws.equilibrium import equilibrium
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.step import GAMMA, Step, one_step
from spherenorm_theory.laws.turn import growth_ratio, momenta_at_rest
from spherenorm_theory.proofs.notation import (
    AT_REST,
    CONSTANT,
    PLAIN,
    W_NEXT,
    G,
    OverTime,
    P,
    S,
    S_t,
    W,
    beta,
    beta1,
    claims,
    indexed,
    lr,
    m,
    of_float,
    read,
    rho,
    scalar,
    t,
    w,
    wd,
)

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
    statements = {
        "the cross term": sp.Eq(X, -lr * beta**2 * Y),
        "the norm": sp.Eq(W_NEXT, W + grown),
    }
    shrinks = {"the norm never shrinks": (sp.Gt(W_NEXT, W), gain)}
    return Proof(
        "Nesterov",
        (
            *claims(Kind.INDUCTION, least, shrinks, bounded.under),
            *read(step, {"w'": step.weight, "s": drive}, statements),
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
    vectors = {"w'": law.step.weight, "s": law.drive}
    cases = ([1, 2], [-2, 1]), ([2, 1], [-1, 2])  # weight, gradient
    shrinking, growing = (_first_step(recipe, *case) for case in cases)
    length = sp.Integer(sum(c**2 for c in cases[0][0]))
    falls, rises = (f"a first step from w = {a}, with g = {b}, lr = 1/10" for a, b in cases)
    kept = norm_growth(projected, weight_decay=0.0)
    falling = {falls: sp.Eq(X, -lr), "the gradient is orthogonal there": sp.Eq(Inner("w", "g"), 0)}
    return Proof(
        "Adam",
        (
            *read(law.step, vectors, {"one step": sp.Eq(W_NEXT, W + S + 2 * X)}, (), Kind.IDENTITY),
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
        shown += read(plain, {"w'": plain.weight}, {f"{law.name}, norm": sp.Eq(W_NEXT, W)})
        tangent = tuple(("w", each) for each in plain.buffers)
        step = one_step(plain.traced, orthogonal=tangent)
        for buffer in step.buffers:
            after = step.states[buffer]
            assert isinstance(after, Vector)
            vectors, about = {"w'": step.weight, "m'": after}, f"{law.name}, buffer"
            under = (*step.hypotheses, AT_REST)
            shown += read(step, vectors, {about: sp.Eq(X_next, 0)}, under, Kind.INDUCTION)
    return Proof(
        "On the sphere",
        tuple(shown),
        remark="exponential map and parallel transport, clip or not; a buffer of zeros is tangent",
    )


# Equilibria and growth ratios, against the literature and against each other


KAPPA = sp.Symbol("kappa", positive=True)
RATIO, AT = scalar("growth/Sum(|s|^2)"), sp.Function("ratio")
USUAL = sp.Rational(9, 10)
RANDOM = ("random gradients", CONSTANT)


def ratio_laws() -> Proof:
    """The ratio of Corollary 2.3 for the other kinds of momentum and of decay."""
    return Proof(
        "Ratio laws",
        (*_heavy_balls(), *_nesterov(), *_decay()),
        remark="Nesterov's steps are longer; coupled decay enters the momentum, so that no number "
        "is its ratio",
    )


def _heavy_balls() -> tuple[Claim, ...]:
    """(1 + beta) / (1 - beta), Corollary 2.3's 1 + 2 beta / (1 - beta), and 1 if projected.

    A heavy ball by another name has the same ratio, see `momentum_by_any_name`.
    """
    heavy, dampened = growth_ratio("sgd", **PLAIN), growth_ratio("sgd", weight_decay=0.0)
    expected = sp.Eq(RATIO, (1 + beta) / (1 - beta))
    usual = {"heavy ball, the usual momentum": sp.Eq(AT(USUAL), 19)}
    return (
        *claims(Kind.MEAN_FIELD, {RATIO: heavy}, {"heavy ball": expected}, RANDOM),
        *claims(Kind.MEAN_FIELD, {RATIO: dampened}, {"dampened": expected}, RANDOM),
        *claims(Kind.MEAN_FIELD, {AT: sp.Lambda(beta, heavy)}, usual),
        *claims(
            Kind.MEAN_FIELD,
            {RATIO: growth_ratio("sgdp", **PLAIN)},
            {"projected": sp.Eq(RATIO, 1)},
            RANDOM,
        ),
    )


def _nesterov() -> tuple[Claim, ...]:
    """Every momentum moves the weight by lr g / (1 - beta) in the end; its square is the growth."""
    law = norm_growth("sgd", nesterov=True, **PLAIN)
    ratio = growth_ratio(law)
    at_rest = momenta_at_rest(law)
    growth = scalar("growth per step")
    expected = 1 + 2 * beta**2 * (1 + beta - beta**2) / (
        (1 - beta) * (1 + 2 * beta - 2 * beta**3)
    )  # fmt: skip
    record = {RATIO: ratio, AT: sp.Lambda(beta, ratio), growth: S * ratio, G: at_rest[G]}
    statements = {
        "Nesterov": sp.Eq(RATIO, expected),
        "Nesterov, the usual momentum": sp.Eq(AT(USUAL), sp.Rational(9500, 671)),
        "Nesterov, growth": sp.Eq(growth, (lr / (1 - beta)) ** 2 * G),
    }
    return claims(Kind.MEAN_FIELD, record, statements, RANDOM)


def _decay() -> tuple[Claim, ...]:
    """Decoupled decay has a ratio; that of coupled decay is a function of |w|^2 / |s|^2."""
    keep = 1 - KAPPA
    decoupled = 1 + 2 * keep * beta / (1 - beta * keep)
    radial = 1 - KAPPA * keep * W / S
    coupled = 1 + 2 * keep * beta * radial / (1 - beta * (1 - 2 * KAPPA))
    shown: list[Claim] = []
    for name, recipe, expected in (
        ("decoupled decay", "sgdw", decoupled),
        ("coupled decay", "sgd", coupled),
    ):
        law = norm_growth(recipe, dampening=0.0)
        record = {RATIO: growth_ratio(law), KAPPA: law.kappa}
        shown += claims(Kind.MEAN_FIELD, record, {name: sp.Eq(RATIO, expected)}, RANDOM)
    return tuple(shown)


TURN, FOURTH = scalar("turn^2"), Norm("w") ** 4


def equilibria_of_the_literature() -> Proof:
    """The derived equilibria against Wan et al. 2021 and Kosson et al. 2023.

    Wan et al., *Spherical Motion Dynamics*: SGD with momentum and coupled decay,
    |w|^4 = gamma^2 lr / (wd (1-b)(2 - lr wd / (1+b))), rotation sqrt(2 lr wd / (1+b)).
    Kosson et al., *Rotational Equilibrium*: AdamW, |w|^2 = lr d / (2 wd), rotation
    sqrt(2 lr wd (1-b1) / (1+b1)).
    """
    sgdm, sgd = equilibrium("sgd", dampening=0.0), equilibrium("sgd", momentum=0.0, dampening=0.0)
    adamw = equilibrium("adamw", eps=0.0)
    wan = GAMMA**2 * lr / (wd * (1 - beta) * (2 - lr * wd / (1 + beta)))
    kosson = (lr * DIMENSION / (2 * wd)) ** 2, 2 * lr * wd * (1 - beta1) / (1 + beta1)
    exact = 1 - lr * wd * beta1 / (1 + beta1)
    cases: dict[str, tuple[Any, ...]] = {
        "SGD with momentum, norm (Wan, exactly)": (FOURTH, wan, sgdm.fourth_power, sgdm),
        "SGD with momentum, rotation (Wan, Kosson, exactly)": (
            TURN, 2 * lr * wd / (1 + beta), sgdm.squared_rotation, sgdm
        ),
        "SGD, rotation (Wan, exactly)": (TURN, 2 * lr * wd, sgd.squared_rotation, sgd),
        "AdamW, norm (Kosson, for small lr)": (
            FOURTH, kosson[0], adamw.leading(adamw.fourth_power), adamw
        ),
        "AdamW, rotation (Kosson, for small lr)": (
            TURN, kosson[1], adamw.leading(adamw.squared_rotation), adamw
        ),
    }  # fmt: skip
    return Proof(
        "Equilibria",
        (
            *(
                Claim(
                    name,
                    sp.Eq(symbol, published),
                    Kind.LITERATURE,
                    {symbol: derived},
                    under=law.hypotheses,
                )
                for name, (symbol, published, derived, law) in cases.items()
            ),
            Claim(
                "AdamW, rotation (exactly)",
                sp.Eq(TURN, kosson[1] / exact),
                Kind.MEAN_FIELD,
                {TURN: adamw.squared_rotation},
                under=adamw.hypotheses,
            ),
        ),
    )


def matched_decay() -> Proof:
    """With equal decay a projected optimizer turns faster: rotation^2 by the decay ratio times 19.

    Without projection the squared rotation carries the factor (1 - beta) / (1 + beta), the inverse
    of Corollary 2.3's; with it, the factor wd_ratio. They match at wd_ratio = (1 - beta) /
    (1 + beta) = 1/19 for beta = 0.9; the release's 0.1 turns 1.38 times faster.
    """
    adamw, adamp = equilibrium("adamw", eps=0.0), equilibrium("adamp", eps=0.0)
    sgdm, sgdp = equilibrium("sgd", dampening=0.0), equilibrium("sgdp", dampening=0.0)
    turn_adamw = adamw.leading(adamw.squared_rotation)
    tenth, nine = sp.Rational(1, 10), sp.Rational(9, 10)
    faster, matched = sp.Function("speed^2"), sp.Function("matched_ratio")
    of_adam = _matching_ratio(adamp.squared_rotation, turn_adamw)
    of_sgd = _matching_ratio(sgdp.squared_rotation, sgdm.squared_rotation)
    record = {
        TURN: adamp.squared_rotation,
        matched: sp.Lambda(beta1, of_adam),
        faster: sp.Lambda((rho, beta1), sp.cancel(adamp.squared_rotation / turn_adamw)),
    }
    by_adam = {"AdamP turns as AdamW does (for small lr)": sp.Eq(rho, (1 - beta1) / (1 + beta1))}
    by_sgd = {"SGDP turns as SGD with momentum does": sp.Eq(rho, (1 - beta) / (1 + beta))}
    of_sgdp = {"SGDP's rotation": sp.Eq(TURN, 2 * lr * wd * rho / (1 - beta))}
    usual = {
        "the usual momentum": sp.Eq(matched(nine), sp.Rational(1, 19)),
        "the release's ratio": sp.Eq(faster(tenth, nine), sp.Rational(19, 10)),
    }
    return Proof(
        "Matched decay",
        (
            *claims(Kind.MEAN_FIELD, {rho: of_adam}, by_adam, RANDOM),
            *claims(Kind.MEAN_FIELD, {rho: of_sgd}, by_sgd, RANDOM),
            *claims(
                Kind.MEAN_FIELD,
                record,
                {"AdamP's rotation": sp.Eq(TURN, 2 * lr * wd * rho)},
                adamp.hypotheses,
            ),
            *claims(Kind.MEAN_FIELD, {TURN: sgdp.squared_rotation}, of_sgdp, sgdp.hypotheses),
            *claims(Kind.MEAN_FIELD, record, usual, RANDOM),
        ),
    )


def _matching_ratio(projected: sp.Expr, plain: sp.Expr) -> sp.Expr:
    """The decay ratio at which two squared rotations are the same."""
    (solution,) = sp.solve(projected - plain, rho)
    return solution
