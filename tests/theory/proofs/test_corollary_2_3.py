"""The bounds in the proof of Corollary 2.3, on numbers."""

import numpy as np
import pytest
import sympy as sp

from spherenorm_theory.proofs._corollary_2_3 import proved_bounds


@pytest.mark.parametrize("seed", range(8))
def test_bounds_of_corollary_2_3_on_numbers(seed):
    """The proved bounds, on sequences A_k that are large where the printed ones are tight."""
    rng = np.random.default_rng(seed)
    beta, T, late = rng.uniform(0.3, 0.95), int(rng.integers(1, 5)), int(rng.integers(1, 40))
    t, limit = T + late, beta / (1 - beta)
    A = np.where(np.arange(t + 1) <= T, rng.uniform(0.5, 1, t + 1), rng.uniform(0, 0.1, t + 1) ** 4)
    G = np.array([sum(beta**i for i in range(1, t - k + 1)) for k in range(t + 1)])
    head, tail = A[: T + 1].sum(), A[T + 1 :].sum()
    r_1, r_2 = G[: T + 1] - limit, (G * A)[T + 1 :].sum()
    eps = max(tail, -r_1[T] * T * A.max())
    numbers = {
        "momentum": beta,
        "T": T,
        "T'": late,
        "eps": eps,
        "M": head,
        "A_max": A.max(),
        "r_2": r_2,
        "r_3": tail,
        "|r_1|": np.abs(r_1).max(),
        "|Sum(r_1*A_k)|": np.abs(r_1 * A[: T + 1]).sum(),
        "|F_t-beta/(1-beta)|": abs((G * A).sum() / A.sum() - limit),
        "beta/(1-beta)-F_t": limit - (G * A).sum() / A.sum(),
        "G(n)": G[0],
        "j": 3,
    }
    checked = 0
    for claim in proved_bounds():
        relation = claim.relation
        values = {s: numbers.get(s.name) for s in relation.free_symbols}
        printed_for_half = claim.about.startswith("the printed bound") and beta > 0.5
        if isinstance(relation, sp.Eq) or None in values.values() or printed_for_half:
            continue
        checked += 1
        gap = float((relation.gts - relation.lts).subs(values))
        assert gap >= -1e-12, claim
    assert checked >= 7
