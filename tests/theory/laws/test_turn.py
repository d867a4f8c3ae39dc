"""The turn at rest: against closed forms, against the recursion by hand, and against runs."""

import math

import pytest
import torch
from scipy.optimize import brentq

import spherenorm as sn
from spherenorm_theory import NoEquilibriumError, equilibrium, turn_at_rest
from spherenorm_theory.checks import check_turn
from tests.harness import refuses
from tests.theory.recipes import Keeps

DECAYED = [
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1}),
    ("sgdp", {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1}),
    ("adamw", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 1.0}),
    ("adamp", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 5.0}),
]


@pytest.mark.parametrize(("name", "values"), DECAYED)
def test_it_is_that_of_the_closed_form(name, values):
    held = {"eps": 0.0} if "betas" in values else {"dampening": 0.0}
    law = equilibrium(name, **held)
    chord = law.rotation(law.traced.values(**values))
    assert turn_at_rest(name, **values) == pytest.approx(2 * math.asin(chord / 2), rel=1e-8)


def turn_by_hand(lr, beta):
    """With c = cos(w, m): the next <w, m> is beta (c - lr) / rho, as the next gradient adds 0."""

    def rho(c):
        return math.sqrt(1 - 2 * lr * c + lr**2)

    c = brentq(lambda c: c * rho(c) - beta * (c - lr), -1, 0, xtol=1e-15)
    return math.atan2(lr * math.sqrt(1 - c**2), 1 - lr * c)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("lr", [1e-3, 1 / 16, 0.5])
def test_a_hyperball_turns_less_the_longer_it_remembers(lr, beta):
    turn = turn_at_rest("adamh", lr=lr, betas=(beta, 0.99))
    assert turn == pytest.approx(turn_by_hand(lr, beta), rel=1e-8)
    assert turn == pytest.approx(math.atan(lr), rel=1e-8) or beta > 0


RUNS = [
    ("adamh", {"lr": 0.0625, "betas": (0.9, 0.99), "view": "channel"}),
    ("hyperball(sgd)", {"lr": 0.06, "nesterov": True, "dampening": 0.0, "view": "channel"}),
    pytest.param("radial_brake(adamw)", {"lr": 0.03, "view": "channel"}, marks=pytest.mark.long),
    ("nora", {"lr": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "values"), RUNS)
def test_runs_turn_so(name, values):
    found = check_turn(name, units=32, **values)
    assert found.error < 0.005, found


def test_a_rule_of_ones_own():
    """Half of the newest gradient, half of the memory: a heavy ball of the momentum 1/2."""

    def halves(lr=0.1):
        half = Keeps(lambda w, d, m: (m := 0.5 * m + 0.5 * d, m), torch.zeros_like)
        return sn.chain(half, sn.rules.StepSize(lr))

    mine = sn.wrappers.hyperball(halves)
    assert turn_at_rest(mine, lr=0.3) == pytest.approx(turn_by_hand(0.3, 0.5), rel=1e-8)


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        pytest.param("sgd", {"weight_decay": 0.0}, "do not rest", marks=pytest.mark.long),
        ("hyperball(lion)", {}, "not linear in the gradients"),
        pytest.param("hyperball(muon)", {}, "grew beyond", marks=pytest.mark.long),
        ("ngpt", {}, "changes with the lengths"),
        ("rotational(adamw)", {}, "random gradients do not fix"),
    ],
)
def test_what_has_no_turn_is_refused(name, values, why):
    with refuses(why, by=NoEquilibriumError):
        turn_at_rest(name, **values)
