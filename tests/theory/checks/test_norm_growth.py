"""The laws against float64 runs; a broken assumption is named with its number."""

import dataclasses

import pytest
import sympy as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spherenorm import chain, recipes
from spherenorm import rules as r
from spherenorm_theory import check
from spherenorm_theory.checks import TOLERANCE, Problem
from tests.theory import faults
from tests.theory.recipes import MATRICES, accumulated, clipped, counted, law_of, warm

BUSY = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


RUNS = {
    "sgd": {**BUSY, "dampening": 0.3},
    "sgdw": BUSY,
    "sgdp": BUSY,
    "adam": {"lr": 0.01, "weight_decay": 0.01},
    "adamw": {"lr": 0.01},
    "adamp": {"lr": 0.01, "weight_decay": 0.01},
    "rmsprop": {"momentum": 0.5},
    "sgdg": {},
    "adamg": {},
    "adamc": {"lr": 0.01},
    "lion": {"weight_decay": 0.01},
    "orthograd": {},
}


OF_ONE_VIEW = ("adamh", "lamb", "lars", "ngpt", "nora")
"""Recipes that read the norms of one view, which not all layers of a network have."""

SPHERICAL = {"sgdg", "adamg"}
"""Recipes whose orthogonality term mixes units, so that the law of a step is one of a single unit.

The norm of each unit of their view is constant with several units too.
"""


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SPHERICAL])
def test_laws_hold_on_trajectories(name):
    result = check(name, "network", steps=25, law=law_of(name), **RUNS[name])
    assert result.passed, result
    assert not result.failed_assumptions
    assert set(result.weights) == {"bn", "ln", "head"}


@pytest.mark.parametrize("name", sorted(SPHERICAL))
def test_a_norm_holds_where_the_step_mixes_units(name):
    assert check(name, "toy-3d", steps=40, law=law_of(name)).passed
    result = check(name, "network", steps=10, law=law_of(name))
    assert result.passed, result
    assert all("they mix in _decay.py" in each.alone for each in result.weights.values())
    assert "no step compared" in str(result)
    other_view = check(name, "convolutions", steps=10, law=law_of(name))
    assert not other_view.weights["transposed"].passed
    assert any(failed.startswith("transposed: ") for failed in other_view.failed_assumptions)


def test_the_law_of_adamc_reads_the_schedules_maximum():
    corrected = {"lr": 0.01, "max_lr": 0.1}
    law = law_of("adamc", max_lr=0.1)
    assert check("adamc", "network", steps=15, law=law, **corrected).passed


def test_every_recipe_of_the_library_runs():
    assert {*RUNS, *OF_ONE_VIEW, *MATRICES} == {*recipes.__all__}


@pytest.mark.parametrize("name", OF_ONE_VIEW)
def test_a_law_holds_where_one_view_fits_all_layers(name):
    assert check(name, "toy-3d", steps=25, law=law_of(name), lr=0.01).passed


def test_variants():
    for name, flag in (("sgd", "nesterov"), ("sgdp", "project_buffer")):
        law = law_of(name, **{flag: True})
        assert check(name, steps=20, law=law, **{flag: True}, **BUSY).passed


@pytest.mark.parametrize("recipe", [counted, accumulated, warm])
def test_laws_with_numbers_in_the_state_hold(recipe):
    """The count of steps enters kappa, the cross term and the recursion, under a root too.

    The evidence against scale invariance stays 0.
    """
    result = check(recipe, steps=25)
    assert result.passed, result
    assert not result.identity


@pytest.mark.parametrize(
    ("problem", "failed", "holds"),
    [
        ("network-eps", "<w, g> = 0 fails", True),
        ("l2-in-loss", "<w, g> = 0 fails", False),
        ("one-sample", "exactly 0 in 60 steps", False),
        ("regression", "<w, g> = 0 fails", False),
    ],
)
def test_broken_assumptions_are_named(problem, failed, holds):
    result = check("sgdp", problem, steps=60, law=law_of("sgdp"), **BUSY)
    assert any(failed in c for c in result.failed_assumptions), result
    assert result.broken
    assert result.passed is holds
    assert result.broken in str(result)


def test_a_rule_of_other_units_is_named():
    """A clip per channel is no common factor of a layer-norm weight: its one unit is the layer."""
    result = check(clipped, steps=30)
    assert not result.passed
    assert {n for n, m in result.weights.items() if m.passed} == {"bn", "head"}
    (failed,) = result.failed_assumptions
    assert failed.startswith(
        "ln: a unit does not move as if it were alone "
        "(UnitClip has the view channel, the weight layer): "
    )
    assert check(clipped, steps=30, nu=1e3).passed


def test_a_rule_that_reads_the_whole_weight_is_said():
    """A cautious mask keeps a share of all entries of the weight, whatever its units are."""

    def cautious(lr=0.1, momentum=0.9):
        mask = r.CautiousMask(), r.RadialProjection("channel")
        return chain(r.ExponentialAverage(momentum), *mask, r.StepSize(lr))

    failed = check(cautious, steps=10).failed_assumptions
    assert any("as if it were alone (a rule reads the whole weight): " in each for each in failed)


def test_a_failure_by_the_view_says_in_its_headline_what_mends_it():
    """SGDP's test looks at rows and at the whole tensor; these units are groups and columns."""
    result = check("sgdp", "convolutions", steps=10, law=law_of("sgdp"))
    headline = str(result).partition("\n")[0]
    assert "an assumption fails" in headline
    assert 'gn needs views=("groups=2",); transposed needs views=("dim=1",): ' in headline
    assert not result.weights["transposed"].passed
    mended = check("sgdp", "convolutions", steps=10, law=law_of("sgdp"), views=("dim=1",))
    assert mended.weights["transposed"].passed


