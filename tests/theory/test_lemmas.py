"""The paper's statements are proved, and each proof can fail."""

import numpy as np
import pytest
import sympy as sp

from tests.theory import faults
from theory import Proof, beyond, equation_4, false_positive_law, lemmas
from theory.normalized import FUNCTIONS, MATRIX, _formal, _in_coordinates

AS_PRINTED = [
    equation_4,
    lemmas.effective_step,
    lemmas.lemma_2_1,
    lemmas.lemma_2_2,
    lemmas.equation_14,
]
CORRECTED = [
    lemmas.lemma_2_2_scheduled,
    lemmas.corollary_2_3,
    lemmas.proposition_3_1,
    beyond.adam_can_shrink,
]
BEYOND = [
    beyond.momentum_by_any_name,
    beyond.nesterov_never_shrinks,
    beyond.ratio_laws,
    beyond.sphere_keeps_the_norm,
    beyond.projected_buffer,
    beyond.equilibria_of_the_literature,
    beyond.matched_decay,
    false_positive_law,
]


@pytest.mark.parametrize("prove", [*AS_PRINTED, *BEYOND], ids=lambda f: f.__name__)
def test_holds_as_printed(prove):
    proof = prove()
    assert proof.holds_as_printed, proof
    assert all(r == 0 for r in proof.residuals.values())


@pytest.mark.parametrize("prove", CORRECTED, ids=lambda f: f.__name__)
def test_corrected(prove):
    proof = prove()
    assert proof.proved, proof
    assert proof.counterexamples
    assert not proof.holds_as_printed
    assert proof.corrected


def test_every_bound_of_corollary_2_3_is_there():
    bounds = lemmas.corollary_2_3().nonnegative
    for wanted in ("|r_1| <=", "r_2 <= beta/(1-beta)", "|r_3| <=", "|F_t", "so |F_t"):
        assert any(name.startswith(wanted) for name in bounds), wanted


@pytest.mark.parametrize("seed", range(8))
def test_bounds_of_corollary_2_3_on_numbers(seed):
    """The proved bounds, on sequences A_k that are large where the printed ones are tight."""
    rng = np.random.default_rng(seed)
    beta, T, late = rng.uniform(0.3, 0.95), int(rng.integers(1, 5)), int(rng.integers(1, 40))
    t, limit = T + late, beta / (1 - beta)
    A = np.where(np.arange(t + 1) <= T, rng.uniform(0.5, 1, t + 1), rng.uniform(0, 0.1, t + 1) ** 4)
    G = np.array([sum(beta**i for i in range(1, t - k + 1)) for k in range(t + 1)])
    r_1, r_2, r_3, head = (
        G[: T + 1] - limit,
        (G * A)[T + 1 :].sum(),
        A[T + 1 :].sum(),
        A[: T + 1].sum(),
    )
    eps = max(r_3, -r_1[T] * T * A[: T + 1].max())
    off = abs((G * A).sum() / A.sum() - limit)
    assert np.abs(r_1).max() <= eps / (T * A[: T + 1].max()) * (1 + 1e-12)
    assert 0 <= r_2 <= limit * eps
    assert off <= (2 * limit + (T + 1) / T) * eps / head
    assert off <= (beta ** (late + 1) + beta * r_3 / head) / (1 - beta) * (1 + 1e-12)


def test_lemma_2_2_is_unrolled_and_induced():
    names = lemmas.lemma_2_2(unroll=8).residuals
    assert {f"unrolled, t = {t}" for t in range(9)} <= {*names}
    assert {"induction, summands k < t", "induction, summand k = t"} <= {*names}


@pytest.mark.parametrize(
    ("prove", "fault"),
    [
        (lemmas.lemma_2_2, faults.beta_squared),
        (lemmas.lemma_2_2, faults.ascent),
        (lemmas.lemma_2_2, faults.wrong_sign),
        (lemmas.lemma_2_1, faults.ascent),
        (lemmas.corollary_2_3, faults.beta_squared),
        (lemmas.equation_14, faults.no_projection),
        (lemmas.equation_14, faults.wrong_sign),
        (lemmas.equation_14, faults.projected_gradient),
        (beyond.momentum_by_any_name, faults.beta_squared),
        (beyond.nesterov_never_shrinks, faults.beta_squared),
        (beyond.sphere_keeps_the_norm, faults.projected_gradient),
    ],
    ids=lambda f: f.__name__,
)
def test_fails_on_a_fault(prove, fault):
    proof = prove(fault)
    assert not proof.proved
    assert "NOT proved" in proof.status


@pytest.mark.parametrize(
    "fault",
    [faults.no_projection, faults.projected_gradient, faults.wrong_sign],
    ids=lambda f: f.__name__,
)
def test_proposition_3_1_fails_on_a_fault(fault):
    assert not lemmas.proposition_3_1(projected=fault).proved


@pytest.mark.parametrize("name", ["l2-normalized linear", "cosine loss"])
def test_equation_4_fails_without_normalization(name):
    assert _formal(FUNCTIONS[name]) == 0
    assert _formal(lambda w, x, c: (c[:, :1] * w * x).sum()) != 0
    assert _formal(lambda w, x, c: (c[:, :1] * w / (w * w).sum(1, keepdim=True) * x).sum()) != 0


def centred(z, dim):
    return z - z.mean(dim, keepdim=True)


def with_eps(z, dim):
    return centred(z, dim) / ((centred(z, dim) ** 2).mean(dim, keepdim=True) + 1).sqrt()


def of_the_variance(z, dim):
    return centred(z, dim) / (centred(z, dim) ** 2).mean(dim, keepdim=True)


@pytest.mark.parametrize("fault", [centred, with_eps, of_the_variance], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", MATRIX)
def test_equation_4_fails_for_a_faulty_normalization(name, fault, monkeypatch):
    assert _in_coordinates(FUNCTIONS[name]) == 0
    monkeypatch.setattr("theory.normalized.normalize", fault)
    assert _in_coordinates(FUNCTIONS[name]) != 0


def test_a_proof_needs_a_residual():
    with pytest.raises(ValueError, match="needs a residual"):
        Proof("empty", "nothing", {})


def test_a_false_counterexample_or_inequality_is_no_proof():
    zero = {"r": sp.Integer(0)}
    assert not Proof("p", "s", zero, counterexamples={"1 > 2": sp.Integer(1) > 2}).proved
    assert not Proof("p", "s", zero, nonnegative={"x": sp.Symbol("x", real=True)}).proved
    assert Proof("p", "s", zero, nonnegative={"x^2": sp.Symbol("x", real=True) ** 2}).proved
