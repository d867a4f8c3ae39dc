"""The derived laws: each is the step of its code, a fault changes it, and what each recipe has."""

import re

import numpy as np
import pytest
import sympy as sp
import torch

from spherenorm import chain, find_recipe
from spherenorm import rules as r
from spherenorm_theory import check, norm_growth, one_step, step_in_coordinates, trace
from spherenorm_theory.algebra import BudgetError, tidy
from spherenorm_theory.laws import S, W
from tests.harness import refuses
from tests.theory import faults
from tests.theory.chains import compare_chain
from tests.theory.recipes import ENTRIES, NUMBERS, WITH_LAWS, By, accumulated, law_of, scaled

lr, beta, wd, rho = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "wd_ratio")
)


X = sp.Symbol("<w,m>", real=True)
PLAIN = {"weight_decay": 0.0, "dampening": 0.0}


def same(a, b):
    return sp.simplify(a - b) == 0


@pytest.mark.parametrize("name", WITH_LAWS)
def test_every_recipe_has_a_law(name):
    law = law_of(name)
    assert law.residual == 0
    assert "law" in repr(law)
    assert r"\|w'\|^2" in law.latex()


def test_the_test_takes_the_other_branch_without_scale_invariance():
    general = law_of("sgdp", scale_invariant=False, **PLAIN)
    assert general.cross.has(sp.Symbol("<w,g>", real=True), X)
    assert any("no projection acts" in a for a in general.assumptions)


def test_momentum_and_decay():
    assert same(law_of("sgd", **PLAIN).cross, -lr * beta * X)
    assert same(law_of("sgd", **PLAIN).recursion[X], beta * X - S / lr)
    assert same(law_of("sgdw", dampening=0.0).recursion[X], (1 - lr * wd) * beta * X - S / lr)
    assert same(law_of("sgdw").kappa, lr * wd)
    assert same(law_of("sgdp").kappa, lr * wd * rho / (1 - beta))
    assert same(law_of("sgdp").law.rhs, S + W * (1 - lr * wd * rho / (1 - beta)) ** 2)
    assert same(law_of("sgdp", project_buffer=True).recursion[X], -S / lr)
    assert law_of("sgdg").constant
    assert law_of("adamg").constant


def test_given_numbers_enter_exactly():
    """1 - 0.9 in floating point is 0.09999999999999998."""
    assert law_of("sgdp", momentum=0.9).kappa == 10 * lr * wd * rho
    held = law_of("adam", betas=(0.9, "beta2"), eps=0.0)
    assert [*held.step.traced.symbols] == ["lr", "beta2", "weight_decay"]
    assert sp.Rational(9, 10) in held.step.states["m"].terms.values()


def test_coupled_decay_couples_the_norm_into_the_recursion():
    law = law_of("sgd", dampening=0.0)
    assert law.closed_form() is None
    unknowns = law.system.unknowns
    assert unknowns == (W, X)
    after = law.system.matrix * sp.Matrix(unknowns) + law.system.rest
    assert same(law.recursion[X], after[1])


def test_nesterov_needs_one_more_product():
    law = law_of("sgd", nesterov=True, **PLAIN)
    assert same(law.cross, -lr * beta**2 * X)
    assert sp.Symbol("<m,s>", real=True) in law.recursion[X].free_symbols


def test_order_of_the_chain_matters_under_a_schedule():
    def inside(lr=0.1, momentum=0.9):
        return chain(r.StepSize(lr), r.HeavyBall(momentum))

    k = sp.Symbol("k", integer=True, nonnegative=True)
    rate = sp.IndexedBase(lr)
    assert not norm_growth(inside).closed_form(varying=("lr",)).has(rate[k])
    assert law_of("sgd", **PLAIN).closed_form(varying=("lr",)).has(rate[k])


@pytest.mark.parametrize("varying", [(), ("lr",), ("lr", "weight_decay", "momentum")])
@pytest.mark.parametrize(
    ("name", "given"), [("sgd", PLAIN), ("sgdw", {}), ("sgdp", {}), ("adamp", {})]
)
def test_closed_forms_are_proved_by_induction(name, given, varying):
    assert set(law_of(name, **given).induction(varying).values()) == {0}


