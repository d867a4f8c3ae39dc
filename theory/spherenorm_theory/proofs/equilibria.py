"""Equilibria and growth ratios, against the literature and against each other."""

from __future__ import annotations

from typing import Any

import sympy as sp

from spherenorm_theory.algebra.claims import Claim, Kind, Proof
from spherenorm_theory.algebra.symbols import DIMENSION, Norm
from spherenorm_theory.laws.equilibrium import equilibrium
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.step import GAMMA
from spherenorm_theory.laws.turn import growth_ratio, momenta_at_rest
from spherenorm_theory.proofs.notation import (
    CONSTANT,
    PLAIN,
    G,
    S,
    W,
    beta,
    beta1,
    claims,
    lr,
    rho,
    scalar,
    wd,
)

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
