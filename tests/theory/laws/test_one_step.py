"""One step on symbols and in coordinates."""

import inspect

import numpy as np
import pytest
import sympy as sp
import torch

from spherenorm import bind, find_recipe
from spherenorm_theory import one_step, step_in_coordinates, trace
from spherenorm_theory.algebra import tidy
from spherenorm_theory.laws._one_step import choose_letters
from tests.theory.recipes import ENTRIES, NUMBERS, WITH_LAWS, scaled


@pytest.mark.parametrize("name", ["sgd", "sgdp", "adamw", "adamp"])
def test_numbers_trace_to_fused_operations_with_the_same_meaning(name):
    """With numbers a rule may use add(alpha=...) or lerp: the law is the same as with symbols."""
    numbers = {
        "weight_decay": 0.25,
        **({"betas": (0.5, 0.75)} if "betas" in bind(name).defaults else {"momentum": 0.5}),
    }
    general = one_step(name)
    free = {n: v for n, v in bind(name).defaults.items() if n not in numbers}
    values = {
        s: sp.nsimplify(v)
        for s, v in general.traced.values(**numbers).items()
        if s.name not in free
    }
    held = one_step(_with_constants(name, numbers))
    assert (
        held.inner(held.weight, held.weight)
        - general.inner(general.weight, general.weight).subs(values)
    ).simplify() == 0
    if name != "adamp":
        names = {call.function.overloadpacket.__name__ for call in held.traced.record.needed}
        assert names & {"lerp", "add"}


def _with_constants(name, numbers):
    """The recipe with `numbers` written into its code."""

    def recipe(**free):
        return find_recipe(name)(**free, **numbers)

    signature = inspect.signature(find_recipe(name))
    recipe.__signature__ = signature.replace(
        parameters=[p for n, p in signature.parameters.items() if n not in numbers]
    )
    return recipe


def test_the_undamped_start():
    past = one_step("sgd", weight_decay=0.0)
    start = one_step("sgd", weight_decay=0.0, first=True)
    tau = sp.Symbol("dampening", positive=True)
    assert tidy(past.states["m"]["g"] - (1 - tau)) == 0
    assert start.states["m"].terms == {"g": 1}


@pytest.mark.parametrize("name", [*NUMBERS, *ENTRIES])
def test_operations_in_coordinates_match_a_float64_step(name):
    rng = np.random.default_rng(7)
    recipe = scaled({**NUMBERS, **ENTRIES}[name])
    w, g, m = rng.normal(size=(3, 3))
    new, after, _ = step_in_coordinates(
        trace(recipe, dimension=3), _exact(w), _exact(g), m=_exact(m), lr=0.1, momentum=0.9
    )
    weight, state = recipe().step(
        torch.tensor(w)[None], torch.tensor(g)[None], {"momentum": torch.tensor(m)[None]}
    )
    np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        np.array(after["m"], dtype=float), state["momentum"], rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", WITH_LAWS)
def test_coordinates_match_a_float64_step(name):
    """For a gradient that is orthogonal to the weight, and for any other."""
    rng = np.random.default_rng(len(name))
    recipe, traced = find_recipe(name), trace(name, dimension=3)
    values = {str(s): v for s, v in traced.values().items()}
    rule, letter = recipe(), choose_letters(traced)
    w, g = rng.normal(size=3), rng.normal(size=3)
    for grad in (g - w * (g @ w) / (w @ w), g):
        state = {
            n: torch.tensor(rng.random(v.shape)) + 0.5 if v.ndim else v + 3
            for n, v in rule.init(torch.tensor(w)[None]).items()
        }
        given = {letter[n]: _exact(v) if v.numel() > 1 else float(v) for n, v in state.items()}
        new, after, _ = step_in_coordinates(traced, _exact(w), _exact(grad), **values, **given)
        weight, states = rule.step(torch.tensor(w)[None], torch.tensor(grad)[None], state)
        np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)
        for n, v in states.items():
            np.testing.assert_allclose(
                np.array(after[letter[n]], dtype=float), v, rtol=1e-12, atol=1e-14
            )


def _exact(x):
    return [sp.Float(float(v), 30) for v in np.ravel(x)]


@pytest.mark.parametrize("dimension", [2, 3])
def test_adamp_in_coordinates_is_orthogonal(dimension):
    traced = trace("adamp", dimension=dimension, weight_decay=0.0)
    w = [*sp.symbols("w1:4", positive=True)][:dimension]
    c = sp.Symbol("c", positive=True)
    g = [-c * w[1], c * w[0], sp.Integer(0)][:dimension]
    new, _, _ = step_in_coordinates(traced, w, g)
    moved = [n - a for n, a in zip(new[0], w, strict=True)]
    assert sp.simplify(sum(a * b for a, b in zip(moved, w, strict=True))) == 0


def test_coordinates_of_another_view_match_a_float64_step():
    rng, recipe = np.random.default_rng(1), find_recipe("sgdg")
    w, g = rng.normal(size=(2, 3, 1))
    new, _, _ = step_in_coordinates(
        trace(recipe, dimension=3, view="dim=1"), _exact(w), _exact(g), **trace_values(recipe)
    )
    rule = recipe(view="dim=1")
    weight, _ = rule.step(torch.tensor(w), torch.tensor(g), rule.init(torch.tensor(w)))
    np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)


def trace_values(recipe):
    return {str(s): v for s, v in trace(recipe).values().items()}


def test_wrong_number_of_coordinates():
    with pytest.raises(ValueError, match="traced for dimension 2, the weight has 3"):
        step_in_coordinates(trace("sgd", dimension=2), [1, 2, 3], [0, 0, 0])
