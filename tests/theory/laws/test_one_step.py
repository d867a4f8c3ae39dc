"""One step on symbols."""

import inspect

import pytest
import sympy as sp

from spherenorm import bind, find_recipe
from spherenorm_theory import one_step
from spherenorm_theory.algebra import tidy


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
