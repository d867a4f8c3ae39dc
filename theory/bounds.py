"""The inequalities in the printed proof of Corollary 2.3, one by one."""

from __future__ import annotations

import sympy as sp

__all__ = ["corollary_2_3_bounds"]

x, M = sp.symbols("x M", positive=True)
y, z, a, r_3, rest, slack = sp.symbols("y z a r_3 rest slack", nonnegative=True)
largest, eps, power = sp.symbols("A_max eps beta^(n+1)", positive=True)
R_1, r_2 = sp.symbols("R_1 r_2", real=True)
T, k = sp.Symbol("T", integer=True, positive=True), sp.Symbol("k", integer=True)


def corollary_2_3_bounds() -> tuple[dict[str, sp.Expr], dict[str, sp.Expr]]:
    """Residuals that must be 0, and terms that must be nonnegative: for p <= q that is q - p.

    The proof splits the sums at T, after which all A_k together are at most eps, and takes t = T + T'. With
    G(n) = beta + ... + beta^n = beta/(1-beta) - beta^(n+1)/(1-beta),

        F_t = (Sum((beta/(1-beta) + r_1) A_k, k <= T) + r_2) / (Sum(A_k, k <= T) + r_3),

    where r_1 = G(t-k) - beta/(1-beta), r_2 = Sum(G(t-k) A_k, T < k <= t) and r_3 = Sum(A_k, T < k <= t). Sums are bounded summand by
    summand. What is known is built in: beta in (0, 1) is 1/(1+x), some beta^j <= 1 is 1/(1+y), A_k <= A_max is A_max/(1+a), and what
    is at most eps is eps less some slack.
    """
    beta, lower = 1 / (1 + x), 1 / (1 + y)
    limit, deficit = beta / (1 - beta), power / (1 - beta)
    chosen = (
        T * largest * (deficit + slack)
    )  # eps, by the choice of T': the deficit at k = T is at most eps / (T max A_k)
    whole = (2 * limit + (T + 1) / T) * eps  # of |beta/(1-beta) r_3| + |Sum(r_1 A_k)| + |r_2|
    half = 1 / (2 + z)  # beta <= 1/2
    residuals = {
        "k = 0..T are T + 1 terms": sp.Sum(1, (k, 0, T)).doit() - (T + 1),
        "F_t - beta/(1-beta) = (Sum(r_1 A_k) + r_2 - beta/(1-beta) r_3) / Sum(A_k)": sp.simplify(
            (limit * M + R_1 + r_2) / (M + r_3) - limit - (R_1 + r_2 - limit * r_3) / (M + r_3)
        ),
    }
    differences = {
        "beta^j <= 1, by induction over j": (1 + x) * (1 + y) - 1,
        "|r_1| <= eps / (T max A_k), as printed": chosen / (T * largest) - deficit * lower,
        "|r_1| A_k <= eps / T": chosen / T - deficit * lower * largest / (1 + a),
        "r_2 >= 0": limit * (1 - lower),
        "r_2 <= beta/(1-beta) eps": deficit,
        "r_2 <= (1-beta)/beta eps, as printed, for beta <= 1/2": (1 - half) / half
        - half / (1 - half),
        "|r_3| <= eps, as printed": (r_3 + rest + slack) - r_3,
        "|F_t - beta/(1-beta)| <= (2 beta/(1-beta) + (T+1)/T) eps / Sum(A_k, k <= T)": whole / M
        - (whole - slack) / (M + r_3),
        "beta^(t-k+1) <= beta^(t-T+1) for k <= T": power * (1 - lower),
        "beta^(t-k+1) <= beta for k <= t": beta * (1 - lower),
        "so |F_t - beta/(1-beta)| <= (beta^(t-T+1) + beta r_3 / Sum(A_k, k <= T)) / (1-beta)": (
            (power + beta * r_3 / M) - (power * M + beta * r_3) / (M + r_3)
        )
        / (1 - beta),
    }
    return residuals, {name: sp.factor(difference) for name, difference in differences.items()}
