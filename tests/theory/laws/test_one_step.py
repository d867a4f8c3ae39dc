"""One step on symbols and in coordinates."""

import numpy as np
import pytest
import sympy as sp
import torch

from spherenorm import find_recipe
from spherenorm_theory import one_step, step_in_coordinates, trace
from spherenorm_theory.algebra import tidy
from tests.harness import refuses
from tests.theory.recipes import ENTRIES, NUMBERS, WITH_LAWS, scaled


def test_the_undamped_start():
    past = one_step("sgd", weight_decay=0.0)
    start = one_step("sgd", weight_decay=0.0, first=True)
    tau = sp.Symbol("dampening", positive=True)
    assert tidy(past.states["m"]["g"] - (1 - tau)) == 0
    assert start.states["m"].terms == {"g": 1}


def assert_coordinates_match(recipe, shape, rng, orthogonal=False, **view):
    """The step in coordinates is the step of the rule, from a random state."""
    traced, rule = trace(recipe, dimension=max(shape), **view), find_recipe(recipe)(**view)
    letters = one_step(recipe).letters if isinstance(recipe, str) else {"momentum": "m"}
    w, g = torch.tensor(rng.normal(size=(2, *shape)))
    g = g - orthogonal * (g * w).sum() / (w * w).sum() * w
    state = {
        n: torch.tensor(rng.random(v.shape)) + 0.5 if v.ndim else v + 3
        for n, v in rule.init(w).items()
    }
    values = {str(s): v for s, v in traced.values().items()}
    given = {letters[n]: _exact(v) if v.numel() > 1 else float(v) for n, v in state.items()}
    new, after, _ = step_in_coordinates(traced, _exact(w), _exact(g), **values, **given)
    weight, states = rule.step(w, g, state)
    pairs = [(new, weight), *((after[letters[n]], v) for n, v in states.items())]
    for found, expected in pairs:
        np.testing.assert_allclose(np.array(found, dtype=float), expected, rtol=1e-12, atol=1e-14)


def _exact(x):
    return [sp.Float(float(v), 30) for v in np.ravel(x)]


@pytest.mark.parametrize("name", [*NUMBERS, *ENTRIES])
def test_operations_in_coordinates_match_a_float64_step(name):
    recipe = scaled({**NUMBERS, **ENTRIES}[name])
    assert_coordinates_match(recipe, (1, 3), np.random.default_rng(7))


@pytest.mark.parametrize("name", WITH_LAWS)
def test_coordinates_match_a_float64_step(name):
    """For a gradient that is orthogonal to the weight, and for any other."""
    for orthogonal in (True, False):
        assert_coordinates_match(name, (1, 3), np.random.default_rng(len(name)), orthogonal)


def test_coordinates_of_another_view_match_a_float64_step():
    assert_coordinates_match("sgdg", (3, 1), np.random.default_rng(1), view="dim=1")
    with refuses(2, 3):
        step_in_coordinates(trace("sgd", dimension=2), [1, 2, 3], [0, 0, 0])
