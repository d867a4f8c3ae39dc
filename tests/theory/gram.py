"""A derived step, its law and its recursions against a float64 step from a random state."""

import numpy as np
import torch

from spherenorm_theory import norm_growth
from spherenorm_theory.algebra import NumericEvaluator, Vector
from spherenorm_theory.laws import OutsideError


def assert_matches_a_float64_step(recipe, hypers, rng, scale_invariant=True):
    """The derived step, law and recursions of `recipe` match a float64 step from a random state.

    Args:
        hypers: values for the hyper-parameters.
        scale_invariant: whether <w, g> = 0, in the law and in the run.
    """
    law = norm_growth(recipe, scale_invariant=scale_invariant)
    assert law.residual == 0
    step, rule = law.step, recipe(**hypers)
    w, g = rng.normal(size=(2, 1, 7))
    # Along the weight not at all, or by far more than a test for scale invariance lets pass.
    g = g + w * ((0 if scale_invariant else 2) - (w * g).sum() / (w * w).sum())
    state = _random_state(rule, torch.tensor(w), rng)
    new, after = rule.step(torch.tensor(w), torch.tensor(g), state)
    letters = {letter: name for name, letter in step.letters.items()}
    numbers = _read(step, hypers, w, g, state)
    after = {"w": new.numpy(), **{a: after[name].numpy() for a, name in letters.items()}}
    for letter, derived in {"w": step.weight, **step.states}.items():
        read = numbers.vector if isinstance(derived, Vector) else numbers.scalar
        np.testing.assert_allclose(
            read(derived).ravel(), after[letter].ravel(), rtol=1e-10, atol=1e-12
        )
    numbers.vectors["s"] = after["w"] - (1 - numbers.scalar(law.kappa)) * w
    squared = numbers.scalar(law.law.rhs)
    np.testing.assert_allclose(squared, (after["w"] ** 2).sum(), rtol=1e-10)
    for unknown, expression in law.recursion.items():
        measured = (after["w"] * after[str(unknown)[3:-1]]).sum()
        np.testing.assert_allclose(numbers.scalar(expression), measured, rtol=1e-9, atol=1e-11)
    return law


def _random_state(rule, weight, rng):
    """Random entries, and numbers from 1 to 3; a second moment has no negative entry."""
    state = {
        n: torch.tensor(rng.normal(size=v.shape) if v.numel() > 1 else rng.uniform(1, 3, v.shape))
        for n, v in rule.init(weight).items()
    }
    return {n: v.abs() if "sq" in n else v for n, v in state.items()}


def _read(step, hypers, w, g, state):
    symbols = {s.name: hypers[n] for n, s in step.traced.symbols.items()}
    lettered = {step.letters[n]: v.numpy() for n, v in state.items()}
    vectors = {a: v for a, v in lettered.items() if a not in step.scalars}
    scalars = {a: v.ravel() for a, v in lettered.items() if a in step.scalars}
    return NumericEvaluator(step.algebra, {"w": w, "g": g, **vectors}, {**symbols, **scalars})


def assert_is_the_step(law, shape, numbers, generator, orthogonal=True):
    """`law.evaluate` is `rule.step` along a run of a weight of this shape, within the law."""
    rule = law.step.traced.build(
        {n: torch.tensor(x, dtype=torch.float64) for n, x in numbers.items()}
    )
    view = law.agreement.view
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    state = rule.init(weight)
    for _ in range(4):
        grad = torch.randn(shape, dtype=torch.float64, generator=generator)
        radial = view.radial_coefficient(weight, grad)
        grad = grad - (radial - (0.0 if orthogonal else 2.0)) * weight
        expected = rule.step(weight, grad, dict(state))
        try:
            found = law.evaluate(weight, grad, state, **numbers)
        except OutsideError:  # an assumption, such as that no projection acts, fails by itself
            assert not orthogonal
        else:
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, check_dtype=False)
        weight, state = expected
