"""The step of a law in numbers, its predictions over a run, and refusals that say why not."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from spherenorm import chain, find_recipe
from spherenorm import rules as r
from spherenorm_theory import check, norm_growth
from spherenorm_theory.laws import OutsideError
from tests.harness import refuses
from tests.theory.recipes import By, Keeps, inner, keeps, law_of

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


def run(recipe, law, steps=12, schedule=None, **given):
    """|w_t|, |s_t| and <w_t, s_t> of a float64 run under gradients orthogonal to each unit."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 9, dtype=torch.float64, generator=generator)
    norms, drives, crosses, state = [], [], [], None
    for t in range(steps):
        values = given if schedule is None else {**given, "lr": schedule[t]}
        rule = find_recipe(recipe)(**values)
        state = rule.init(w) if state is None else state
        g = torch.randn(w.shape, dtype=torch.float64, generator=generator)
        g = g - w * (g * w).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True)
        new, state = rule.step(w, g, state)
        kappa = float(law.kappa.subs(law.step.traced.values(**values)))
        s = new - (1 - kappa) * w
        norms.append(w.norm(dim=1).numpy())
        drives.append(s.norm(dim=1).numpy())
        crosses.append((w * s).sum(1).numpy())
        w = new
    return np.stack([*norms, w.norm(dim=1).numpy()]), np.stack(drives), np.stack(crosses)


NUMBERS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


@pytest.mark.parametrize("name", ["sgd", "sgdw", "sgdp"])
@pytest.mark.parametrize("schedule", [None, np.linspace(0.2, 0.01, 12)], ids=["constant", "lr"])
def test_a_prediction_follows_a_run(name, schedule):
    law = law_of(name, dampening=0.0)
    norms, drive, _ = run(name, law, schedule=schedule, **NUMBERS)
    numbers = {**NUMBERS, "lr": 0.1 if schedule is None else schedule}
    np.testing.assert_allclose(law.predict(norms, drive, **numbers), norms, rtol=1e-10)


def test_an_open_law_is_given_its_cross_term_and_has_bounds():
    law = law_of("adamw")
    values = {"lr": 0.1, "weight_decay": 0.1}
    norms, drive, cross = run("adamw", law, **values)
    with refuses("<w,s>", "predict_range"):
        law.predict(norms, drive, **values)
    predicted = law.predict(norms, drive, measured={"<w,s>": cross}, **values)
    np.testing.assert_allclose(predicted, norms, rtol=1e-10)
    least, greatest = law.predict_range(norms, drive, **values)
    assert (least <= norms + 1e-12).all()
    assert (norms <= greatest + 1e-12).all()
    assert np.allclose(greatest[1] - 0.99 * norms[0], drive[0])


@pytest.mark.parametrize(
    ("norms", "drive", "numbers", "named"),
    [
        (1.0, 2.0, {}, ["drive"]),
        (-1.0, [np.nan], {}, ["lengths"]),
        ([1.0, 2.0], np.ones((3, 5)), {}, ["do not fit"]),
        (1.0, [1.0, 1.0], {"lr": [0.1]}, ["lr", "2 steps"]),
    ],
)
def test_bad_lengths(norms, drive, numbers, named):
    law = law_of("sgd", momentum=0.0, weight_decay=0.0, dampening=0.0)
    with refuses(*named):
        law.predict(norms, drive, **numbers)


def test_a_rate_of_0_is_named_where_the_norm_needs_what_no_step_shows():
    law = law_of("sgd", weight_decay=0.0, dampening=0.0)
    with refuses("after step 2", "lr = 0 at step 1"):
        law.predict(1.0, [0.1, 0.0, 0.1], lr=[0.1, 0.0, 0.1], momentum=0.5)
    cooled = law.predict(1.0, [0.3, 0.4, 0.0], lr=[0.1, 0.1, 0.0], momentum=0.5)
    assert cooled == pytest.approx([1.0, 1.09**0.5, 1.34**0.5, 1.34**0.5], rel=1e-14)


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [
        (keeps(lambda w, d, kept: (d + kept * w, kept + inner(d, d).sum())), "|g|^2"),
        (keeps(lambda w, d, start: (d + (1 - start) * w, start), torch.norm), "kept"),
    ],
)
def test_a_counter_that_no_length_gives_is_named(recipe, needed):
    with refuses(f"the law needs {needed} of each step"):
        norm_growth(recipe).predict(1.0, [0.1, 0.1])


def averaged_from(begin):
    def recipe(lr=0.1):
        kept = Keeps(lambda w, d, m: (m := 0.9 * m + d, m), begin)
        return chain(kept, r.StepSize(lr))

    return recipe


@pytest.mark.parametrize("begin", [torch.rand_like, torch.square], ids=["random", "w*w"])
def test_a_state_of_unknown_start_is_asked_for(begin):
    recipe = averaged_from(begin)
    law = norm_growth(recipe)
    norms, drive, cross = run(recipe, law)
    # <w, s> = -lr 0.9 <w, kept>, as <w, g> = 0
    kept = cross / (-0.1 * 0.9)
    with refuses("<w,kept>"):
        law.predict(norms, drive)
    predicted = law.predict(norms, drive, measured={"<w,kept>": kept})
    np.testing.assert_allclose(predicted, norms, rtol=1e-12)
    assert law.closed_form() is None
    assert check(recipe, "toy-3d", steps=20).passed
