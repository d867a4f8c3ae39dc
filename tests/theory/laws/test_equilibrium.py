"""Equilibria: closed forms, and recipes that have none."""

from dataclasses import replace

import pytest
import sympy as sp

from spherenorm import Rule, chain
from spherenorm import rules as r
from tests.theory import faults
from theory import NoEquilibriumError, equilibrium

lr, beta, wd, gamma = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "gamma")
)


def test_plain_sgd_by_hand():
    law = equilibrium("sgd", momentum=0.0, dampening=0.0)
    # (1 - k)^2 W + lr^2 gamma^2 / W = W with k = lr wd
    k = lr * wd
    assert sp.simplify(law.fourth_power - lr**2 * gamma**2 / (1 - (1 - k) ** 2)) == 0
    assert sp.simplify(law.squared_rotation - 2 * k) == 0
    assert sp.simplify(law.leading(law.fourth_power) - gamma**2 * lr / (2 * wd)) == 0


@pytest.mark.parametrize(
    ("name", "given"), [("adamp", {"betas": (0.9, "beta2")}), ("sgdp", {"momentum": 0.9})]
)
def test_given_numbers_are_those_of_the_general_law(name, given):
    """With bias correction too, whose (9/10)^t dies out in any form."""
    structure = {"eps": 0.0, "dampening": 0.0} if name == "sgdp" else {"eps": 0.0}
    held, general = equilibrium(name, **structure, **given), equilibrium(name, **structure)
    nine_tenths = {
        s: sp.Rational(9, 10)
        for s in general.fourth_power.free_symbols
        if s.name in ("momentum", "beta1")
    }
    assert nine_tenths
    assert sp.simplify(held.fourth_power - general.fourth_power.subs(nine_tenths)) == 0


def test_a_fault_changes_the_equilibrium():
    faulty, sound = (equilibrium(f, dampening=0.0) for f in (faults.beta_squared, "sgd"))
    assert sp.simplify(faulty.squared_rotation - sound.squared_rotation) != 0


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("sgd", {"weight_decay": 0.0}, "without decay"),
        ("sgdg", {}, "never changes"),
        ("adam", {"eps": 0.0}, "coupled decay"),
        ("rmsprop", {"eps": 0.0, "weight_decay": 0.0}, "without decay"),
    ],
)
def test_no_equilibrium(name, given, why):
    with pytest.raises(NoEquilibriumError, match=why):
        equilibrium(name, **given)


def test_a_step_that_does_not_scale():
    """At another length of weight and gradients, eps and a unit step have other shares."""

    def turning(lr=0.1, momentum=0.9, weight_decay=0.1):
        return chain(
            r.HeavyBall(momentum), UnitLength(), r.DecoupledDecay(weight_decay), r.StepSize(lr)
        )

    for recipe, message in [
        (turning, "turning: the step does not scale with the weight and its gradients"),
        ("adamw", "adamw: the step does not scale with gradients.*eps=0.0 holds it at 0"),
    ]:
        with pytest.raises(NoEquilibriumError, match=message):
            equilibrium(recipe)


def test_outside_of_the_range_of_stability_there_is_an_error():
    law = equilibrium("sgd", momentum=0.0, dampening=0.0)
    inside, outside = (law.traced.values(lr=1.0, weight_decay=x) for x in (1.9, 2.1))
    assert law.squared_norm(inside, 256, 1.0) > 0
    with pytest.raises(NoEquilibriumError, match=r"does not settle at lr=1, weight_decay=2\.1"):
        law.squared_norm(outside, 256, 1.0)
    assert any("at most, as measured" in each for each in law.hypotheses)
    assert law.bound(inside, 2) > law.bound(inside, 256) > 0


class UnitLength(Rule):
    def update(self, update, state):
        return replace(update, direction=update.direction / update.direction.norm()), {}


def test_projected_nesterov_has_a_quadratic():
    law = equilibrium("sgdp", nesterov=True, dampening=0.0)
    rho = sp.Symbol("wd_ratio", positive=True)
    assert sp.simplify(law.squared_rotation - 2 * lr * wd * rho / (1 - beta)) == 0
    assert "for small lr" not in law.formulas()["|w|^4"]
    with pytest.raises(ValueError, match="no leading term"):
        law.leading(law.fourth_power)


def test_text():
    assert "for small lr" in str(equilibrium("sgdw", momentum=0.0))
