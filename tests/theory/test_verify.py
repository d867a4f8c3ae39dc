"""Each law is the step of its code at the recipe's own numbers, and at those that are given."""

import itertools

import numpy as np
import pytest
import torch

from spherenorm import View, chain
from spherenorm import rules as r
from spherenorm_theory import (
    NoEquilibriumError,
    TraceError,
    equilibrium,
    equilibrium_turn,
    norm_growth,
)
from spherenorm_theory.evaluate import Inputs, OutsideError, evaluate
from spherenorm_theory.facts import Facts
from spherenorm_theory.hyper_parameters import scalar_names, substitute_inputs
from tests.harness import refuses
from tests.harness.tables import mostly_long
from tests.theory import adversaries
from tests.theory.adversaries import REFUSED, VERDICTS
from tests.theory.chains import random_structure
from tests.theory.recipes import By


def differences(law, recipe, settings, shape=(1, 5), n_steps=70):
    """Yield the differences of the law's steps to those of the code, made with plain numbers."""
    traced, view = law.step.traced, law.verified_domain.view
    rule = recipe(**settings)
    values = traced.all_values(
        **{n: x for n, x in settings.items() if n in traced.hyper_parameters}
    )
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    state = rule.init(weight)
    for _ in range(n_steps):
        grad = torch.randn(shape, dtype=torch.float64, generator=generator)
        grad = grad - view.radial_coefficient(weight, grad) * weight
        new, after = rule.step(weight, grad, dict(state))
        try:
            law_weight, states = evaluate(law.split_step, view, Inputs(weight, grad, state, values))
            yield float((law_weight - new).abs().max() / new.abs().max())
            yield from (float((states[n] - after[n]).abs().max()) for n in states)
        except OutsideError:  # such as that the first step is of another kind
            pass
        weight, state = new / new.norm() if new.norm() > 1e3 else new, after


@pytest.mark.parametrize(
    ("recipe", "settings", "verdict"),
    mostly_long(VERDICTS, kept=24),
    ids=[f"{f.__name__}-{','.join(f'{n}={x}' for n, x in g.items())}" for f, g, _ in VERDICTS],
)
def test_a_law_is_the_step_of_its_code_or_refused(recipe, settings, verdict):
    if verdict is REFUSED:
        with pytest.raises(TraceError):
            norm_growth(recipe, **settings)
        return
    law = norm_growth(recipe, **settings)
    shape = (3, 4) if law.verified_domain.multi_unit else (1, 5)
    errors = [*differences(law, recipe, settings, shape)]
    assert errors
    assert max(errors) < 1e-9


@pytest.mark.parametrize(
    "recipe", [adversaries.clipped_as_a_whole, adversaries.decays_a_long_whole]
)
def test_a_decision_by_the_length_of_all_units_is_no_law_of_one(recipe):
    """The lengths of the units are spread, so that it does not decide as that of each unit."""
    assert norm_growth(recipe).verified_domain.view == View(None)


def test_a_law_of_few_entries_is_of_one_unit():
    assert not norm_growth(adversaries.of_many_rows).verified_domain.multi_unit


def test_large_numbers_that_cancel_are_no_difference():
    """Far from its sphere the weight explodes, the projection removes 10^8 times the step."""
    structure, _ = random_structure(np.random.default_rng(25))
    law = norm_growth(structure.recipe, scale_invariant=False)
    assert (law.kappa, law.cross) == (0, 0)


def test_a_law_draws_none_of_the_callers_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    norm_growth(adversaries.clipped_as_a_whole)
    assert torch.rand(1) == expected


def test_a_decay_at_some_steps_is_a_branch():
    """Few samples of the step count hit a step with decay: no law assumes that there is none."""
    law = norm_growth(adversaries.decays_each_seventh)
    assert "mod 7 = 0" in str(law)
    assert law.kappa != 0
    assert law.closed_form() is None


def constant(factor):
    return adversaries.by_own_state(lambda c: c, lambda c: c, factor)


OWN_STATES = [pytest.param(*row, id=name) for name, row in adversaries.OWN_STATES.items()]


@pytest.mark.parametrize(("recipe", "factor"), mostly_long(OWN_STATES, kept=5))
def test_a_condition_on_a_state_of_its_own_is_assumed_by_no_law(recipe, factor):
    """Each step of a run is inside of the law; where the state settles, so does the norm."""
    law = norm_growth(recipe)
    n_numbers = 1 + len(law.step.state_atoms)
    errors = [*differences(law, recipe, {}, n_steps=20)]
    assert len(errors) == 20 * n_numbers
    assert max(errors) < 1e-9
    if factor is None:
        for derive in (equilibrium, equilibrium_turn):
            with pytest.raises(NoEquilibriumError, match=r"stationary value|for ever"):
                derive(recipe)
        return
    end = constant(factor)
    assert equilibrium(recipe).fourth_power == equilibrium(end).fourth_power
    assert equilibrium_turn(recipe) == pytest.approx(equilibrium_turn(end), rel=1e-9)


