"""The step of a law in numbers: those of its code, or a refusal that says why not."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from spherenorm import Rule, chain, find_recipe
from spherenorm import rules as r
from spherenorm_theory import check, norm_growth, one_step
from spherenorm_theory.laws import OutsideError
from spherenorm_theory.laws._evaluation import Inputs, choose_step
from tests.theory.laws.adversarial import By, keeps
from tests.theory.recipes import law_of

W, G = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[-4.0, 3.0]]).double()


def beside_a_number(lr=0.1, betas=(0.9, 0.99), beta1=0.5):
    return chain(By(lambda w, d, a, b, c: (a + 2 * b + 5 * c) * d, (*betas, beta1)), r.StepSize(lr))


def beside_a_tuple(lr=0.1, beta=(0.9, 0.99), betas=(0.2, 0.5)):
    return chain(
        By(lambda w, d, a, b, c: (a + 2 * b + 5 * c) * d, (*betas, beta[0])), r.StepSize(lr)
    )


@pytest.mark.parametrize(
    ("recipe", "names", "given"),
    [
        (beside_a_number, "lr beta1 betas1 betas2", {"betas": (0.7, 0.8), "beta1": 0.3}),
        (beside_a_tuple, "lr beta1 beta2 betas1 betas2", {"betas": (0.7, 0.8), "beta": (0.3, 0.4)}),
    ],
)
def test_numbers_that_would_share_a_name_have_their_own(recipe, names, given):
    law = norm_growth(recipe)
    assert {*law.step.traced.symbols} == {*names.split()}
    new, _ = law.evaluate(W, G, {}, **given)
    torch.testing.assert_close(new, W - 0.1 * (0.7 + 2 * 0.8 + 5 * 0.3) * G, rtol=1e-14, atol=1e-14)


def decayed(lr=0.1, weight_decay=0.1, nesterov=False):
    return chain(r.DecoupledDecay(weight_decay), r.StepSize(lr))


def of_a_tensor(lr=torch.tensor(0.1)):  # noqa: B008
    return chain(r.StepSize(lr))


def of_a_scalar(lr=np.float32(0.5)):  # noqa: B008
    return chain(r.StepSize(lr))


def of_a_fraction(lr=Fraction(1, 10)):
    return chain(r.StepSize(lr))


def test_a_state_that_starts_at_a_decimal_is_the_first_one():
    def start(weight):
        return torch.full((), 0.1, dtype=weight.dtype)

    recipe = keeps(lambda w, d, n: (d * n, n + 1), start)
    step = replace(one_step(recipe), first=one_step(recipe, first=True))
    state = recipe().init(W)
    assert choose_step(step, Inputs(W, G, state, {})) is step.first
    later = {**state, "kept": state["kept"] + 1}
    assert choose_step(step, Inputs(W, G, later, {})) is step


def test_a_number_that_a_law_holds_is_no_other_one():
    law = norm_growth(decayed, weight_decay=0.01)
    assert "weight_decay = 0.01" in law.assumptions
    assert law.evaluate(W, G, {}, weight_decay=0.01)[0].equal(law.evaluate(W, G, {})[0])
    for given, message in [
        ({"weight_decay": 0.5}, r"holds weight_decay at 0\.01, got 0\.5; .*weight_decay=0\.5"),
        ({"nesterov": True}, "holds nesterov at False, got True"),
        ({"momentun": 0.5}, "no hyper-parameter 'momentun'; it has lr, weight_decay"),
        ({"lr": -3}, r"lr must be in \[0, ∞\), got -3"),
        ({"lr": None}, r"lr must be in \[0, ∞\), got None"),
    ]:
        with pytest.raises(ValueError, match=message):
            law.evaluate(W, G, {}, **given)
        with pytest.raises(ValueError, match=message):
            law.predict(1.0, [0.1, 0.1], **given)
    for given, message in [
        ({"lr": [0.1, -3.0]}, r"lr must be in \[0, ∞\), got -3"),
        ({"weight_decay": [0.1, 0.2]}, "holds weight_decay at 0.01"),
    ]:
        with pytest.raises(ValueError, match=message):
            law.predict(1.0, [0.1, 0.1], **given)


@pytest.mark.parametrize("recipe", [of_a_scalar, of_a_fraction])
def test_every_real_default_is_a_symbol(recipe):
    new, _ = norm_growth(recipe).evaluate(W, G, {}, lr=0.25)
    torch.testing.assert_close(new, W - 0.25 * G, rtol=1e-14, atol=1e-14)


def test_a_tensor_of_a_recipe_is_held():
    law = norm_growth(of_a_tensor)
    assert "lr = 0.10000000149011612" in law.assumptions
    with pytest.raises(ValueError, match=r"holds lr at tensor\(0\.1000\), got 0\.5"):
        law.evaluate(W, G, {}, lr=0.5)


def test_the_entries_of_a_tuple_are_held_one_by_one():
    law = norm_growth(beside_a_number, betas=(0.9, "betas2"))
    law.evaluate(W, G, {}, betas=[0.9, 0.5])
    with pytest.raises(ValueError, match=r"holds betas1 at 0\.9, got 0\.8"):
        law.evaluate(W, G, {}, betas=(0.8, 0.5))
    with pytest.raises(ValueError, match="betas takes 2 numbers"):
        law.evaluate(W, G, {}, betas=(0.9,))


def test_the_step_is_that_of_an_optimizer_without_gradients():
    def recipe(lr=0.1):
        return chain(By(lambda w, d: d if torch.is_grad_enabled() else 3 * d), r.StepSize(lr))

    new, _ = norm_growth(recipe).evaluate(W, G, {}, lr=0.5)
    torch.testing.assert_close(new, W - 1.5 * G, rtol=1e-14, atol=1e-14)
    assert check(recipe, "toy-2d", steps=5).passed


def test_plain_numbers_are_compared_over_the_whole_interval():
    def at_most(end):
        def recipe(lr=0.1, c=0.5):
            c = min(c, end) if isinstance(c, float) else c
            return chain(By(lambda w, d, c: c * d, (c,)), r.StepSize(lr))

        return recipe

    def at_least(lr=0.1, momentum=0.9):
        momentum = max(momentum, 0.01) if isinstance(momentum, float) else momentum
        return chain(r.HeavyBall(momentum), r.StepSize(lr))

    for recipe in (at_most(2.0), at_most(500.0), at_least):
        with pytest.raises(ValueError, match=r"numbers than where .* \(.* = .*\)"):
            norm_growth(recipe)


def test_a_law_is_evaluated_without_its_code():
    calls = []

    def recipe(lr=0.1):
        return chain(By(lambda w, d: calls.append(w) or 2 * d), r.StepSize(lr))

    law = norm_growth(recipe)
    calls.clear()
    new, _ = law.evaluate(W, G, {}, lr=0.5)
    torch.testing.assert_close(new, W - G, rtol=1e-14, atol=1e-14)
    assert not calls


@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 2), (2, 3, 2, 2)], ids=str)
def test_what_the_library_remembers_of_a_rule_refuses_no_weight(shape):
    law = law_of("adamp")
    numbers = dict.fromkeys(law.step.traced.symbols, 0.3)
    rule = find_recipe("adamp")(betas=(0.3, 0.3), **{n: 0.3 for n in numbers if "beta" not in n})
    w, g = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    g = g - law.agreement.view.radial_coefficient(w, g) * w
    for _ in range(2):
        new, _ = law.evaluate(w, g, rule.init(w), **numbers)
        expected = rule.step(w, g, rule.init(w))[0]
        torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-12)


def mixed(radial):
    """A weight of two rows of equal length, and a gradient with a radial part for each."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(2, 40, dtype=torch.float64, generator=generator)
    w = w / w.norm(dim=1, keepdim=True)
    g = torch.randn(2, 40, dtype=torch.float64, generator=generator)
    g = g - w * (w * g).sum(1, keepdim=True)
    return w, g + torch.tensor(radial, dtype=torch.float64)[:, None] * w