def test_closed_form_agrees_with_iteration():
    law = law_of("sgdw", dampening=0.0)
    closed, t = law.closed_form(), sp.Symbol("t", integer=True, nonnegative=True)
    numbers = {lr: sp.Rational(1, 3), beta: sp.Rational(4, 5), wd: sp.Rational(1, 7)}
    squared = [sp.Rational(n * n + 1, 3) for n in range(5)]
    value = sp.Integer(0)
    for step, square in enumerate(squared):
        total = (
            closed.rhs.subs(t, step)
            .doit()
            .subs({sp.IndexedBase(S)[i]: s for i, s in enumerate(squared)})
            .subs(numbers)
        )
        assert sp.simplify(total - value) == 0
        value = law.recursion[X].subs({X: value, S: square}).subs(numbers)


def test_no_closed_form_to_prove():
    with refuses("closed form"):
        law_of("adam").induction()


@pytest.mark.parametrize(
    ("fault", "reference"),
    [
        (faults.no_projection, "sgdp"),
        (faults.wrong_sign, "sgdp"),
        (faults.projected_gradient, "sgdp"),
        (faults.beta_squared, "sgd"),
    ],
    ids=lambda f: getattr(f, "__name__", f),
)
def test_a_fault_changes_the_law(fault, reference):
    faulty, sound = norm_growth(fault, **PLAIN), law_of(reference, **PLAIN)
    assert faulty.residual == 0
    assert not same(faulty.law.rhs, sound.law.rhs)


def test_entrywise_directions_are_any_vector():
    law = law_of("adam")
    assert law.open_because
    assert any("any vector" in a for a in law.assumptions)
    assert law_of("adamp").cross == 0


def by_its_length(function):
    """The direction times a function of its squared length."""
    return By(lambda w, d: d * function((d * d).sum(1, keepdim=True)))


LENGTHS = {
    "1/|d|": torch.rsqrt,
    "|d|^2": lambda squared: squared,
    "exp(-|d|^2)": lambda squared: torch.exp(-squared),
}


@pytest.mark.parametrize("length", LENGTHS)
def test_lemma_2_2_holds_whatever_scales_the_gradients(length):
    """|g|^2 enters s by more than its square, and is no matter: the buffer is s / -lr."""

    def recipe(lr=0.1, momentum=0.9):
        return chain(by_its_length(LENGTHS[length]), r.HeavyBall(momentum), r.StepSize(lr))

    law = norm_growth(recipe)
    assert same(law.recursion[X], beta * X - S / lr)
    assert set(law.induction().values()) == {0}
    assert law.starts_alike


@pytest.mark.parametrize(
    ("length", "why"),
    [
        ("1/|d|", r"^r1 = sqrt\(2\*<g,m>\*momentum"),
        ("|d|^2", r"^<g,m>, \|g\|\^2, \|m\|\^2: "),
        ("exp(-|d|^2)", "^<g,m>, "),
    ],
)
def test_a_length_that_no_recursion_carries_is_named(length, why):
    def recipe(lr=0.1, momentum=0.9):
        return chain(r.HeavyBall(momentum), by_its_length(LENGTHS[length]), r.StepSize(lr))

    law = norm_growth(recipe)
    assert law.residual == 0
    assert re.search(why, law.open_because), law.open_because
    assert law.open_because.endswith("not carried by a recursion; so <w,s> has to be measured")
    assert "nan" not in repr(law)
    result = check(recipe, "toy-3d", steps=30)
    assert result.passed
    assert result.identity


def test_reasons_by_kind():
    def clipped(lr=0.1, momentum=0.9):
        return chain(r.HeavyBall(momentum), r.UnitClip(1.0), r.StepSize(lr))

    orthogonal = "<w,u>: u not linear in gradients orthogonal to their weights; so"
    assert law_of("adam").open_because.startswith(orthogonal)
    assert norm_growth(clipped).open_because.startswith("c2: decided anew at each step; ")


