"""torch.compile takes a step, and a function that builds its recipe, as one graph."""

import pytest
import torch
from torch._dynamo.exc import Unsupported

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, gradient

pytestmark = ANY_WEIGHTS

WEIGHT = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
COMPILED = ("sgdp", "adamp", "adamg", "normuon", "rotational_mine")
"""Recipes that together have most rules; `compile/` records all of them."""

FEW = [next(row for row in reversed(ROWS) if str(row).startswith(name)) for name in COMPILED]


def warm(rule, weight):
    state = rule.init(weight)
    for step in range(3):
        grad = gradient("alternating", weight, torch.Generator().manual_seed(step), step)
        weight, state = rule.step(weight, grad, state)
    return weight, gradient("row_tangential", weight, torch.Generator().manual_seed(9), 0), state


def compiled(step):
    torch._dynamo.reset()
    return torch.compile(step, fullgraph=True, backend="eager")


@pytest.mark.parametrize("row", FEW, ids=str)
def test_a_step(row):
    rule = row.rule()
    step = compiled(rule.step)
    arguments = warm(rule, WEIGHT)
    torch.testing.assert_close(step(*arguments), rule.step(*arguments), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param("adamp", torch.tensor, marks=pytest.mark.long), ("sgdw", float)],
)
def test_a_function_that_builds_its_recipe(name, kind):
    def step(weight, grad, state, lr):
        return sn.bind(name, lr=lr).rule.step(weight, grad, state)

    arguments, compiled_result = warm(sn.bind(name).rule, WEIGHT), compiled(step)
    for lr in (0.02, 0.03):
        expected = step(*arguments, kind(lr))
        torch.testing.assert_close(
            compiled_result(*arguments, kind(lr)), expected, rtol=1e-12, atol=1e-14
        )
    if kind is float:
        with pytest.raises(Unsupported):  # outside its interval, there too
            compiled_result(*arguments, -0.3)
