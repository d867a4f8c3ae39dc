"""The rate of `rotational(recipe)` is the turn of the recipe's equilibrium."""

import math

import pytest
import torch

import spherenorm as sn
from spherenorm_theory import NoEquilibriumError, equilibrium, rotational_rate
from tests.harness import refuses

DECAY, SMALL = 0.1, 1e-7


@pytest.mark.parametrize(
    ("recipe", "settings", "factor"),
    [
        ("sgd", {"momentum": 0.9}, 1 / 1.9),  # coupled decay
        ("adamw", {"betas": (0.8, 0.99)}, 0.2 / 1.8),
        ("lion", {"betas": (0.0, 0.9)}, 1.0),  # signs of single gradients
    ],
)
def test_rates_of_the_literature(recipe, settings, factor):
    """Kosson et al. 2024, Table 1, for a small learning rate."""
    rate = rotational_rate(recipe, weight_decay=DECAY, **settings)
    assert rate(SMALL) == pytest.approx(math.sqrt(2 * SMALL * DECAY * factor), rel=1e-6)


def test_the_rate_of_lion_is_near_that_of_the_literature():
    """Kosson et al. 2024, Table 1, where signs correlate as their averages do."""
    variance = 0.1**2 + 0.9**2 * 0.01 / 1.99
    rate = rotational_rate("lion", weight_decay=DECAY, betas=(0.9, 0.99))(SMALL)
    kosson = math.sqrt(math.pi * SMALL * DECAY * variance)
    assert 0.99 * kosson < rate < 0.995 * kosson


def test_a_step_turns_as_the_equilibrium_does():
    rate = rotational_rate("sgd", weight_decay=DECAY)
    law = equilibrium("sgd", weight_decay=DECAY, momentum=0.0, dampening=0.0, nesterov=False)
    chord = law.rotation({law.traced.symbols["lr"]: 0.5})
    rule = sn.bind("rotational(sgd)", lr=rate(0.5), memory=0.0, eps=0.0, zero_mean=False).rule
    weight = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    moved, _ = rule.step(weight, torch.tensor([[1.0, 7.0]]).double(), rule.init(weight))
    assert (moved - weight).norm() / 3 == pytest.approx(chord, rel=1e-12)


def test_what_does_not_settle_is_refused():
    with refuses("without decay", by=NoEquilibriumError):
        rotational_rate("sgdp")
    with pytest.raises(NoEquilibriumError):
        rotational_rate("sgd", weight_decay=DECAY)(15.0)