def test_evidence_that_stays_zero_decides_the_test():
    law = norm_growth(accumulated)
    assert same(law.law.rhs, S + W * (1 - lr * wd / 10) ** 2)
    assert "evidence_channel = 0, as at the start" in law.assumptions
    assert norm_growth(accumulated, scale_invariant=False).open_because


def test_a_first_step_of_another_kind_is_told():
    assert law_of("sgd", weight_decay=0.0).starts_alike
    dampened = law_of("sgd")
    assert not dampened.starts_alike
    assert same(dampened.first.kappa, lr * wd)
    assert "first step" in repr(dampened)
    assert law_of("sgd", weight_decay=0.0, nesterov=True).closed_form() is None
    assert law_of("sgd", nesterov=True, **PLAIN).closed_form() is not None


def test_dimension_does_not_matter():
    assert str(norm_growth(trace("sgdp", dimension=3))) == str(
        norm_growth(trace("sgdp", dimension=8))
    )


def test_an_iteration_that_doubles_its_formulas_is_refused():
    """Twelve steps of Newton and Schulz, of which each formula holds the last one several times."""
    with refuses("spel", 100_000, by=BudgetError):
        norm_growth("spel")


SEEDS = [s if 0 < s < 7 else pytest.param(s, marks=pytest.mark.long) for s in range(48)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_chain_is_its_law(seed):
    assert compare_chain(seed) in ("same", "one unit")


def test_the_undamped_start():
    past = one_step("sgd", weight_decay=0.0)
    start = one_step("sgd", weight_decay=0.0, first=True)
    tau = sp.Symbol("dampening", positive=True)
    assert tidy(past.states["m"]["g"] - (1 - tau)) == 0
    assert start.states["m"].terms == {"g": 1}


def assert_coordinates_match(recipe, shape, rng, orthogonal=False, **view):
    """The step in coordinates is the step of the rule, from a random state."""
    traced, rule = trace(recipe, dimension=max(shape), **view), find_recipe(recipe)(**view)
    letters = one_step(recipe).letters if isinstance(recipe, str) else {"momentum": "m"}
    w, g = torch.tensor(rng.normal(size=(2, *shape)))
    g = g - orthogonal * (g * w).sum() / (w * w).sum() * w
    state = {
        n: torch.tensor(rng.random(v.shape)) + 0.5 if v.ndim else v + 3
        for n, v in rule.init(w).items()
    }
    values = {str(s): v for s, v in traced.values().items()}
    given = {letters[n]: _exact(v) if v.numel() > 1 else float(v) for n, v in state.items()}
    new, after, _ = step_in_coordinates(traced, _exact(w), _exact(g), **values, **given)
    weight, states = rule.step(w, g, state)
    pairs = [(new, weight), *((after[letters[n]], v) for n, v in states.items())]
    for found, expected in pairs:
        np.testing.assert_allclose(np.array(found, dtype=float), expected, rtol=1e-12, atol=1e-14)


def _exact(x):
    return [sp.Float(float(v), 30) for v in np.ravel(x)]


@pytest.mark.parametrize("name", [*NUMBERS, *ENTRIES])
def test_operations_in_coordinates_match_a_float64_step(name):
    recipe = scaled({**NUMBERS, **ENTRIES}[name])
    assert_coordinates_match(recipe, (1, 3), np.random.default_rng(7))


@pytest.mark.parametrize("name", WITH_LAWS)
def test_coordinates_match_a_float64_step(name):
    """For a gradient that is orthogonal to the weight, and for any other."""
    for orthogonal in (True, False):
        assert_coordinates_match(name, (1, 3), np.random.default_rng(len(name)), orthogonal)


def test_coordinates_of_another_view_match_a_float64_step():
    assert_coordinates_match("sgdg", (3, 1), np.random.default_rng(1), view="dim=1")
    with refuses(2, 3):
        step_in_coordinates(trace("sgd", dimension=2), [1, 2, 3], [0, 0, 0])