def test_a_law_for_other_hyper_parameters_is_noticed():
    result = check("sgd", steps=60, law=law_of("sgd", weight_decay=0.0), **BUSY)
    assert not result.passed
    assert result.differences == ("the law was derived for weight_decay = 0.0, the run has 0.01",)


@pytest.mark.parametrize(
    "fault",
    [faults.no_projection, faults.wrong_sign, faults.projected_gradient],
    ids=lambda f: f.__name__,
)
def test_the_recipe_that_is_given_runs(fault):
    """The law of another recipe fails, though both have the same states and hyper-parameters."""
    result = check(fault, steps=30, law=law_of("sgdp"), momentum=0.9, weight_decay=0.01)
    assert not result.passed
    assert any("the run that of" in each for each in result.failed_assumptions)
    bn = result.weights["bn"]
    assert bn.step_error > 1e-6
    assert bn.residual > 1e-6


def heavy_ball(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0):
    momenta = r.CoupledDecay(weight_decay), r.HeavyBall(momentum, dampening)
    return chain(*momenta, r.StepSize(lr))


def test_beta_squared_does_not_follow_the_law_of_beta():
    assert check(heavy_ball, steps=30, law=law_of(heavy_ball)).passed
    result = check(faults.beta_squared, steps=30, law=law_of(heavy_ball))
    assert min(each.step_error for each in result.weights.values()) > 1e-4


def test_the_drive_is_that_of_the_law():
    """A law with another drive fails at the steps, whatever its cross term is."""
    law = law_of("sgd")
    wrong = dataclasses.replace(law, drive=law.drive * sp.Rational(3, 2))
    result = check("sgd", steps=20, law=wrong)
    assert not result.passed
    assert min(each.step_error for each in result.weights.values()) > 1e-6


def test_rules_are_switched_on():
    """SGD's momentum is 0 by default; its law is checked with one."""
    result = check("sgd", steps=20)
    assert result.hyper_parameters["momentum"] == 0.9
    assert "momentum=0.9" in str(result)
    assert check("sgd", steps=20, momentum=0.0).hyper_parameters["momentum"] == 0.0


@pytest.mark.parametrize("schedule", ["warm-up", "cosine", lambda share: 1 - share / 2])
@pytest.mark.parametrize("name", ["sgd", "sgdp", "adamp"])
def test_laws_hold_under_schedules(name, schedule):
    result = check(name, steps=20, law=law_of(name), schedule=schedule, **RUNS[name])
    assert result.passed, result
    assert not result.failed_assumptions


@pytest.mark.parametrize("name", ["sgd", "sgdw"])
def test_laws_hold_in_several_views(name):
    result = check(name, "convolutions", steps=15, law=law_of(name), **RUNS[name])
    assert result.passed, result
    assert set(result.weights) == {"bn", "gn", "transposed", "ln"}


def test_a_projection_of_other_units_is_named():
    """SGDP looks for units on dim 0: groups and transposed convolutions have others."""
    result = check("sgdp", "convolutions", steps=15, law=law_of("sgdp"), **BUSY)
    assert {name for name, each in result.weights.items() if each.passed} == {"bn", "ln"}
    for name in ("gn", "transposed"):
        assert result.weights[name].apart > 1e-6


def test_an_open_law_is_said_to_be_an_identity():
    assert "identity only" in str(check("adam", steps=10, law=law_of("adam")))
    assert "identity" not in str(check("sgd", steps=10, law=law_of("sgd")))


hypers = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-3, 0.3),
        "momentum": st.floats(0.0, 0.95),
        "weight_decay": st.floats(0.0, 0.2),
        "dampening": st.floats(0.0, 0.9),
    }
)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    hypers=hypers,
    name=st.sampled_from(["sgd", "sgdw", "sgdp"]),
    nesterov=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_hyper_parameters(hypers, name, nesterov, seed):
    if hypers["momentum"] == 0.0:
        hypers["momentum"] = (
            0.1  # at the Python number 0 a recipe leaves its momentum out, and is another one
        )
    result = check(
        name,
        "toy-3d",
        steps=20,
        seed=seed,
        law=law_of(name, nesterov=nesterov),
        **hypers,
        nesterov=nesterov,
    )
    assert result.residual <= TOLERANCE, (result, hypers)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lr=st.floats(1e-4, 0.1),
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.5, 0.999),
    wd=st.floats(0.0, 0.5),
)
def test_any_hyper_parameters_of_adamp(lr, beta1, beta2, wd):
    result = check(
        "adamp",
        "network",
        steps=12,
        law=law_of("adamp"),
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=wd,
    )
    assert result.residual <= TOLERANCE, result


def test_a_law_of_other_states_is_refused():
    with pytest.raises(ValueError, match="the run's rule has"):
        check("sgd", steps=30, law=law_of("sgd"), momentum=0.0)


def test_a_problem_of_ones_own():
    def start(generator):
        return {"w": torch.randn(2, 5, dtype=torch.float64, generator=generator)}

    problem = Problem(
        start, {"w": "layer"}, lambda weights, generator: (weights["w"] / weights["w"].norm()).sum()
    )
    assert check("sgdp", problem, steps=30).passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": "mnist"}, "no problem is named 'mnist'; known: convolutions"),
        ({"problem": "networ"}, "no problem is named 'networ'; did you mean network"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1, got 1.5"),
        ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
        ({"schedule": "cosin"}, "no schedule is named 'cosin'; did you mean cosine"),
        ({"rate": 1.0}, "no hyper-parameter 'rate'; it has lr"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        check("sgd", **arguments)
