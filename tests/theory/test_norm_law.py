"""The derived laws: each is the step of its code, a fault changes it, and what each recipe has."""

import pytest
import sympy as sp
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import check, norm_growth, one_step, trace
from spherenorm_theory.printing import show
from spherenorm_theory.step import S, W
from spherenorm_theory.symbols import Inner, Norm, Vector, canonical_form
from tests.harness import refuses
from tests.harness.tables import mostly_long
from tests.theory.chains import compare_chain
from tests.theory.recipes import (
    ENTRIES,
    MATRICES,
    NUMBERS,
    WITH_LAWS,
    WITHOUT_LAWS,
    By,
    accumulated,
    by,
    law_of,
    scaled,
)
from tests.theory.step import assert_is_the_step

lr, beta, wd, rho = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "wd_ratio")
)
X, Y = Inner("w", "m"), Inner("w", "s")
WITHOUT_DECAY = {"weight_decay": 0.0, "dampening": 0.0}


def same(a, b):
    return sp.simplify(a - b) == 0


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def usual_numbers(law):
    """Numbers for a law's symbols."""
    intervals = law.step.traced.intervals
    return {n: 0.4 if intervals[n].high == 1 else 0.2 for n in law.step.traced.symbolic}


@pytest.mark.parametrize("name", WITH_LAWS)
def test_every_recipe_has_a_law_whose_claims_hold(name):
    law = law_of(name)
    assert law.claims
    assert [claim for claim in law.claims if not claim.holds] == []
    shape = (4, 6) if name in MATRICES or law.verified_domain.multi_unit else law.step.traced.shape
    assert assert_is_the_step(law, shape, usual_numbers(law), generator()) > 1


def test_the_share_of_recipes_with_a_law():
    """The README says so."""
    assert len(WITHOUT_LAWS) <= 4
    assert len(WITH_LAWS) >= 21


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("muonsphere", ["FixedSpectralNorm", "largest singular value"]),
        ("muown", ["GainAndDirection", "channel", "Orthogonalize"]),
        ("angularmuown", ["GainAndDirection", "channel"]),
        ("mdmuon", ["GainAndDirection"]),
    ],
)
def test_units_that_interact_are_refused_by_the_rule(name, named):
    with refuses("units interact", *named):
        norm_growth(name)


def newton_schulz(w, d):
    x = d / d.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x - 4.775 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def test_an_iteration_of_ones_own_is_refused_by_its_line():
    with refuses("units interact", "test_norm_law.py", "gram"):
        norm_growth(by(newton_schulz))


def test_momentum_and_decay():
    assert same(law_of("sgd", **WITHOUT_DECAY).cross, -lr * beta * X)
    assert same(law_of("sgd", **WITHOUT_DECAY).recursion[X], beta * X - S / lr)
    assert same(law_of("sgdw", dampening=0.0).recursion[X], (1 - lr * wd) * beta * X - S / lr)
    assert same(law_of("sgdw").kappa, lr * wd)
    assert same(law_of("sgdp").kappa, lr * wd * rho / (1 - beta))
    assert same(law_of("sgdp").equation.rhs, S + W * (1 - lr * wd * rho / (1 - beta)) ** 2)
    assert same(law_of("sgdp", project_buffer=True).recursion[X], -S / lr)
    assert law_of("sgdg").new_norm == law_of("adamg").new_norm == Norm("w")
    assert law_of("adamh").new_norm == sp.Symbol("radius", positive=True)
    assert law_of("ngpt").new_norm == 1


def test_given_numbers_enter_exactly_and_last():
    """1 - 0.9 in floating point is 0.09999999999999998."""
    assert law_of("sgdp", momentum=0.9).kappa == 10 * lr * wd * rho
    law = law_of("adam", betas=(0.9, 0.5), eps=0.0)
    assert [*law.step.traced.symbolic] == ["lr", "weight_decay"]
    assert "0.9" in str(law.proposition()) or "9/10" in str(law.proposition())
    assert sp.Rational(9, 10) in law.substitute_given_numbers(law.step.states["m"]).values()


def test_coupled_decay_couples_the_norm_into_the_recursion():
    law = law_of("sgd", dampening=0.0)
    assert law.closed_form() is None
    assert law.recursion[X].has(Norm("w"))
    assert "|w_t|^2 enters the recursion of <w, m>" in " ".join(str(law).split())


def test_nesterov_needs_one_more_product():
    law = law_of("sgd", nesterov=True, **WITHOUT_DECAY)
    assert same(law.cross, -lr * beta**2 * X)
    assert Inner("m", "s") in law.recursion[X].free_symbols


