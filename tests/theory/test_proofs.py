"""Every statement is proved, every change of one is noticed, and each proof can fail."""

import functools

import pytest
import sympy as sp

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import Proof, beyond, equation_4, false_positive_law, lemmas, one_step
from spherenorm_theory.printing import words
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.proofs.lemmas import SCALE_INVARIANT_FUNCTIONS, radial_part
from spherenorm_theory.symbols import Norm
from tests.harness.tables import mostly_long
from tests.theory import faults
from tests.theory.mutations import survivors

ALL = [prove for proofs in STATEMENTS.values() for prove in proofs]


@functools.cache
def proof_of(prove) -> Proof:
    return prove()


@pytest.mark.parametrize("prove", ALL, ids=lambda f: f.__name__)
def test_is_proved(prove):
    proof = proof_of(prove)
    assert proof.proved, proof.status


@pytest.mark.parametrize("prove", mostly_long(ALL, kept=6), ids=lambda f: f.__name__)
def test_a_change_of_any_number_sign_or_relation_is_noticed(prove):
    results = [*survivors(proof_of(prove))]
    assert len(results) > 15
    assert not [mutant for _, mutant, holds in results if holds]


def projected(fault):
    return lemmas.proposition_3_1(projected=fault)


@pytest.mark.parametrize(
    ("prove", "fault"),
    [
        (lemmas.lemma_2_2, faults.beta_squared),
        (lemmas.lemma_2_2, faults.ascent),
        (lemmas.lemma_2_2, faults.wrong_sign),
        (lemmas.lemma_2_2_scheduled, faults.beta_squared),
        (lemmas.lemma_2_1, faults.ascent),
        (lemmas.corollary_2_3, faults.beta_squared),
        (lemmas.equation_14, faults.no_projection),
        (lemmas.equation_14, faults.wrong_sign),
        (lemmas.equation_14, faults.projected_gradient),
        (projected, faults.no_projection),
        (projected, faults.projected_gradient),
        (projected, faults.wrong_sign),
        (beyond.momentum_by_any_name, faults.beta_squared),
        (beyond.nesterov_never_shrinks, faults.beta_squared),
    ],
    ids=lambda f: f.__name__,
)
def test_fails_on_a_fault(prove, fault):
    proof = prove(fault)
    assert not proof.proved
    assert "not proved" in proof.status


def test_kinds_are_said():
    assert "proved by induction" in proof_of(lemmas.lemma_2_2).status
    literature = proof_of(beyond.equilibria_of_the_literature)
    assert literature.kinds[0] == "equals the literature's formula"
    assert "mean-field" in proof_of(beyond.ratio_laws).status
    assert "instance" in str(proof_of(equation_4))
    assert proof_of(false_positive_law).kinds == ("identity", "derived")
    assert "<w, g> = 0" in proof_of(lemmas.lemma_2_2).status


def test_two_printed_bounds_of_corollary_2_3_fail():
    """The bound on r_2 is upside down for beta > 1/2, and T max A_k stands for T + 1 terms."""

    def parts(A, T, wait, beta):
        """r_2, the head's residues, and the least eps that the proof's choices allow."""
        t, limit = T + wait, beta / (1 - beta)
        G = [sum(beta**i for i in range(1, t - k + 1)) for k in range(t + 1)]
        tail = sum(A[T + 1 :])
        eps = max(tail, T * max(A) * (limit - sum(beta**i for i in range(1, wait + 1))))
        r_2 = sum(g * a for g, a in zip(G[T + 1 :], A[T + 1 :], strict=False))
        head = sum(abs(g - limit) * a for g, a in zip(G[: T + 1], A[: T + 1], strict=True))
        return r_2, head, eps

    r_2, _, eps = parts([2, 2, 2, 0, 0, 0], 1, 4, 0.75)
    assert r_2 > (1 - 0.75) / 0.75 * eps
    assert r_2 <= 0.75 / (1 - 0.75) * eps  # the right way up
    _, head, eps = parts([1, 1, 0, 0, 0, 0], 1, 4, 0.75)
    assert head > eps
    assert head <= 2 * eps  # (T + 1) / T


lr, weight_decay = (sp.Symbol(n, positive=True) for n in ("lr", "weight_decay"))


