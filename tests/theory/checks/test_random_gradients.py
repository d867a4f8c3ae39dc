"""Equilibria, growth ratios and false positives against runs under random gradients."""

import math
from dataclasses import replace

import pytest

from spherenorm_theory import check_equilibrium, check_ratio, false_positive_rate
from spherenorm_theory.checks import RunCheck, count_false_positives
from tests.harness import refuses
from tests.theory.recipes import counted

NOISE = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0}


@pytest.mark.parametrize(
    ("name", "source", "hypers"),
    [
        ("sgd", "network", NOISE),
        ("sgdp", "noise", NOISE),
        ("adamw", "network", {**ADAM, "weight_decay": 1.0}),
        ("adamp", "noise", {**ADAM, "weight_decay": 10.0}),
        (counted, "noise", {}),
    ],
)
def test_equilibrium(name, source, hypers):
    result = check_equilibrium(name, source, steps=300, warm_up=500, units=32, **hypers)
    assert result.passed, result


def test_a_wrong_equilibrium_would_be_noticed():
    """The rotation of SGDM without its 1 + beta is off by far more than the tolerance."""
    result = check_equilibrium("sgd", steps=200, warm_up=400, units=16, **NOISE)
    _, turn = result.values["effective step"]
    assert not replace(result, values={"effective step": ((2 * 0.1 * 0.1) ** 0.5, turn)}).passed
    with refuses("source", "noise", "network"):
        check_equilibrium("sgd", "data", **NOISE)


@pytest.mark.parametrize("names", [("|w|", "step"), ("step", "|w|")])
def test_a_run_that_is_no_number_does_not_pass(names):
    numbers = {"|w|": (1.0, 1.0), "step": (1.0, math.nan)}
    assert not RunCheck("ours", {name: numbers[name] for name in names}, 0.02).passed


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
    ((expected, _),) = ratio.values.values()
    assert predicted is None or expected == pytest.approx(predicted, rel=1e-4)


def test_a_wrong_growth_ratio_would_be_noticed():
    ratio = check_ratio("sgd", **PLAIN, nesterov=True)
    ((quantity, (_, measured)),) = ratio.values.items()
    for wrong in (19.0, 14.158 * 1.01):
        assert not replace(ratio, values={quantity: (wrong, measured)}).passed


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
    for name, bad in (("delta", 0.0), ("channels", 0), ("dimension", 1)):
        with refuses(bad):
            false_positive_rate(**{name: bad})


def test_a_wrong_rate_of_false_positives_would_be_noticed():
    counted = count_false_positives(trials=10_000)
    rate, share = counted.values["rate"]
    assert not replace(counted, values={"rate": (rate, 1.3 * share)}).passed
