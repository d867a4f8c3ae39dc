"""Corollary 2.3: momentum multiplies the growth of the norm by 1 + 2 beta / (1 - beta)."""

from __future__ import annotations

import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import Claim, Induction, Kind, Proof
from spherenorm_theory.laws import product
from spherenorm_theory.proofs._bounds import printed_bounds, proved_bounds
from spherenorm_theory.proofs._notation import P, beta, indexed, k, l, lr, read_momentum, scalar, t

n = sp.Symbol("n", integer=True, nonnegative=True)
A = indexed(P)
LIMIT = beta / (1 - beta)
OWN, LATER, F = map(scalar, ("own share", "later share", "F_t"))
RATIO, AT_INFINITY = sp.Function("ratio"), scalar("lim ratio")


def corollary_2_3(recipe: str | Recipe = "sgd") -> Proof:
    """Corollary 2.3: (|w^GDM|^2 - |w_0|^2) / (|w^GD|^2 - |w_0|^2) -> 1 + 2 beta / (1 - beta).

    For summable A_k = |p_k|^2. The limit holds. Of the inequalities of its printed proof
    (`spherenorm_theory.proofs._bounds`) two do not, and with them the last one fails; the exact
    deficit, read off the recursion, replaces them:

        beta / (1 - beta) - F_t
            = Sum(beta^(t-k+1) A_k, k <= t) / ((1 - beta) Sum(A_k, k <= t)),

    which is at most beta^(T'+1) / (1 - beta) + beta / (1 - beta) r_3 / M, and goes to 0.
    """
    own, later = _entering(recipe)
    geometric = _sum_of_powers()
    # The shares of one A_k in all steps, with beta^(n+1) -> 0.
    powers = geometric.relation.rhs.subs(beta ** (n + 1), 0)
    ratio = (own.relation.rhs + (later.relation.rhs / beta**l) * powers) / lr**2
    limit = sp.Eq(AT_INFINITY, 1 + 2 * LIMIT)
    usual = sp.Eq(RATIO(sp.Rational(9, 10)), 19)
    return Proof(
        "Corollary 2.3",
        (
            Claim("the growth ratio", limit, Kind.DERIVED, {AT_INFINITY: ratio}),
            Claim("its usual value", usual, Kind.DERIVED, {RATIO: sp.Lambda(beta, ratio)}),
            own,
            later,
            geometric,
            _deficit(geometric),
            *proved_bounds(),
        ),
        printed_bounds(),
        under=(
            "|p_k| the same with and without momentum",
            "Sum(|p_k|^2) positive and finite",
            "momentum in (0, 1)",
        ),
        verdict="the limit is proved; two bounds of the printed proof fail, and with them its last",
    )


def _entering(recipe: str | Recipe) -> tuple[Claim, Claim]:
    """The shares of P_k in the growth of its own step, and of the l-th step after it."""
    momentum = read_momentum(recipe)
    norm, after, X = momentum.squared, momentum.cross_after, product("w", "m")
    share = sp.diff(norm, X) * sp.diff(after, P) * sp.diff(after, X) ** (l - 1)
    return (
        Claim("a step in its own growth", sp.Eq(OWN, lr**2), Kind.DERIVED, {OWN: sp.diff(norm, P)}),
        Claim(
            "and in a later one", sp.Eq(LATER, 2 * lr**2 * beta**l), Kind.DERIVED, {LATER: share}
        ),
    )


def _sum_of_powers() -> Claim:
    closed = (beta - beta ** (n + 1)) / (1 - beta)
    powers = sp.Sum(beta**l, (l, 1, n))
    step = Induction(n, {}, {})
    return Claim("a sum of powers", sp.Eq(powers, closed), Kind.INDUCTION, induction=step)


def _deficit(geometric: Claim) -> Claim:
    """The distance of F_t from its limit, exactly."""
    total = sp.Sum(A[k], (k, 0, t))
    weighted = sp.Sum(geometric.relation.rhs.subs(n, t - k) * A[k], (k, 0, t))
    lacking = sp.Sum(beta ** (t - k + 1) * A[k], (k, 0, t))
    return Claim(
        "the exact deficit",
        sp.Eq(F, LIMIT - lacking / ((1 - beta) * total)),
        Kind.DERIVED,
        {F: weighted / total},
    )
