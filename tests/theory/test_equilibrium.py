"""Equilibria: closed forms, and recipes that have none."""

from dataclasses import replace

import pytest
import sympy as sp

from spherenorm import Rule, chain
from spherenorm import rules as r
from tests.theory import faults
from theory import NoEquilibriumError, equilibrium
from theory.beyond import growth_ratio
from theory.norm_growth import S, W

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
    """With bias correction too, whose (9/10)^t dies out in whatever form it is written."""
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


def test_an_equilibrium_that_is_no_polynomial():
    def turning(lr=0.1, momentum=0.9, weight_decay=0.1):
        return chain(
            r.HeavyBall(momentum), UnitLength(), r.DecoupledDecay(weight_decay), r.StepSize(lr)
        )

    with pytest.raises(
        NoEquilibriumError, match="turning: no closed form, its equations are no polynomials"
    ):
        equilibrium(turning)


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


@pytest.mark.parametrize(("name", "value"), [("sgd", 19), ("sgdp", 1), ("sgdg", 0)])
def test_growth_ratio(name, value):
    plain = {} if name == "sgdg" else {"weight_decay": 0.0, "dampening": 0.0}
    assert growth_ratio(name, **plain).subs(beta, sp.Rational(9, 10)) == value


def test_coupled_decay_has_no_one_growth_ratio():
    coupled = growth_ratio("sgd", dampening=0.0)
    assert {W, S} <= coupled.free_symbols
    assert sp.simplify(coupled.subs(wd, 0) - (1 + beta) / (1 - beta)) == 0
