"""The turn in equilibrium: against closed forms, the recursion by hand, runs, and plain loops."""

import contextlib
import math

import pytest
import torch
from scipy.optimize import brentq

import spherenorm as sn
from spherenorm_theory import NoEquilibriumError, TraceError, equilibrium, equilibrium_turn
from spherenorm_theory.checks import check_turn
from tests.harness import refuses
from tests.theory import equilibria
from tests.theory.recipes import Keeps, keeps

DECAYED = [
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 1e-5}),
    ("sgdp", {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1}),
    ("adamw", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 1.0}),
    ("adamp", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 5.0}),
]


@pytest.mark.parametrize(("name", "values"), DECAYED)
def test_it_is_that_of_the_closed_form(name, values):
    structure = {"eps": 0.0} if "betas" in values else {"dampening": 0.0}
    law = equilibrium(name, **structure)
    chord = law.effective_step(law.traced.free_values(**values))
    assert equilibrium_turn(name, **values) == pytest.approx(2 * math.asin(chord / 2), rel=1e-8)


def turn_by_hand(lr, beta):
    """With c = cos(w, m): the next <w, m> is beta (c - lr) / rho, as the next gradient adds 0."""

    def rho(c):
        return math.sqrt(1 - 2 * lr * c + lr**2)

    c = brentq(lambda c: c * rho(c) - beta * (c - lr), -1, 0, xtol=1e-15)
    return math.atan2(lr * math.sqrt(1 - c**2), 1 - lr * c)


@pytest.mark.parametrize(
    ("lr", "beta"),
    [
        *((1 / 16, beta) for beta in (0.0, 0.5, 0.9)),
        *((lr, 0.99) for lr in (1e-3, 0.5)),
    ],
)
def test_a_hyperball_turns_less_the_longer_it_remembers(lr, beta):
    turn = equilibrium_turn("adamh", lr=lr, betas=(beta, 0.99))
    assert turn == pytest.approx(turn_by_hand(lr, beta), rel=1e-8)
    assert turn == pytest.approx(math.atan(lr), rel=1e-8) or beta > 0


def sign_of_smooth_averages(lr=0.01, beta=0.5, beta2=0.8, weight_decay=1.0):
    averages = sn.rules.ExponentialAverage(beta), sn.rules.ExponentialAverage(beta2)
    last = sn.rules.DecoupledDecay(weight_decay), sn.rules.StepSize(lr)
    return sn.chain(*averages, sn.rules.Sign(), *last)


RUNS = [
    (sign_of_smooth_averages, {}),
    ("adamh", {"lr": 0.0625, "betas": (0.9, 0.99)}),
    ("hyperball(sgd)", {"lr": 0.06, "nesterov": True, "dampening": 0.0}),
    ("nora", {"lr": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("recipe", "values"), RUNS)
def test_runs_turn_so(recipe, values):
    check = check_turn(recipe, shape=(32, 256), steps=300, warm_up=200, **values)
    assert check.error < 0.005, check


def test_a_rule_of_ones_own():
    """Half of the newest gradient, half of the memory: a heavy ball of the momentum 1/2."""

    def halves(lr=0.1):
        half = Keeps(lambda w, d, m: (m := 0.5 * m + 0.5 * d, m), torch.zeros_like)
        return sn.chain(half, sn.rules.StepSize(lr))

    mine = sn.wrappers.hyperball(halves)
    assert equilibrium_turn(mine, lr=0.3) == pytest.approx(turn_by_hand(0.3, 0.5), rel=1e-8)


def test_a_step_much_longer_than_the_first_weight_comes_to_rest():
    """Without a share along the weight, 1 - cos(turn) is the decay of one step."""

    def signed(lr=0.1, momentum=0.9, weight_decay=0.1):
        direction = sn.rules.Sign(), sn.rules.RadialProjection("channel")
        last = sn.rules.DecoupledDecay(weight_decay), sn.rules.StepSize(lr)
        return sn.chain(sn.rules.HeavyBall(momentum), *direction, *last)

    assert 1 - math.cos(equilibrium_turn(signed)) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("sgd", {"weight_decay": 0.0}, "do not become stationary"),
        ("ngpt", {}, "changes with the lengths"),
        pytest.param("rotational(adamw)", {}, "", marks=pytest.mark.long),
    ],
)
def test_what_has_no_turn_is_refused(name, values, why):
    with refuses(why, by=NoEquilibriumError):
        equilibrium_turn(name, **values)


SGDP = ("sgdp", {**equilibria.NOISE, "momentum": 0.5})
ADAMW = ("adamw", {**equilibria.ADAMW, "betas": (0.9, 0.9)})
QUICK = [(*SGDP, 2), (*SGDP, 256), (*ADAMW, 256)]
LONG = [
    *((*case, 256) for case in equilibria.recipes((0.0, 0.5, 0.9), (0.99, 0.999))),
    *((*case, size) for size in (2, 16) for case in equilibria.recipes((0.5, 0.9), (0.5, 0.9))),
]