t, k = sp.symbols("t k", integer=True, nonnegative=True)


def test_lemma_2_2_with_decay_is_printed_as_the_paper_has_it():
    """half/theory.md: |w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum ..."""
    law = law_of("sgdw", dampening=0.0)
    w, s = (sp.IndexedBase(Norm(n)) for n in "ws")
    past = sp.Sum((beta * (1 - lr * wd)) ** (t - k) * s[k] ** 2, (k, 0, t - 1))
    expected = (1 - lr * wd) ** 2 * w[t] ** 2 + s[t] ** 2 + 2 * past
    closed = law.closed_form()
    assert closed.lhs == w[t + 1] ** 2
    assert sp.simplify(closed.rhs - expected) == 0
    assert show(closed).startswith("|w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum_{k<t}")


def test_a_first_step_of_another_kind_leaves_no_closed_form():
    """torch's dampening takes the first gradient whole."""
    assert law_of("sgdw").closed_form() is None
    assert "first step" in str(law_of("sgdw"))
    assert law_of("sgdw", dampening=0.0).closed_form() is not None


def test_the_test_takes_the_other_branch_without_scale_invariance():
    general = law_of("sgdp", scale_invariant=False, **WITHOUT_DECAY)
    assert general.cross.has(Inner("w", "g"), X)
    assert any("no projection acts" in a for a in general.hypotheses_text)


def by_its_length(function):
    """The direction times a function of its squared length."""
    return By(lambda w, d: d * function((d * d).sum(1, keepdim=True)))


def test_a_length_that_no_recursion_carries_is_named():
    def recipe(lr=0.1, momentum=0.9):
        return chain(r.HeavyBall(momentum), by_its_length(torch.rsqrt), r.StepSize(lr))

    law = norm_growth(recipe)
    assert "|p|: carried by no recursion" in law.open_because
    assert any(show(claim.relation) == "|s_t|^2 = lr^2" for claim in law.claims)
    result = check(recipe, "toy-3d", steps=30)
    assert result.passed
    assert result.law.open_because


def test_reasons_by_kind():
    def clipped(lr=0.1, momentum=0.9):
        return chain(r.HeavyBall(momentum), r.UnitClip(1.0), r.StepSize(lr))

    assert "u not linear in gradients orthogonal to their weights" in law_of("adam").open_because
    assert "decided anew at each step" in norm_growth(clipped).open_because


def test_evidence_that_stays_zero_decides_the_test():
    law = norm_growth(accumulated)
    assert same(law.equation.rhs, S + W * (1 - lr * wd / 10) ** 2)
    assert "evidence_channel = 0, as at the start" in law.hypotheses_text
    assert norm_growth(accumulated, scale_invariant=False).open_because


def test_dimension_does_not_matter():
    assert str(norm_growth(trace("sgdp", dimension=3))) == str(
        norm_growth(trace("sgdp", dimension=8))
    )


@pytest.mark.parametrize("name", mostly_long(NUMBERS, kept=10))
def test_functions_of_norms(name):
    law = norm_growth(scaled(NUMBERS[name]))
    assert same(law.recursion[X], beta * X - S / lr), "Lemma 2.2, whatever scales the direction"
    shape = (3, 4) if law.verified_domain.multi_unit else (1, 7)
    assert assert_is_the_step(law, shape, {"lr": 0.3, "momentum": 0.6}, generator())


@pytest.mark.parametrize("name", mostly_long(ENTRIES, kept=8))
def test_functions_of_entries(name):
    """The atoms of entrywise operations are the arrays of the code."""
    law = norm_growth(by(ENTRIES[name]))
    assert assert_is_the_step(law, (3, 4), {"lr": 0.3, "momentum": 0.6}, generator())


SEEDS = [s if s in (1, 3, 5, 6) else pytest.param(s, marks=pytest.mark.long) for s in range(48)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_is_its_law(seed):
    assert compare_chain(seed) in ("same", "one unit")


def test_letters_are_given_to_norms_of_combinations():
    step = one_step("nora")
    assert {*step.algebra.combinations} == {"p"}
    assert step.algebra.inner(Vector.atom("w"), Vector.atom("p")) == 0
    assert isinstance(step.algebra.combinations["p"], Vector)
    assert (
        canonical_form(step.algebra.expand_and_simplify(Norm("p") ** 2) - step.algebra.square("p"))
        == 0
    )