@pytest.mark.parametrize(
    ("name", "given"), [("sgdp", {}), ("sgdp", {"per": "unit"}), ("adamp", {})], ids=str
)
def test_a_projection_of_a_later_view_is_outside_of_a_law_without_one(name, given):
    law = law_of(name, scale_invariant=False, **given)
    assert "no projection acts in any of the views channel, layer" in law.assumptions
    numbers = {"weight_decay": 0.3, "wd_ratio": 0.2, "delta": 0.1}
    rule = find_recipe(name)(**numbers, **given)
    for radial in ([2.0, 2.0], [2.0, -1.0]):
        w, g = mixed(radial)
        new, _ = law.evaluate(w, g, rule.init(w), **numbers)
        expected = rule.step(w, g, rule.init(w))[0]
        torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-12)
    w, g = mixed([2.0, -2.0])
    with pytest.raises(OutsideError, match="the test of the view layer passes"):
        law.evaluate(w, g, rule.init(w), **numbers)


def test_a_test_that_no_view_declares_is_seen_by_gradients_of_both_signs():
    def tested(w, d):
        passes = (w * d).sum().abs() < 0.01 * w.norm() * d.norm()
        return torch.where(passes, d - (w * d).sum() / (w * w).sum() * w, d)

    law = norm_growth(lambda lr=0.1: chain(By(tested), r.StepSize(lr)), scale_invariant=False)
    assert law.agreement.view.name == "layer"


def test_a_moment_that_is_no_number_is_drawn_as_others_are():
    """A share that may be any number makes roots of negative moments."""

    class Unit(Rule):
        beta: Any = 0.9

        def init(self, weight):
            return {"square": weight.new_zeros(())}

        def update(self, update, state):
            d = update.direction
            square = self.beta * state["square"] + (1 - self.beta) * (d * d).sum()
            return replace(update, direction=d / square.sqrt()), {"square": square}

    law = norm_growth(lambda lr=0.1, beta=0.9: chain(Unit(beta), r.StepSize(lr)))
    new, state = law.evaluate(W, G, {"square": torch.zeros(())}, lr=0.5, beta=0.75)
    torch.testing.assert_close(new, W - 0.5 * G / 6.25**0.5, rtol=1e-14, atol=1e-14)
    assert state["square"] == 6.25


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_log1p_has_its_digits_in_numbers(size):
    class Log(Rule):
        def update(self, update, state):
            s = (update.weight**2).sum(1, keepdim=True)
            return update.changed(direction=update.direction * torch.log1p(s) / s), {}

    def logged(lr=0.1, weight_decay=0.01):
        return chain(Log(), r.DecoupledDecay(weight_decay), r.StepSize(lr))

    rule, w = logged(), torch.tensor([[size, 0.0]], dtype=torch.float64)
    g = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    said = norm_growth(logged).evaluate(w, g, rule.init(w))[0]
    torch.testing.assert_close(torch.as_tensor(said), rule.step(w, g, {})[0], rtol=1e-12, atol=0)
