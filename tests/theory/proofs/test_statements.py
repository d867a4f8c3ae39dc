"""Every statement is proved, every change of one is noticed, and each proof can fail."""

import functools

import numpy as np
import pytest
import sympy as sp

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import Proof, beyond, equation_4, false_positive_law, lemmas, one_step
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.proofs._corollary_2_3 import proved_bounds
from spherenorm_theory.proofs._normalized import FUNCTIONS, radial_part
from spherenorm_theory.proofs._notation import squared
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


lr, weight_decay, radius = (sp.Symbol(n, positive=True) for n in ("lr", "weight_decay", "radius"))


def coefficients(step):
    """Those of w / |w| and of g / |g| in w', and |w'|^2."""
    lengths = [sp.sqrt(squared(n)) for n in "wg"]
    found = [step.weight.terms[n] * length for n, length in zip("wg", lengths, strict=True)]
    return [step.facts.expand(x, True) for x in (*found, step.inner(step.weight, step.weight))]


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_hyperball_step_turns_by_its_law(orthogonal):
    """w' is along w / |w| - lr u / |u|, so that it turns by atan2(lr sin a, 1 - lr cos a), a the
    angle between the two: by arctan(lr) at a right one. The norm is the radius."""
    held = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
    step = one_step("hyperball(sgd)", scale_invariant=orthogonal, **held)
    along, aside, length = coefficients(step)
    assert sp.simplify(aside / along + lr) == 0
    assert sp.simplify(length - step.scalars["radius"] ** 2) == 0


def pinned(lr=0.1, weight_decay=0.5):
    return sn.chain(r.DecoupledDecay(weight_decay), r.StepSize(lr), r.RadiusPin())


def test_decay_before_a_projection_is_a_change_of_rate():
    """R N((1 - lr wd) w - lr g) is along w - lr / (1 - lr wd) g, and as long."""
    weight, grad = (one_step(pinned, scale_invariant=False).weight.terms[n] for n in "wg")
    assert sp.simplify(grad / weight + lr / (1 - lr * weight_decay)) == 0


def behind_the_factor(name):
    """A recipe of the rules of `name` behind its orthogonalization."""

    def rest(lr=0.1, weight_decay=0.1, radius=2.0):
        own = {"radius": radius} if name == "scion" else {}
        rules = sn.bind(name, lr=lr, weight_decay=weight_decay, **own).rule.rules
        place = [isinstance(each, r.Orthogonalize) for each in rules].index(True)
        return sn.chain(*rules[place + 1 :])

    return rest


@pytest.mark.parametrize(
    ("name", "decay", "ball"), [("scion", 1, radius), ("muon", weight_decay, 1 / weight_decay)]
)
def test_a_ball_that_no_step_leaves(name, decay, ball):
    """Induction: |w| <= ball and |O| <= 1 in any norm give |w'| <= ball, for lr decay <= 1.

    Of the orthogonal factor O, the spectral norm is at most 1: Scion keeps to its radius, and Muon
    with decay to 1 / weight_decay, each times the scale of the shape.
    """
    new = one_step(behind_the_factor(name)).weight
    of_weight, of_factor = (new.terms[n].subs(weight_decay, decay) for n in "wg")
    assert sp.simplify(of_weight - (1 - lr * decay)) == 0  # so it is at least 0
    assert sp.simplify(of_weight * ball - of_factor - ball) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equation_4_holds_in_every_dimension(name):
    assert radial_part(FUNCTIONS[name]) == 0


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
