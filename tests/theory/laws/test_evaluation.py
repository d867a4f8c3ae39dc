"""The step of a law in numbers: those of its code, or a refusal that says why not."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from spherenorm import chain, find_recipe
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from spherenorm_theory.laws import OutsideError
from tests.harness import refuses
from tests.theory.recipes import By, law_of

W, G = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([[-4.0, 3.0]]).double()
EXACT = {"rtol": 1e-14, "atol": 1e-14}


def beside_a_number(lr=0.1, betas=(0.9, 0.99), beta1=0.5):
    return chain(By(lambda w, d, a, b, c: (a + 2 * b + 5 * c) * d, (*betas, beta1)), r.StepSize(lr))


def test_numbers_that_would_share_a_name_have_their_own():
    law = norm_growth(beside_a_number)
    assert {*law.step.traced.symbols} == {"lr", "beta1", "betas1", "betas2"}
    new, _ = law.evaluate(W, G, {}, betas=(0.7, 0.8), beta1=0.3)
    torch.testing.assert_close(new, W - 0.1 * (0.7 + 2 * 0.8 + 5 * 0.3) * G, **EXACT)


def decayed(lr=0.1, weight_decay=0.1, nesterov=False):
    return chain(r.DecoupledDecay(weight_decay), r.StepSize(lr))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weight_decay": 0.5}, ["weight_decay at 0.01", 0.5]),
        ({"nesterov": True}, ["nesterov at False", True]),
        ({"momentun": 0.5}, ["momentun", "lr, weight_decay"]),
        ({"lr": -3}, ["lr", "[0, ∞)", -3]),
        ({"lr": None}, ["lr", "[0, ∞)", None]),
        ({"lr": [0.1, -3.0]}, ["lr", "[0, ∞)", -3]),
        ({"weight_decay": [0.1, 0.2]}, ["weight_decay at 0.01"]),
    ],
)
def test_a_number_that_a_law_holds_is_no_other_one(given, named):
    law = norm_growth(decayed, weight_decay=0.01)
    assert "weight_decay = 0.01" in law.assumptions
    assert law.evaluate(W, G, {}, weight_decay=0.01)[0].equal(law.evaluate(W, G, {})[0])
    with refuses(*named):
        law.predict(1.0, [0.1, 0.1], **given)
    if not isinstance(next(iter(given.values())), list):
        with refuses(*named):
            law.evaluate(W, G, {}, **given)


@pytest.mark.parametrize("number", [np.float32(0.5), Fraction(1, 10)])
def test_every_real_default_is_a_symbol(number):
    new, _ = norm_growth(lambda lr=number: chain(r.StepSize(lr))).evaluate(W, G, {}, lr=0.25)
    torch.testing.assert_close(new, W - 0.25 * G, **EXACT)


def test_a_tensor_of_a_recipe_is_held():
    law = norm_growth(lambda lr=torch.tensor(0.1): chain(r.StepSize(lr)))  # noqa: B008
    assert "lr = 0.10000000149011612" in law.assumptions
    with refuses("lr", "0.1000", 0.5):
        law.evaluate(W, G, {}, lr=0.5)


def test_the_entries_of_a_tuple_are_held_one_by_one():
    law = norm_growth(beside_a_number, betas=(0.9, "betas2"))
    law.evaluate(W, G, {}, betas=[0.9, 0.5])
    with refuses("betas1 at 0.9", 0.8):
        law.evaluate(W, G, {}, betas=(0.8, 0.5))
    with refuses("betas takes 2 numbers"):
        law.evaluate(W, G, {}, betas=(0.9,))


@pytest.mark.parametrize(("end", "choose"), [(2.0, min), (0.01, max)])
def test_plain_numbers_are_compared_over_the_whole_interval(end, choose):
    def recipe(lr=0.1, c=0.5):
        c = choose(c, end) if isinstance(c, float) else c
        return chain(By(lambda w, d, c: c * d, (c,)), r.StepSize(lr))

    with refuses("plain numbers", "c ="):
        norm_growth(recipe)


def test_a_law_is_evaluated_without_its_code():
    calls = []

    def recipe(lr=0.1):
        return chain(By(lambda w, d: calls.append(w) or 2 * d), r.StepSize(lr))

    law = norm_growth(recipe)
    calls.clear()
    new, _ = law.evaluate(W, G, {}, lr=0.5)
    torch.testing.assert_close(new, W - G, **EXACT)
    assert not calls


def mixed(radial):
    """A weight of two rows of equal length, and a gradient with a radial part for each."""
    generator = torch.Generator().manual_seed(0)
    w, g = torch.randn(2, 2, 40, dtype=torch.float64, generator=generator)
    w = w / w.norm(dim=1, keepdim=True)
    g = g - w * (w * g).sum(1, keepdim=True)
    return w, g + torch.tensor(radial, dtype=torch.float64)[:, None] * w


@pytest.mark.parametrize(("name", "given"), [("sgdp", {"per": "unit"}), ("adamp", {})], ids=str)
def test_a_projection_of_a_later_view_is_outside_of_a_law_without_one(name, given):
    law = law_of(name, scale_invariant=False, **given)
    assert "no projection acts in any of the views channel, layer" in law.assumptions
    numbers = {"weight_decay": 0.3, "wd_ratio": 0.2, "delta": 0.1}
    rule = find_recipe(name)(**numbers, **given)
    for radial in ([2.0, 2.0], [2.0, -1.0]):
        w, g = mixed(radial)
        found, expected = law.evaluate(w, g, rule.init(w), **numbers), rule.step(w, g, rule.init(w))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    w, g = mixed([2.0, -2.0])
    with refuses("layer", by=OutsideError):
        law.evaluate(w, g, rule.init(w), **numbers)


def test_a_test_that_no_view_declares_is_seen_by_gradients_of_both_signs():
    def tested(w, d):
        passes = (w * d).sum().abs() < 0.01 * w.norm() * d.norm()
        return torch.where(passes, d - (w * d).sum() / (w * w).sum() * w, d)

    law = norm_growth(lambda lr=0.1: chain(By(tested), r.StepSize(lr)), scale_invariant=False)
    assert law.agreement.view.name == "layer"


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_log1p_has_its_digits_in_numbers(size):
    def logged(w, d):
        s = (w**2).sum(1, keepdim=True)
        return d * torch.log1p(s) / s

    def recipe(lr=0.1, weight_decay=0.01):
        return chain(By(logged), r.DecoupledDecay(weight_decay), r.StepSize(lr))

    w, g = torch.tensor([[size, 0.0], [0.0, 2.0]], dtype=torch.float64)[:, None]
    said, _ = norm_growth(recipe).evaluate(w, g, {})
    torch.testing.assert_close(said, recipe().step(w, g, {})[0], rtol=1e-12, atol=0)
