"""Every statement is proved, every change of one is noticed, and each proof can fail."""

import functools

import pytest

from spherenorm_theory import Proof, beyond, equation_4, false_positive_law, lemmas
from spherenorm_theory.proofs import STATEMENTS
from tests.theory import faults
from tests.theory.mutations import survivors

ALL = [prove for proofs in STATEMENTS.values() for prove in proofs]

CORRECTED = [
    lemmas.lemma_2_2_scheduled,
    lemmas.corollary_2_3,
    lemmas.proposition_3_1,
    beyond.adam_can_shrink,
]


@functools.cache
def proof_of(prove) -> Proof:
    return prove()


@pytest.mark.parametrize("prove", ALL, ids=lambda f: f.__name__)
def test_is_proved(prove):
    proof = proof_of(prove)
    assert proof.proved, proof.status
    assert proof.holds_as_printed is (prove not in CORRECTED)


@pytest.mark.parametrize("prove", ALL, ids=lambda f: f.__name__)
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
        (beyond.sphere_keeps_the_norm, faults.projected_gradient),
    ],
    ids=lambda f: f.__name__,
)
def test_fails_on_a_fault(prove, fault):
    proof = prove(fault)
    assert not proof.proved
    assert "NOT proved" in proof.status


def test_kinds_are_said():
    assert "proved by induction" in proof_of(lemmas.lemma_2_2).status
    assert "under {<w,g> = 0" in proof_of(lemmas.lemma_2_2).status
    literature = proof_of(beyond.equilibria_of_the_literature)
    assert literature.kinds[0] == "equals the literature's formula"
    assert "mean-field" in proof_of(beyond.ratio_laws).status
    assert "instance" in str(proof_of(equation_4))
    assert proof_of(false_positive_law).kinds == ("identity", "derived")
