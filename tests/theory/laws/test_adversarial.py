"""Recipes that invite false laws give a true law or a refusal that names the cause."""

import pytest
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm._rule import scalar_state
from spherenorm_theory import norm_growth
from spherenorm_theory.laws import OutsideError
from tests.theory.laws.adversarial import LAWS, REFUSED, Keeps
from tests.theory.recipes import law_of

SHAPES = ((1, 6), (3, 4), (4, 4))


def assert_is_the_step(recipe, law, shape, steps=4, **numbers):
    """`law.evaluate` against `rule.step` along a run, for a weight of this shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    rule, view = law.step.traced.build(values), law.agreement.view
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    state = rule.init(weight)
    for _ in range(steps):
        grad = torch.randn(shape, dtype=torch.float64, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        new, after = rule.step(weight, grad, dict(state))
        law_new, law_after = law.evaluate(weight, grad, state, **numbers)
        torch.testing.assert_close(law_new, new, rtol=1e-10, atol=1e-10)
        for name in state:
            torch.testing.assert_close(
                law_after[name], after[name].double(), rtol=1e-10, atol=1e-10
            )
        weight, state = new, after


def numbers_of(law, sign):
    """A number from each interval; below 0 where that is allowed and asked for."""
    intervals = law.step.traced.intervals
    return {n: 0.3 * (sign if intervals[n].low < 0 else 1) for n in law.step.traced.symbols}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_the_step_of_its_code(name):
    law = norm_growth(LAWS[name])
    for sign in (1, -1):
        for shape in SHAPES if law.agreement.several else SHAPES[:1]:
            assert_is_the_step(LAWS[name], law, shape, **numbers_of(law, sign))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_its_cause(name):
    recipe, cause = REFUSED[name]
    with pytest.raises(ValueError, match=cause):
        norm_growth(recipe)


def test_a_law_is_not_evaluated_outside_of_its_assumptions():
    law = law_of("sgd")
    w, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[-4.0, 3.0]])
    state = {"momentum_buffer": w * 0}
    for weight, grad, numbers, message in [
        (w, g + w, {"momentum": 0.9}, "assumes <w, g> = 0"),
        (w, 0 * g, {"momentum": 0.9}, "assumes w, g not 0"),
        (w, g, {"momentum": 0.0}, "assumes momentum != 0"),
    ]:
        with pytest.raises(OutsideError, match=message):
            law.evaluate(weight, grad, state, **numbers)
    with pytest.raises(ValueError, match=r"lr must be in \[0, ∞\), got -1"):
        law.evaluate(w, g, state, lr=-1.0)
    with pytest.raises(ValueError, match="the state has no momentum_buffer"):
        law.evaluate(w, g, {}, momentum=0.9)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value):
    with pytest.raises(ValueError, match="sgd: lr must be a finite number, got"):
        norm_growth("sgd", lr=value)


def test_an_assumption_of_the_first_step_alone_is_said():
    def recipe(lr=0.1, every=3.0):
        def at_times(w, d, t, every):
            return torch.where((t + 1) % every == 0, d + 0.1 * w, d), t + 1

        return chain(Keeps(at_times, scalar_state, "step", (every,)), r.StepSize(lr))

    law = norm_growth(recipe)
    assert "every != 0" in law.assumptions
    assert "Mod(1, every) != 0 in the first step" in law.assumptions
    w, g = torch.tensor([[3.0, 4.0]]), torch.tensor([[-4.0, 3.0]])
    new, _ = law.evaluate(w, g, {"step": torch.tensor(2)}, lr=1.0)
    torch.testing.assert_close(new, (w - g - 0.1 * w).double())
    with pytest.raises(OutsideError, match="assumes Mod"):
        law.evaluate(w, g, {"step": torch.tensor(0)}, lr=1.0, every=1.0)