@pytest.mark.parametrize(
    ("name", "numbers", "size", "warm_up"),
    [
        *((*case, 400) for case in QUICK),
        *(pytest.param(*case, 1500, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_an_equilibrium_is_that_of_a_plain_loop(name, numbers, size, warm_up):
    try:
        errors, bound = equilibria.compare(name, numbers, size, steps=warm_up, min_warm_up=warm_up)
    except NoEquilibriumError:
        assert size < 256
    else:
        assert max(map(abs, errors)) <= (
            bound if size < 256 or warm_up < 1500 else min(bound, 0.01)
        )


def test_a_loop_with_another_decay_is_off_by_more_than_the_bound(monkeypatch):
    monkeypatch.setattr(equilibria, "RATIO", 0.3)
    errors, bound = equilibria.compare(*SGDP, 256, 200, 400)
    assert max(map(abs, errors)) > bound


def every_third(t):
    return torch.where(t % 3 == 0, 4.0, 1.0)


def after_a_hundred(t):
    return torch.where(t > 100, 0.25, 1.0)


def alternating(t):
    return 1 + torch.cos(math.pi * t) / 2


def scaled_by(factor):
    """Return the recipe of SGDW whose whole step has a factor that is a function of its number."""

    def recipe(lr=0.05, momentum=0.9, weight_decay=0.1):
        scale = Keeps(lambda w, d, t: (factor(t + 1) * d, t + 1))
        rules = sn.rules.HeavyBall(momentum), sn.rules.DecoupledDecay(weight_decay)
        return sn.chain(*rules, scale, sn.rules.StepSize(lr))

    return recipe


PERIODIC = [
    pytest.param("lookahead_adamw", {"weight_decay": 0.1}, marks=pytest.mark.long),
    ("lookahead(sgd)", {"weight_decay": 0.1, "every": 2}),
    (scaled_by(every_third), {}),
    (scaled_by(alternating), {}),
]


@pytest.mark.parametrize(("recipe", "values"), PERIODIC)
def test_a_step_that_changes_for_ever_has_no_one_turn(recipe, values):
    """A loop measures 0.112 for lookahead(sgd), and the fixed point of its other steps is 0.073."""
    with refuses("changes with", "for ever", by=NoEquilibriumError):
        equilibrium_turn(recipe, **values)


@pytest.mark.parametrize(
    ("recipe", "late_lr"),
    [
        (scaled_by(after_a_hundred), 0.0125),
        (scaled_by(lambda t: (t / 50).clamp(max=1.0)), 0.05),
        (scaled_by(sn.schedule.cooldown(1.0, steps=90, last=20, final=0.5)), 0.025),
    ],
)
def test_a_turn_is_that_of_late_steps(recipe, late_lr):
    late_turn = equilibrium_turn("sgdw", lr=late_lr, momentum=0.9, weight_decay=0.1, dampening=0.0)
    assert equilibrium_turn(recipe) == pytest.approx(late_turn, rel=1e-9)


def test_a_count_that_falls_is_not_taken_for_one_that_grows():
    def recipe(lr=0.05, momentum=0.9, weight_decay=0.1):
        scale = Keeps(lambda w, d, n: (torch.where(n < -100, 0.25, 1.0) * d, n - 1))
        rules = sn.rules.HeavyBall(momentum), sn.rules.DecoupledDecay(weight_decay)
        return sn.chain(*rules, scale, sn.rules.StepSize(lr))

    with refuses("for ever", by=NoEquilibriumError):
        equilibrium_turn(recipe)


@pytest.mark.parametrize("name", ["lion", pytest.param("muon", marks=pytest.mark.long)])
def test_an_average_beside_the_step_does_not_change_the_turn(name):
    turn = equilibrium_turn(name, weight_decay=0.1)
    assert equilibrium_turn(f"averaged({name})", weight_decay=0.1) == pytest.approx(turn, rel=1e-12)


def test_a_momentum_of_clipped_differences_of_gradients_has_no_turn():
    with refuses("mars_lion", "|g|", by=NoEquilibriumError):
        equilibrium_turn("mars_lion", weight_decay=0.1)


WRAPPED = [
    f"{wrapper}({name})"
    for wrapper in ("averaged", "hyperball", "lookahead", "rotational", "cautious")
    for name in ("sgd", "adamw", "lion", "muon", "mars_lion")
]


OF_THE_LIBRARY = [x for x in (*sn.recipes.__all__, *sn.zoo.__all__) if x in sn.recipe_names()]
"""Without the recipes that other modules of tests register."""


@pytest.mark.long
@pytest.mark.parametrize("name", [*OF_THE_LIBRARY, *WRAPPED])
def test_each_recipe_has_a_turn_or_a_reason(name):
    with contextlib.suppress(NoEquilibriumError, TraceError):
        assert 0 < equilibrium_turn(name) < math.pi / 2


def test_an_open_case_is_named_where_a_number_is_asked_for():
    def late(w, d, t):
        return torch.where(t > 2000, d + 0.1 * w, d + 0.5 * w), t + 1

    with refuses("c1", by=NoEquilibriumError):
        equilibrium(keeps(late, names="step"), momentum=0.0)


@pytest.mark.parametrize("shape", [(0, 4), (3,), (2.0, 3)])
def test_a_shape_that_no_matrix_has_is_refused(shape):
    with refuses("shape", str(shape)):
        equilibrium_turn("muon", shape=shape)


def test_a_turn_that_random_gradients_do_not_fix_is_refused():
    """polargrad scales its direction by a nuclear norm, <O, g>."""
    with refuses("polargrad", "<O, g>", by=NoEquilibriumError):
        equilibrium_turn("polargrad")
