"""Equilibria: closed forms, and recipes that have none."""

import numpy as np
import pytest
import sympy as sp
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import NoEquilibriumError, equilibrium, equilibrium_turn, growth_ratio
from spherenorm_theory.equilibria.equilibrium import without_eps
from spherenorm_theory.printing import words
from tests.harness import refuses
from tests.theory import faults
from tests.theory.recipes import By, Keeps

lr, beta, wd, gamma = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "gamma")
)


def test_plain_sgd_by_hand():
    law = equilibrium("sgd", momentum=0.0, dampening=0.0)
    # (1 - k)^2 W + lr^2 gamma^2 / W = W with k = lr wd
    k = lr * wd
    assert sp.simplify(law.fourth_power - lr**2 * gamma**2 / (1 - (1 - k) ** 2)) == 0
    assert sp.simplify(law.squared_effective_step - 2 * k) == 0
    assert sp.simplify(law.leading_term(law.fourth_power) - gamma**2 * lr / (2 * wd)) == 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("adamp", {"betas": (0.9, 0.5)}, marks=pytest.mark.long),
        ("sgdp", {"momentum": 0.9}),
    ],
)
def test_given_numbers_are_those_of_the_general_law(name, settings):
    """With bias correction too, whose (9/10)^t dies out in any form."""
    structure = {"eps": 0.0, "dampening": 0.0} if name == "sgdp" else {"eps": 0.0}
    at_numbers, general = equilibrium(name, **structure, **settings), equilibrium(name, **structure)
    nine_tenths = {
        s: sp.Rational(9, 10)
        for s in general.fourth_power.free_symbols
        if s.name in ("momentum", "beta1")
    }
    assert nine_tenths
    assert sp.simplify(at_numbers.fourth_power - general.fourth_power.subs(nine_tenths)) == 0


def test_a_fault_changes_the_equilibrium():
    faulty, sound = (equilibrium(f, dampening=0.0) for f in (faults.beta_squared, "sgd"))
    assert sp.simplify(faulty.squared_effective_step - sound.squared_effective_step) != 0


def projected(lr=0.1, momentum=0.9, wd=0.1):
    """The projection takes the decay away."""
    coupled = By(lambda w, d, wd: d + wd * w, (wd,))
    return chain(coupled, r.HeavyBall(momentum), r.RadialProjection("channel"), r.StepSize(lr))


def turning(lr=0.1, momentum=0.9, weight_decay=0.1):
    """At another length of weight and gradients, a unit step has another share."""
    unit = By(lambda w, d: d / d.norm())
    return chain(r.HeavyBall(momentum), unit, r.DecoupledDecay(weight_decay), r.StepSize(lr))


def memory_then_unit(lr=0.1, momentum=0.9, weight_decay=0.1):
    rules = r.HeavyBall(momentum), r.NormalizedUpdate(), r.DecoupledDecay(weight_decay)
    return chain(*rules, r.StepSize(lr))


@pytest.mark.parametrize(
    ("recipe", "settings", "why"),
    [
        ("sgd", {"weight_decay": 0.0}, ["without decay"]),
        ("sgdg", {}, ["never changes"]),
        ("adam", {"eps": 0.0}, ["coupled decay"]),
        ("rmsprop", {"eps": 0.0, "weight_decay": 0.0}, ["without decay"]),
        (projected, {}, ["without decay"]),
        (turning, {}, ["turning"]),
        ("adamw", {}, ["adamw"]),
        ("adopt", {}, ["not linear in the gradients"]),
        (memory_then_unit, {}, ["no polynomials"]),
        # whose formulas grow for minutes
        ("ademamix", {"weight_decay": 0.01}, ["does not scale", "eps=0.0"]),
        ("amsgrad", {}, ["too long"]),
    ],
)
def test_no_equilibrium(recipe, settings, why):
    with refuses(*why, by=NoEquilibriumError):
        equilibrium(recipe, **settings)


def test_outside_of_the_range_of_stability_there_is_an_error():
    law = equilibrium("sgd", momentum=0.0, dampening=0.0)
    inside, outside = (law.traced.free_values(lr=1.0, weight_decay=x) for x in (1.9, 2.1))
    assert law.squared_norm(inside, 256, 1.0) > 0
    with refuses("lr=1", "weight_decay=2.1", by=NoEquilibriumError):
        law.squared_norm(outside, 256, 1.0)
    assert not any("at most" in words(hypothesis) for hypothesis in law.hypotheses)


