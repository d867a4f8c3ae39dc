"""Derivatives of steps, of first and second order and in all modes, are those of the values."""

import itertools

import pytest
import torch
from torch.func import jacfwd, jacrev

from spherenorm import bind
from tests.harness.rows import ANY_WEIGHTS, ROWS, parameters
from tests.harness.gradients import gradient

pytestmark = ANY_WEIGHTS

STEPS = 2
SMOOTH = {
    "lr": 0.05,
    "momentum": 0.6,
    "dampening": 0.1,
    "weight_decay": 0.2,
    "wd_ratio": 0.3,
    "eps": 0.1,
    "alpha": 0.4,
    "nu": 1.0,
    "betas": (0.7, 0.8),
}
"""Hyper-parameters, at values at which differences in float64 are good to nine digits."""

# (The dampening is left out where a momentum of 0 ignores it: there the step has a jump.)
ZEROS = {
    "inside": {},
    "switched off": {"momentum": 0.0, "weight_decay": 0.0, "alpha": 0.0, "dampening": None},
    "other zeros": {"wd_ratio": 0.0, "betas": (0.0, 0.8), "dampening": 0.0},
    "no step": {"lr": 0.0},
}


def loss_of(row, zeros):
    """A loss after some steps of `row`, as a function of one vector; and a value of the vector.

    Its entries are the hyper-parameters that are numbers, and the length of the start.
    """
    taken = bind(row.cls.recipe).defaults
    given = {name: value for name, value in {**SMOOTH, **zeros}.items() if name in taken}
    still = {name: 0.0 for name, value in given.items() if value is None}
    given = {name: value for name, value in given.items() if name not in still}
    if row.cls.recipe.__name__ == "rmsprop":
        given["alpha"] = 0.4  # of no memory, the centered variance is 0, of which no root has one
    start = next(w.detach() for w in parameters() if w.ndim == 2)
    grads = [
        gradient("row_tangential", start, torch.Generator().manual_seed(step), 0)
        for step in range(STEPS)
    ]
    mask = torch.ones_like(start)
    if "weight_decay" not in zeros:  # by which |w weight_decay|, in a second moment, has none at 0
        mask[1] = 0

    def loss(values):
        entries = iter(values)
        numbers = {
            name: tuple(next(entries) for _ in value) if name == "betas" else next(entries)
            for name, value in given.items()
        }
        rule, weight = row.rule(**numbers, **still), start * next(entries)
        state = rule.init(weight)
        for grad in grads:
            weight, state = rule.step(weight, mask * (grad + 0.1 * weight**2), state)
        return (weight**3).mean()

    flat = [x for value in given.values() for x in (value if type(value) is tuple else (value,))]
    return loss, torch.tensor([*flat, 1.0], dtype=torch.float64)


def differences(function, x, h=5e-4):
    """The derivative of `function` by each entry of `x`, by central differences of sixth order."""
    ways = h * torch.tensor([1.0, 2, 3, -1, -2, -3], dtype=x.dtype)[:, None, None]
    values = torch.vmap(torch.vmap(function))(x + ways * torch.eye(len(x), dtype=x.dtype))
    one, two, three = values[:3] - values[3:]
    return ((45 * one - 9 * two + three) / (60 * h)).movedim(0, -1)


CASES = [
    pytest.param(row, zeros, id=f"{row.id}-{at}")
    for row in ROWS
    for at, zeros in ZEROS.items()
    if not zeros or zeros.keys() & bind(row.cls.recipe).defaults.keys() - {"dampening"}
]


@pytest.mark.parametrize(("row", "zeros"), CASES)
def test_derivatives_by_all_hyper_parameters(row, zeros):
    """Also by those that are 0, where the term that they scale has vanished."""
    loss, x = loss_of(row, zeros)
    first, second = differences(loss, x), differences(jacrev(loss), x)
    for mode in (jacfwd, jacrev):
        torch.testing.assert_close(mode(loss)(x), first, rtol=1e-8, atol=1e-8)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(loss))(x), second, rtol=1e-8, atol=1e-8)
