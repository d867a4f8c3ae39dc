"""The equilibrium laws against runs under random gradients."""

import pytest

from spherenorm_theory import NoEquilibriumError, check_equilibrium
from tests.theory.recipes import clipped, counted

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
    result = check_equilibrium(name, source, steps=300, warm_up=500, units=32, **hypers)
    assert result.passed, result


def test_a_wrong_equilibrium_would_be_noticed():
    """The rotation of SGDM without its 1 + beta is off by far more than the tolerance."""
    result = check_equilibrium("sgd", steps=200, warm_up=400, units=16, **NOISE)
    assert abs(result.rotation[1] / (2 * 0.1 * 0.1) ** 0.5 - 1) > 0.2
    with pytest.raises(ValueError, match='source must be "noise" or "network"'):
        check_equilibrium("sgd", "data", **NOISE)


def test_a_step_that_does_not_scale_has_no_equilibrium():
    with pytest.raises(NoEquilibriumError, match="clipped: the step does not scale"):
        check_equilibrium(clipped, lr=0.1, weight_decay=0.1)