@pytest.mark.long
def test_projected_nesterov_has_a_quadratic():
    law = equilibrium("sgdp", nesterov=True, dampening=0.0)
    rho = sp.Symbol("wd_ratio", positive=True)
    assert sp.simplify(law.squared_effective_step - 2 * lr * wd * rho / (1 - beta)) == 0
    assert "|w|" not in law.formulas_as_text()
    assert next(iter(equilibrium("sgdw", momentum=0.0).formulas_as_text())) == "|w|"
    with refuses("leading term"):
        law.leading_term(law.fourth_power)


def averaged(lr=0.1, momentum=0.9, beta=0.8, decay=0.99, weight_decay=0.01):
    """Two averages of gradients, and one of weights, on which no step depends."""
    weights = Keeps(lambda w, d, e, x: (d, x * e + (1 - x) * (w - d)), torch.clone, "ema", (decay,))
    momenta = r.HeavyBall(momentum), r.ExponentialAverage(beta)
    return chain(r.CoupledDecay(weight_decay), *momenta, r.StepSize(lr), weights)


def stationary_moments(after, gradient):
    """E|w|^2 and E|w' - w|^2 of x' = A x + b g with x = (w, momenta), for E|g|^2 = 1."""
    size, noise = len(gradient), np.outer(gradient, gradient)
    still = np.eye(size * size) - np.kron(after, after)
    moments = np.linalg.solve(still, noise.ravel()).reshape(size, size)
    way = after - np.eye(size)
    return moments[0, 0], (way @ moments @ way.T + noise)[0, 0]


def averaged_by_hand(lr, wd, momentum, beta):
    m = np.array([wd, momentum, 0])
    average = (1 - beta) * m + [0, 0, beta]
    return np.array([np.array([1, 0, 0]) - lr * average, m, average]), np.array(
        [-lr * (1 - beta), 1, 1 - beta]
    )


def test_several_momenta_against_their_second_moments():
    law = equilibrium(averaged)
    squared, squared_step = stationary_moments(*averaged_by_hand(0.1, 0.01, 0.9, 0.8))
    values = law.traced.free_values()
    assert law.squared_norm(values, 256, 1.0) == pytest.approx(np.sqrt(squared), rel=1e-9)
    assert law.effective_step(values) == pytest.approx(np.sqrt(squared_step / squared), rel=1e-9)


def along_a_sign(betas, lr, wd, steps=1500):
    """E|w|^2 / d and E|w' - w|^2 / d of Lion, as double sums over its last steps.

    Each entry of a gradient is an independent normal number.
    """
    beta1, beta2 = betas
    lags = np.arange(steps)
    readout = np.concatenate([[1 - beta1], beta1 * (1 - beta2) * beta2 ** lags[:-1]])
    products = np.correlate(readout, readout, "full")[steps - 1 :]
    signs = 2 / np.pi * np.arcsin(products / products[0])
    among = signs[np.abs(lags[:, None] - lags)]
    before = np.concatenate([[0.0], lr * (1 - lr * wd) ** lags[:-1]])
    after = lr * (1 - lr * wd) ** lags
    return before @ among @ before, (after - before) @ among @ (after - before)


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.5, 0.9), (0.0, 0.5)])
def test_a_sign_against_the_sums_over_its_steps(betas):
    law = equilibrium("lion", betas=betas) if 0 in betas else equilibrium("lion")
    squared, squared_step = along_a_sign(betas, 0.01, 2.0)
    values = law.traced.free_values(lr=0.01, weight_decay=2.0, betas=betas)
    assert law.squared_norm(values, 256, 1.0) == pytest.approx(256 * squared, rel=1e-9)
    assert law.effective_step(values) == pytest.approx(np.sqrt(squared_step / squared), rel=1e-9)
    at_numbers = equilibrium("lion", lr=0.01, weight_decay=2.0, betas=betas)
    assert at_numbers.effective_step({}) == pytest.approx(law.effective_step(values), rel=1e-9)


def test_a_sign_of_one_gradient_forgets():
    def signed(lr=0.1, weight_decay=0.1):
        return chain(r.Sign(), r.DecoupledDecay(weight_decay), r.StepSize(lr))

    assert sp.simplify(equilibrium(signed).squared_effective_step - 2 * lr * wd) == 0


def signed(*rules):
    def along_a_sign(lr=0.1, momentum=0.9, weight_decay=0.01):
        last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
        return chain(r.ExponentialAverage(momentum), *rules, *last)

    return along_a_sign


