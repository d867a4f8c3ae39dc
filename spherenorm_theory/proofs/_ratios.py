"""Growth ratios for the other kinds of momentum and of decay."""

from __future__ import annotations

import sympy as sp

from spherenorm_theory.algebra import Claim, Kind, Proof
from spherenorm_theory.laws import S, W, find_stationary_buffers, growth_ratio, norm_growth
from spherenorm_theory.proofs._notation import PLAIN, G, beta, lr, scalar

__all__ = ["ratio_laws"]

KAPPA = sp.Symbol("kappa", positive=True)
RATIO, AT = scalar("growth/Sum(|s|^2)"), sp.Function("ratio")
USUAL = sp.Rational(9, 10)


def ratio_laws() -> Proof:
    """The ratio of Corollary 2.3 for the other kinds of momentum and of decay."""
    return Proof(
        "Ratio laws",
        (*_heavy_balls(), *_nesterov(), *_decay()),
        under=("random gradients", "momentum in (0, 1)", "lr and momentum constant"),
        remark="Nesterov's steps are longer; coupled decay enters the momentum, so that no number "
        "is its ratio",
    )


def _heavy_balls() -> tuple[Claim, ...]:
    """(1 + beta) / (1 - beta), Corollary 2.3's 1 + 2 beta / (1 - beta), and 1 if projected.

    A heavy ball by another name has the same ratio, see `momentum_by_any_name`.
    """
    heavy = sp.Eq(RATIO, (1 + beta) / (1 - beta))
    ratios = {
        "heavy ball": growth_ratio("sgd", **PLAIN),
        "dampened": growth_ratio("sgd", weight_decay=0.0),
    }
    plain = {AT: sp.Lambda(beta, ratios["heavy ball"])}
    return (
        *(Claim(name, heavy, Kind.MEAN_FIELD, {RATIO: r}) for name, r in ratios.items()),
        Claim("heavy ball, the usual momentum", sp.Eq(AT(USUAL), 19), Kind.MEAN_FIELD, plain),
        Claim("projected", sp.Eq(RATIO, 1), Kind.MEAN_FIELD,
              {RATIO: growth_ratio("sgdp", **PLAIN)}),
    )  # fmt: skip


def _nesterov() -> tuple[Claim, ...]:
    """Every momentum moves the weight by lr g / (1 - beta) in the end; its square is the growth."""
    law = norm_growth("sgd", nesterov=True, **PLAIN)
    ratio = growth_ratio(law.step.traced)
    _, moved = find_stationary_buffers(law)
    growth = scalar("growth per step")
    expected = 1 + 2 * beta**2 * (1 + beta - beta**2) / (
        (1 - beta) * (1 + 2 * beta - 2 * beta**3)
    )  # fmt: skip
    usual = sp.Eq(AT(USUAL), sp.Rational(9500, 671))
    return (
        Claim("Nesterov", sp.Eq(RATIO, expected), Kind.MEAN_FIELD, {RATIO: ratio}),
        Claim("Nesterov, the usual momentum", usual, Kind.MEAN_FIELD,
              {AT: sp.Lambda(beta, ratio)}),
        Claim("Nesterov, growth", sp.Eq(growth, (lr / (1 - beta)) ** 2 * G), Kind.MEAN_FIELD,
              {growth: moved * ratio}),
    )  # fmt: skip


def _decay() -> tuple[Claim, ...]:
    """Decoupled decay has a ratio; that of coupled decay is a function of |w|^2 / |s|^2."""
    keep = 1 - KAPPA
    decoupled = 1 + 2 * keep * beta / (1 - beta * keep)
    radial = 1 - KAPPA * keep * W / S
    coupled = 1 + 2 * keep * beta * radial / (1 - beta * (1 - 2 * KAPPA))
    claims = []
    for name, recipe, expected in (
        ("decoupled decay", "sgdw", decoupled), ("coupled decay", "sgd", coupled)):  # fmt: skip
        record = {
            RATIO: growth_ratio(recipe, dampening=0.0),
            KAPPA: norm_growth(recipe, dampening=0.0).kappa,
        }
        claims.append(Claim(name, sp.Eq(RATIO, expected), Kind.MEAN_FIELD, record))
    return tuple(claims)
