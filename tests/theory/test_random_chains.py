"""Random legal chains: the one-step law that is derived from the trace must match a float64 step, in every Gram entry."""

import numpy as np
import pytest
import sympy as sp
import torch

from spherenorm import Sphere, chain
from spherenorm import rules as r
from tests.theory.gram import combine, evaluate
from theory import norm_growth
from theory.symbols import Vector

SEEDS = range(24)


def random_recipe(rng):
    """A recipe with every hyper-parameter exposed, and values for them."""
    values = {
        "lr": rng.uniform(0.01, 0.5),
        "beta": rng.uniform(0.1, 0.95),
        "beta2": rng.uniform(0.5, 0.99),
        "tau": rng.uniform(0.0, 0.9),
        "wd": rng.uniform(0.0, 0.3),
        "ratio": rng.uniform(0.0, 1.0),
        "nu": rng.uniform(0.1, 3.0),
        "alpha": rng.uniform(0.0, 0.3),
    }
    flags = {name: bool(rng.integers(2)) for name in ("coupled", "clip", "inside", "decoupled", "tested", "nesterov", "undamped", "late")}
    momentum = rng.choice(["none", "heavy", "average", "corrected", "feedback", "unit", "both"])
    projection = rng.choice(["none", "view", "test"])
    sphere = rng.random() < 0.25
    orthogonal = rng.random() < 0.25

    def recipe(lr=0.1, beta=0.9, beta2=0.99, tau=0.5, wd=0.01, ratio=0.1, nu=1.0, alpha=0.1):
        rules = []
        if flags["coupled"]:
            rules.append(r.CoupledDecay(wd))
        if orthogonal:
            rules.append(r.OrthogonalityRegularization(alpha))
        if flags["clip"] and not flags["late"]:
            rules.append(r.UnitClip(nu))
        if flags["inside"]:
            rules.append(r.StepSize(lr))
        heavy = r.HeavyBall(beta, tau, flags["nesterov"], flags["undamped"])
        rules += {
            "none": [],
            "heavy": [heavy],
            "average": [r.ExponentialAverage(beta)],
            "corrected": [r.ExponentialAverage(beta, bias_correction=True)],
            "feedback": [r.FeedbackMomentum(r.RadialProjection("channel"), beta, tau)],
            "unit": [r.UnitMoments(beta, beta2)],
            "both": [r.ExponentialAverage(beta2), heavy],
        }[momentum]
        if flags["clip"] and flags["late"]:
            rules.append(r.UnitClip(nu))
        if projection == "test" or flags["tested"]:
            rules.append(r.ScaleInvarianceTest())
        if projection != "none":
            rules.append(r.RadialProjection("layer" if projection == "view" else None))
        if flags["decoupled"]:
            rules.append(r.DecoupledDecay(wd, ratio if projection == "test" or flags["tested"] else None))
        if not flags["inside"]:
            rules.append(r.StepSize(lr))
        return chain(*rules, geometry=Sphere("channel")) if sphere else chain(*rules)

    return recipe, values


@pytest.mark.parametrize("seed", SEEDS)
def test_derived_step_matches_a_float64_step(seed):
    rng = np.random.default_rng(seed)
    recipe, hypers = random_recipe(rng)
    law = norm_growth(recipe)
    step = law.step
    assert law.residual == 0

    rule = recipe(**hypers)
    w, g = rng.normal(size=7), rng.normal(size=7)
    g -= w * (w @ g) / (w @ w)
    state = {n: rng.normal(size=v.shape) if v.numel() > 1 else np.full(v.shape, rng.uniform(1, 3)) for n, v in rule.init(_row(w)).items()}
    new, new_state = rule.step(_row(w), _row(g), {n: torch.tensor(v) for n, v in state.items()})

    letters = dict(zip(state, step.states, strict=True))
    vectors = {"w": w, "g": g, **{letters[n]: v.ravel() for n, v in state.items() if v.size > 1}}
    symbols = {s: hypers[n] for n, s in step.traced.symbols.items()}
    scalars = {letters[n]: float(v.item()) for n, v in state.items() if v.size == 1}
    values = {**symbols, **_scalar_symbols(scalars)}
    after = new.numpy().ravel()
    np.testing.assert_allclose(combine(step, step.weight, vectors, values), after, rtol=1e-10, atol=1e-12)
    for name, letter in letters.items():
        derived, measured = step.states[letter], new_state[name].numpy().ravel()
        got = combine(step, derived, vectors, values) if isinstance(derived, Vector) else evaluate(step, derived, vectors, values)
        np.testing.assert_allclose(got, measured, rtol=1e-10, atol=1e-12)
    # The law, fed with the measured step.
    drive = after - (1 - evaluate(step, law.kappa, vectors, values)) * w
    predicted = evaluate(step, law.law.rhs, {**vectors, "s": drive}, values)
    np.testing.assert_allclose(predicted, after @ after, rtol=1e-10)
    vectors["s"] = drive
    for unknown, expression in law.recursion.items():
        buffer = unknown.name[3:-1]
        key = next(n for n, letter in letters.items() if letter == buffer)
        np.testing.assert_allclose(
            evaluate(step, expression, vectors, values), after @ new_state[key].numpy().ravel(), rtol=1e-9, atol=1e-11
        )


def _row(x):
    return torch.tensor(x)[None]


def _scalar_symbols(scalars):
    return {sp.Symbol(name, positive=True): value for name, value in scalars.items()}