def tangent_signed(lr=0.1, weight_decay=0.01):
    """A momentum of which the share along the weight is taken away after it is read."""

    def tangent(w, d, past):
        new = past.lerp(d, 0.1)
        share = (w * new).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True)
        return past + d, new - share * w

    momentum = Keeps(tangent, torch.zeros_like, "exp_avg")
    return chain(momentum, r.Sign(), r.DecoupledDecay(weight_decay), r.StepSize(lr))


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (signed(r.HeavyBall(0.5), r.Sign()), ["several momenta"]),
        (tangent_signed, ["a momentum that w enters"]),
        (signed(r.Sign(), r.RadialProjection("channel")), ["a part is taken away"]),
        (signed(r.CoupledDecay(0.1), r.Sign()), ["sign("]),
        (signed(r.Sign(), r.HeavyBall(0.5)), ["sign(", "beside another one"]),
        ("lars", ["no fixed share of the weight", "|g|"]),
        ("schedulefree_sgd", ["on the step count t", "no stationary value"]),
        ("adabelief", ["not of gradients alone"]),
        ("grams", ["random gradients do not fix"]),
    ],
)
def test_the_true_cause_is_named(recipe, why):
    with refuses(*why, by=NoEquilibriumError):
        equilibrium(recipe, **without_eps(recipe))


def test_unit_gradients_are_those_of_sgd_with_a_gamma_of_the_norm():
    def normalized(lr=0.1, momentum=0.9, weight_decay=0.1):
        last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
        return chain(r.NormalizedUpdate(), r.HeavyBall(momentum), *last)

    unit, of_sgdw = equilibrium(normalized), equilibrium("sgdw", dampening=0.0)
    assert sp.simplify(unit.squared_effective_step - of_sgdw.squared_effective_step) == 0
    assert sp.simplify(unit.fourth_power - (of_sgdw.fourth_power / gamma**2) ** 2) == 0
    assert sp.simplify(growth_ratio(normalized) - growth_ratio("sgdw", dampening=0.0)) == 0


def test_formulas_are_tried_at_numbers_that_the_recipe_takes():
    def memory(lr=0.1, n=10.0, weight_decay=0.01):
        return chain(r.HeavyBall(1 - 1 / n), r.DecoupledDecay(weight_decay), r.StepSize(lr))

    of_memory, of_sgdw = equilibrium(memory), equilibrium("sgdw", dampening=0.0)
    n = of_memory.traced.symbols["n"]
    assert sp.simplify(of_memory.fourth_power - of_sgdw.fourth_power.subs(beta, 1 - 1 / n)) == 0


def test_a_growth_ratio_of_two_roots():
    def braked(lr=0.1, momentum=0.9, share=0.5):
        def brake(w, d, share):
            radial = (w * d).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True)
            return d - share * radial * w

        return chain(r.HeavyBall(momentum), By(brake, (share,)), r.StepSize(lr))

    assert growth_ratio("sgdg") == 0
    assert growth_ratio(braked).free_symbols >= {beta}


def test_the_point_attracts():
    """At lr wd near 2 the recursion of the norm has a multiplier near -1, below it a small one."""
    law = equilibrium("sgdw", momentum=0.0, dampening=0.0)
    radii = []
    for decay in (0.1, 0.9, 1.9):
        values = law.traced.free_values(lr=1.0, weight_decay=decay)
        radii.append(law.mean.fixed_point(values).radius)
        keep = 1 - decay
        # W' = keep^2 W + lr^2 gamma^2 / W has the derivative keep^2 - (1 - keep^2) in equilibrium.
        assert radii[-1] == pytest.approx(abs(2 * keep**2 - 1), abs=1e-4)
    assert max(radii) < 1


def test_a_root_is_the_one_that_iterating_comes_to():
    """Projected Nesterov momentum has two; the other is no norm that a run settles at."""
    law = equilibrium("sgdp", nesterov=True, dampening=0.0)
    values = law.traced.free_values(lr=0.1, weight_decay=0.3, momentum=0.6)
    chord = 2 * np.sin(equilibrium_turn("sgdp", nesterov=True, dampening=0.0, lr=0.1,
                                    weight_decay=0.3, momentum=0.6) / 2)  # fmt: skip
    assert law.effective_step(values) == pytest.approx(chord, rel=1e-8)


def test_a_formula_that_holds_without_eps_does_not_have_it():
    """A clip may be open: its eps cannot be 0, and the formula is that of a small eps."""
    law = equilibrium("stable_adamw", weight_decay=0.01)
    assert "eps = 0" in " ".join(str(law).split())
    assert law.traced.symbols["eps"] not in law.fourth_power.free_symbols