def coefficients(step):
    """Return the coefficients of w / |w| and g / |g| in w', and |w'|^2."""
    weight = step.algebra.expand_names(step.weight, canonical=True)
    of_unit_vectors = [weight[n] * Norm(n) for n in "wg"]
    square = step.algebra.inner(weight, weight)
    return [step.algebra.expand_and_simplify(x) for x in (*of_unit_vectors, square)]


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_hyperball_step_turns_by_its_law(orthogonal):
    """w' is along w / |w| - lr u / |u|, so that it turns by atan2(lr sin a, 1 - lr cos a), a the
    angle between the two: by arctan(lr) at a right one. The norm is the radius."""
    static = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
    step = one_step("hyperball(sgd)", scale_invariant=orthogonal, **static)
    along, aside, length = coefficients(step)
    assert sp.simplify(aside / along + lr) == 0
    assert sp.simplify(length - step.scalars["radius"] ** 2) == 0


def pinned(lr=0.1, weight_decay=0.5):
    return sn.chain(r.DecoupledDecay(weight_decay), r.StepSize(lr), r.FixedNorm())


def test_decay_before_a_projection_is_a_change_of_rate():
    """R N((1 - lr wd) w - lr g) is along w - lr / (1 - lr wd) g, and as long."""
    step = one_step(pinned, scale_invariant=False)
    weight, grad = (step.algebra.expand_names(step.weight, canonical=True)[n] for n in "wg")
    assert sp.simplify(grad / weight + lr / (1 - lr * weight_decay)) == 0


READ_FROM = {
    lemmas.lemma_2_1: [("sgd", {"momentum": 0.0})],
    lemmas.lemma_2_2: [("sgd", {})],
    lemmas.equation_14: [("sgdp", {})],
    lemmas.proposition_3_1: [("sgd", {}), ("sgdp", {})],
}


@pytest.mark.parametrize("prove", READ_FROM, ids=lambda f: f.__name__)
def test_hypotheses_are_those_of_the_record(prove):
    """A proof assumes the hypotheses of the reading of its steps, and no prose."""
    hypotheses = {words(hypothesis) for hypothesis in proof_of(prove).hypotheses}
    for name, settings in READ_FROM[prove]:
        step = one_step(name, weight_decay=0.0, dampening=0.0, **settings)
        assert {words(hypothesis) for hypothesis in step.hypotheses} <= hypotheses
    from_rest = any(hypothesis.induction for hypothesis in proof_of(prove).claims)
    assert ("m_0 = 0" in hypotheses) is from_rest


def test_statements_of_the_paper_hold_and_other_readings_fail():
    """Prop. 3.1 says the great circle, Lemma 2.2 has one rate, and Adam's sentence is a remark."""
    with_readings = [p for p in ALL if proof_of(p).counterexamples]
    assert [p.__name__ for p in with_readings] == [
        *("lemma_2_2_scheduled", "corollary_2_3", "proposition_3_1", "adam_can_shrink"),
    ]
    assert all("as printed" not in str(proof_of(p)) for p in ALL)


def test_the_limit_of_the_rate_is_no_definition():
    """The integral of the normal density is one claim, and says no limit of the rate."""
    proof = proof_of(false_positive_law)
    assert not any("lim P" in str(claim.relation) for claim in proof.claims)
    assert proof.statement.relation.lhs.has(sp.Derivative)


@pytest.mark.parametrize("name", SCALE_INVARIANT_FUNCTIONS)
def test_equation_4_holds_in_every_dimension(name):
    assert radial_part(SCALE_INVARIANT_FUNCTIONS[name]) == 0


def centred(z, entries):
    return z - z.sum() / entries


def with_eps(z, entries):
    return centred(z, entries) / ((centred(z, entries) ** 2).sum() / entries + 1).sqrt()


def of_the_variance(z, entries):
    return centred(z, entries) / ((centred(z, entries) ** 2).sum() / entries)


FAULTS = {
    "only centred": lambda z, x, c, n: (x * centred(z, n)).sum(),
    "with eps": lambda z, x, c, n: (x * with_eps(z, n)).sum(),
    "over the variance": lambda z, x, c, n: (x * of_the_variance(z, n)).sum(),
    "not normalized": lambda w, x, c, n: (c * w * x).sum(),
    "over the square": lambda w, x, c, n: (c * w / (w * w).sum(1, keepdim=True) * x).sum(),
}


@pytest.mark.parametrize("name", FAULTS)
def test_equation_4_fails_for_a_fault(name):
    proof = equation_4({name: FAULTS[name]})
    assert not proof.proved
    assert [claim.about for claim in proof.failures] == [name]
