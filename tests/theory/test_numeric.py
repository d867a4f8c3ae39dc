"""The laws against float64 trajectories; what breaks an assumption is named with its number."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm.registry import names
from spherenorm.rule import scalar_state
from tests.theory import faults
from theory import NoEquilibriumError, check, check_equilibrium, check_ratio, norm_growth
from theory.detection import count_false_positives, false_positive_rate
from theory.numeric import TOLERANCE, predict, run
from theory.random_walk import Ratio
from theory.tasks import TASKS, Task

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
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def law_of(recipe, **structure):
    return norm_growth(recipe, **structure)


@pytest.mark.parametrize("name", names())
def test_laws_hold_on_trajectories(name):
    result = check(name, "network", steps=100, law=law_of(name), **RUNS[name])
    assert result.passed, result
    assert not result.complaints
    assert set(result.weights) == {"bn", "ln", "head"}


@pytest.mark.parametrize("task", ["toy-2d", "toy-3d"])
@pytest.mark.parametrize("name", ["sgd", "sgdp", "adamp"])
def test_laws_hold_on_toys(name, task):
    assert check(name, task, steps=100, law=law_of(name), **RUNS[name]).passed


def test_variants():
    assert check("sgd", steps=60, nesterov=True, **BUSY).passed
    assert check("sgdp", steps=60, project_buffer=True, **BUSY).passed
    assert check("sgdp", steps=60, nesterov=True, **BUSY).passed


def counted(lr=0.1, momentum=0.9, weight_decay=0.1):
    return chain(
        r.CoupledDecay(weight_decay),
        r.ExponentialAverage(momentum, bias_correction=True),
        r.StepSize(lr),
    )


def accumulated(lr=0.1, momentum=0.9, weight_decay=0.1):
    test = r.AccumulatedInvarianceTest()
    return chain(
        r.HeavyBall(momentum),
        test,
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, 0.1),
        r.StepSize(lr),
    )


class WarmUp(Rule):
    """sqrt(1 - 0.9^t) d."""

    state_names = ("step",)

    def init(self, weight):
        return {"step": scalar_state(weight)}

    def update(self, update, state):
        step = state["step"] + 1
        return replace(update, direction=(1 - 0.9**step).sqrt() * update.direction), {"step": step}


def warm(lr=0.1, momentum=0.9, weight_decay=0.1):
    return chain(r.HeavyBall(momentum), WarmUp(), r.DecoupledDecay(weight_decay), r.StepSize(lr))


@pytest.mark.parametrize("recipe", [counted, accumulated, warm])
def test_laws_with_numbers_in_the_state_hold(recipe):
    """The count of steps enters kappa, the cross term and the recursion, under a root too; evidence against scale invariance stays 0."""
    result = check(recipe, steps=60)
    assert result.passed, result
    assert not result.identity


@pytest.mark.parametrize(
    ("task", "complaint", "holds"),
    [
        ("network-eps", "<w, g> = 0 fails", True),
        ("l2-in-loss", "<w, g> = 0 fails", False),
        ("one-sample", "exactly 0 in 60 steps", False),
        ("regression", "<w, g> = 0 fails", False),
    ],
)
def test_broken_assumptions_are_named(task, complaint, holds):
    result = check("sgdp", task, steps=60, law=law_of("sgdp"), **BUSY)
    assert any(complaint in c for c in result.complaints), result
    assert result.spoiled
    assert result.passed is holds
    assert result.spoiled in str(result)


def clipped(lr=0.1, momentum=0.9, weight_decay=0.01, nu=1.0, view="channel"):
    return chain(
        r.UnitClip(nu, view), r.HeavyBall(momentum), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    )


def test_a_rule_of_other_units_is_named():
    """A clip per channel is no common factor of a layer-norm weight, whose one unit is the layer."""
    result = check(clipped, steps=30)
    assert not result.passed
    assert {n for n, m in result.weights.items() if m.passed} == {"bn", "head"}
    (complaint,) = result.complaints
    assert complaint.startswith(
        "ln: a unit does not move as if it were alone (UnitClip has the view channel, the weight layer): "
    )
    assert check(clipped, steps=30, nu=1e3).passed


def test_an_equilibrium_with_an_open_case_is_not_checked():
    with pytest.raises(NoEquilibriumError, match=r"clipped: not a number: c2 is Piecewise\(\(nu/"):
        check_equilibrium(clipped, lr=0.1, weight_decay=0.1)


def test_a_law_for_other_hyper_parameters_is_noticed():
    result = check("sgd", steps=60, law=law_of("sgd", weight_decay=0.0), **BUSY)
    assert not result.passed
    assert result.differences == ("the law was derived for weight_decay = 0.0, the run has 0.01",)


@pytest.mark.parametrize(
    "fault",
    [faults.no_projection, faults.wrong_sign, faults.projected_gradient],
    ids=lambda f: f.__name__,
)
def test_a_faulty_run_does_not_follow_the_sound_law(fault):
    """The step of a faulty recipe, held against the law of SGDP without decay."""
    sound = law_of("sgdp", weight_decay=0.0)
    measured = run(norm_growth(fault), TASKS["network"], 60)["bn"]
    assert np.abs(predict(sound, measured) / measured.squared_norm - 1).max() > 1e-3


def test_beta_squared_does_not_follow_lemma_2_2():
    measured = run(norm_growth(faults.beta_squared), TASKS["network"], 60)["bn"]
    off = np.abs(
        predict(law_of("sgd", weight_decay=0.0), measured, lr=0.1, momentum=0.9)
        / measured.squared_norm
        - 1
    )
    assert off.max() > 1e-3


hypers = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-3, 0.3),
        "momentum": st.floats(0.0, 0.95),
        "weight_decay": st.floats(0.0, 0.2),
        "dampening": st.floats(0.0, 0.9),
    }
)


@settings(
    max_examples=20,
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
        steps=40,
        seed=seed,
        law=law_of(name, nesterov=nesterov),
        **hypers,
        nesterov=nesterov,
    )
    assert result.residual <= TOLERANCE, (result, hypers)


@settings(
    max_examples=10,
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
        steps=30,
        law=law_of("adamp"),
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=wd,
    )
    assert result.residual <= TOLERANCE, result


def test_defaults_that_leave_rules_out():
    assert check("sgd", steps=30).passed
    with pytest.raises(ValueError, match="the run's rule has"):
        check("sgd", steps=30, law=law_of("sgd"))


def test_a_task_of_ones_own():
    def start(generator):
        return {"w": torch.randn(2, 5, dtype=torch.float64, generator=generator)}

    task = Task(
        start, {"w": "layer"}, lambda weights, generator: (weights["w"] / weights["w"].norm()).sum()
    )
    assert check("sgdp", task, steps=30).passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "mnist"}, "no task is named 'mnist'; known: network"),
        ({"task": "networ"}, "no task is named 'networ'; did you mean network"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1, got 1.5"),
        ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
        ({"rate": 1.0}, "no hyper-parameter 'rate'; it has lr"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        check("sgd", **arguments)


NOISE = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0}


@pytest.mark.parametrize(
    ("name", "source", "hypers"),
    [
        ("sgd", "noise", NOISE),
        ("sgd", "network", NOISE),
        ("sgdp", "noise", NOISE),
        ("sgdp", "noise", {**NOISE, "nesterov": True}),
        ("adamw", "network", {**ADAM, "weight_decay": 1.0}),
        ("adamp", "noise", {**ADAM, "weight_decay": 10.0}),
        (counted, "noise", {}),
    ],
)
def test_equilibrium(name, source, hypers):
    settled = check_equilibrium(name, source, steps=300, warm_up=500, units=32, **hypers)
    assert settled.passed, settled


PLAIN = {**NOISE, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("name", "hypers", "predicted"),
    [
        ("sgd", PLAIN, 19),
        ("sgd", {**PLAIN, "dampening": 0.5}, 19),
        ("sgd", {**PLAIN, "nesterov": True}, 14.158),
        ("sgdw", {**NOISE, "weight_decay": 0.01}, 18.822),
        ("sgdp", NOISE, 1),
        ("sgd", NOISE, None),
        (counted, {}, None),
    ],
)
def test_growth_ratios(name, hypers, predicted):
    ratio = check_ratio(name, **hypers)
    assert ratio.passed, ratio
    assert predicted is None or ratio.predicted == pytest.approx(predicted, rel=1e-4)


def test_a_wrong_growth_ratio_would_be_noticed():
    measured = check_ratio("sgd", **PLAIN, nesterov=True).measured
    assert not Ratio("sgd", 19.0, measured).passed
    assert not Ratio("sgd", 14.158 * 1.01, measured).passed


def test_a_wrong_equilibrium_would_be_noticed():
    """Rotation of SGDM without its 1 + beta, and SGDP's at AdamW's decay: off by far more than the tolerance."""
    settled = check_equilibrium("sgd", steps=200, warm_up=400, units=16, **NOISE)
    assert abs(settled.rotation[1] / (2 * 0.1 * 0.1) ** 0.5 - 1) > 0.2
    with pytest.raises(ValueError, match='source must be "noise" or "network"'):
        check_equilibrium("sgd", "data", **NOISE)


@pytest.mark.parametrize(
    "case",
    [
        {"dimension": 2},
        {"dimension": 64},
        {"dimension": 8, "channels": 3, "delta": 1.0},
        {"dimension": 16, "channels": 4, "view": "layer"},
    ],
    ids=str,
)
def test_false_positives(case):
    counted = count_false_positives(trials=10_000, **case)
    assert counted.passed, counted


def test_false_positive_rate():
    assert false_positive_rate(0.1) == pytest.approx(0.0796557, abs=1e-7)
    assert false_positive_rate(0.1, 10**6) == pytest.approx(false_positive_rate(0.1), rel=1e-5)
    assert false_positive_rate(0.1, 3) == pytest.approx(0.1 / 3**0.5)
    assert false_positive_rate(2.0, 2) == 1
    for bad in ({"delta": 0.0}, {"channels": 0}, {"dimension": 1}):
        with pytest.raises(ValueError, match=r"positive|need"):
            false_positive_rate(**bad)
