"""The growth ratios against runs under random gradients."""

import pytest

from spherenorm_theory import check_ratio
from spherenorm_theory.checks import RatioCheck
from tests.theory.recipes import counted

NOISE = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}


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
    assert not RatioCheck("sgd", 19.0, measured).passed
    assert not RatioCheck("sgd", 14.158 * 1.01, measured).passed
