"""Predictions over a run, and bounds of laws that stay open."""

import numpy as np
import pytest
import torch

from spherenorm import chain, find_recipe
from spherenorm import rules as r
from spherenorm_theory import check, norm_growth
from tests.harness import refuses
from tests.theory.recipes import Keeps, inner, keeps, law_of


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