def test_a_law_that_assumes_a_state_away_differs_from_a_run(monkeypatch):
    """Runs from the start are compared: no draw would have the numbers of a counter."""
    monkeypatch.setattr(Facts, "_may_vanish_at_a_step", lambda *_: False)
    for recipe in (adversaries.decays_each_fifth, adversaries.restarted_momentum):
        with refuses("the law assumes", "of a run", by=TraceError):
            norm_growth(recipe)


def cap_beyond_all_draws(recipe, **settings):
    """The law of a recipe whose code is another one at numbers that were not drawn."""
    law = norm_growth(recipe, **settings)
    weight, grad = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[2.0, -1.0, 3.0]])
    return law, weight, grad, recipe().init(weight)


def test_a_law_says_nothing_at_numbers_where_its_code_is_another():
    """No draw comes so far: the numbers are tried when they are asked for."""
    law, *inputs = cap_beyond_all_draws(adversaries.far_but_capped)
    law.evaluate(*inputs, c=3.0)
    with refuses("far_but_capped", "c_hyper=1e+07", by=TraceError):
        law.evaluate(*inputs, c=1e7)


def test_equilibria_and_turns_at_numbers_where_the_code_is_another():
    recipe = adversaries.decays_at_most
    for weight_decay, lr in ((0.1, 0.1), (0.5, 0.01)):
        assert equilibrium_turn(recipe, lr=lr, weight_decay=weight_decay) > 0
    law = equilibrium(recipe)
    law.effective_step(law.traced.free_values(weight_decay=0.1))
    with refuses("decays_at_most", "weight_decay=4000", by=TraceError):
        law.effective_step(law.traced.free_values(lr=1e-4, weight_decay=4e3))
    with refuses("decays_at_most", "weight_decay=4000", by=TraceError):
        equilibrium_turn(recipe, lr=1e-4, weight_decay=4e3)
    at_numbers = equilibrium(recipe, lr=1e-4, weight_decay=4e3)
    same = equilibrium(adversaries.decays, lr=1e-4, weight_decay=2e3)
    assert at_numbers.squared_effective_step == same.squared_effective_step


def named(lr=0.1, betas=(0.9, 0.8), **others):
    """A momentum, and a factor in which no two numbers stand for each other."""

    def function(w, d, *numbers):
        return d * sum((n + 2) * x for n, x in enumerate(numbers))

    scale = By(function, (betas[1], *others.values()))
    return chain(r.HeavyBall(betas[0]), scale, r.StepSize(lr))


NAMES = [
    ("beta1",),
    ("beta2",),
    ("betas1",),
    ("beta1", "betas1"),
    ("beta1", "betas2", "betas_1"),
    *(("t",), ("k",), ("w", "w_hyper"), ("m",), ("c1",), ("turn",), ("gamma",), ("channel",)),
    *(("momentum", "beta"), ("momentum_2",), ("p",), ("u",), ("d",), ("step",)),
]


@pytest.mark.parametrize("names", mostly_long(map(pytest.param, NAMES), kept=7))
def test_no_number_has_the_name_of_another(names):
    """Nor that of a vector, a state, or a symbol of the laws."""
    parameters = ", ".join(f"{name}={0.3 + n / 10}" for n, name in enumerate(names))
    values = ", ".join(f"{name}={name}" for name in names)
    scope = {"named": named, "__name__": __name__}
    head = f"def recipe(lr=0.1, betas=(0.9, 0.8), {parameters}):"
    exec(f"{head}\n    return named(lr, betas, {values})", scope)
    law = norm_growth(scope["recipe"])
    traced = law.step.traced
    symbols = [s.name for s in traced.symbols.values()]
    atoms = [
        *law.step.state_atoms.values(),
        *law.step.algebra.combinations,
        *law.step.algebra.opaque_vectors,
    ]
    assert len({*symbols, *atoms}) == len(symbols) + len(atoms)
    assert max(differences(law, scope["recipe"], {}, n_steps=5)) < 1e-10
    settings = {name: 0.25 + n / 10 for n, name in enumerate(names)}
    law_at_numbers = norm_growth(scope["recipe"], betas=(0.7, 0.6), **settings)
    used = {"betas": (0.7, 0.6), **settings}
    assert max(differences(law_at_numbers, scope["recipe"], used, n_steps=5)) < 1e-10


def test_a_tuple_beside_another_of_its_stem():
    values = {"beta": (0.1, 0.2), "betas": (0.3, 0.4), "betas2": 0.5}
    names = [*itertools.chain(*scalar_names(values).values())]
    assert len({*names}) == len(names) == 5
    substituted = substitute_inputs(values, {names[2]: 9.0})
    assert substituted == {**values, "betas": (9.0, 0.4)}


def test_a_held_number_keeps_its_name_in_print():
    """The momentum is not printed as beta beside a beta that is held."""

    def recipe(lr=0.1, momentum=0.9, beta=0.5):
        return chain(r.HeavyBall(momentum), r.HeavyBall(beta), r.StepSize(lr))

    text = str(norm_growth(recipe, beta=0.5))
    assert "beta = 0.5" in text
    assert "momentum in (0, 1)" in text
    assert "beta = momentum" not in text
