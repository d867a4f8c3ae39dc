"""Each law is the step of its code at the recipe's own numbers, and at those that are given."""

import itertools

import pytest
import torch

import spherenorm as sn
from spherenorm import View, bind, chain
from spherenorm import rules as r
from spherenorm_theory import TraceError, norm_growth
from spherenorm_theory.algebra.hyper_parameters import enter, input_names
from spherenorm_theory.laws.evaluate import Inputs, OutsideError, evaluate
from tests.harness import refuses
from tests.theory import adversaries
from tests.theory.adversaries import LAW, REFUSED, VERDICTS


def differences(law, recipe, given, shape=(1, 5), n_steps=70):
    """Yield the differences of the law's steps to those of the code, made with plain numbers."""
    traced, view = law.step.traced, law.agreement.view
    rule = recipe(**given)
    values = traced.numbers(**{n: x for n, x in given.items() if n in traced.hyper_parameters})
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    state = rule.init(weight)
    for _ in range(n_steps):
        grad = torch.randn(shape, dtype=torch.float64, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        new, after = rule.step(weight, grad, dict(state))
        try:
            found, states = evaluate(law.split_step, view, Inputs(weight, grad, state, values))
            yield float((found - new).abs().max() / new.abs().max())
            yield from (float((states[n] - after[n]).abs().max()) for n in states)
        except OutsideError:  # such as that the first step is of another kind
            pass
        weight, state = new / new.norm() if new.norm() > 1e3 else new, after


@pytest.mark.parametrize(
    ("recipe", "given", "verdict"),
    VERDICTS,
    ids=[f"{f.__name__}-{','.join(f'{n}={x}' for n, x in g.items())}" for f, g, _ in VERDICTS],
)
def test_a_law_is_the_step_of_its_code_or_refused(recipe, given, verdict):
    try:
        law = norm_growth(recipe, **given)
    except TraceError as error:
        assert verdict is REFUSED, error
        return
    shape = (3, 4) if law.agreement.several else (1, 5)
    found = [*differences(law, recipe, given, shape)]
    assert found
    assert max(found) < 1e-9
    assert verdict is LAW
