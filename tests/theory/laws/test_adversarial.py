"""Recipes that invite false laws give a true law or a refusal that names the cause."""

import pytest
import torch

from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from spherenorm_theory.laws import OutsideError
from tests.harness import refuses
from tests.theory.gram import assert_is_the_step
from tests.theory.laws.adversarial import LAWS, REFUSED
from tests.theory.recipes import Keeps, law_of

SHAPES = ((1, 6), (3, 4), (4, 4))
W, G = torch.tensor([[3.0, 4.0]]), torch.tensor([[-4.0, 3.0]])


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_the_step_of_its_code(name):
    """With numbers of either sign, where both are allowed."""
    law = norm_growth(LAWS[name])
    intervals = law.step.traced.intervals
    for sign in (1, -1):
        numbers = {n: 0.3 * (sign if intervals[n].low < 0 else 1) for n in law.step.traced.symbols}
        for shape in SHAPES if law.agreement.several else SHAPES[:1]:
            assert_is_the_step(law, shape, numbers, torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_its_cause(name):
    recipe, cause = REFUSED[name]
    with refuses(cause):
        norm_growth(recipe)


@pytest.mark.parametrize(
    ("weight", "grad", "numbers", "named", "error"),
    [
        (W, G + W, {"momentum": 0.9}, ["<w, g> = 0"], OutsideError),
        (W, 0 * G, {"momentum": 0.9}, ["w, g not 0"], OutsideError),
        (W, G, {"momentum": 0.0}, ["momentum != 0"], OutsideError),
        (W, G, {"lr": -1.0}, ["lr", "[0, ∞)", -1], ValueError),
        (W, G, None, ["momentum_buffer"], ValueError),
    ],
)
def test_a_law_is_not_evaluated_outside_of_its_assumptions(weight, grad, numbers, named, error):
    state = {} if numbers is None else {"momentum_buffer": W * 0}
    with refuses(*named, by=error):
        law_of("sgd").evaluate(weight, grad, state, **(numbers or {}))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value):
    with refuses("sgd", "lr", value):
        norm_growth("sgd", lr=value)


def test_an_assumption_of_the_first_step_alone_is_said():
    def recipe(lr=0.1, every=3.0):
        def at_times(w, d, t, every):
            return torch.where((t + 1) % every == 0, d + 0.1 * w, d), t + 1

        return chain(Keeps(at_times, names="times", numbers=(every,)), r.StepSize(lr))

    law = norm_growth(recipe)
    assert "every != 0" in law.assumptions
    assert "Mod(1, every) != 0 in the first step" in law.assumptions
    new, _ = law.evaluate(W, G, {"times": torch.tensor(2)}, lr=1.0)
    torch.testing.assert_close(new, (W - G - 0.1 * W).double())
    with refuses("Mod", by=OutsideError):
        law.evaluate(W, G, {"times": torch.tensor(0)}, lr=1.0, every=1.0)
