"""Numbers for Gram entries: formal results against float64 vectors."""

import re

import numpy as np
import sympy as sp
import torch

from theory import norm_growth
from theory.equilibrium import DIMENSION
from theory.symbols import Vector


def evaluate(step, expression, vectors, values):
    """`expression` in Gram entries, at `vectors` by atom and `values` by symbol; names stand for what they were defined as."""
    numbers, vectors = dict(values), dict(vectors)

    def number(symbol):
        if symbol not in numbers:
            if symbol in step.algebra.definitions:
                numbers[symbol] = at(step.algebra.definitions[symbol])
            else:
                norm = re.fullmatch(r"\|(.+)\|\^2", symbol.name)
                a, b = (
                    (norm[1], norm[1])
                    if norm
                    else re.fullmatch(r"<(.+),(.+)>", symbol.name).groups()
                )
                numbers[symbol] = float(np.sum(place(a) * place(b)))
        return numbers[symbol]

    def place(atom):
        if atom not in vectors:
            vectors[atom] = combine(step, step.algebra.composites[atom], vectors, values)
        return vectors[atom]

    def at(formula):
        return float(sp.sympify(formula).subs({s: number(s) for s in formula.free_symbols}))

    return at(sp.sympify(expression))


def combine(step, vector, vectors, values):
    """A formal vector at `vectors`."""
    composites = step.algebra.composites
    place = {
        a: combine(step, composites[a], vectors, values) if a in composites else vectors[a]
        for a in vector.terms
    }
    return sum(evaluate(step, c, vectors, values) * place[a] for a, c in vector.terms.items())


def assert_matches_a_float64_step(recipe, hypers, rng, scale_invariant=True, atoms=dict):
    """The derived step, law and recursions of `recipe` against a float64 step of its own, from a random state.

    Args:
        hypers: values for the hyper-parameters.
        scale_invariant: whether <w, g> = 0, in the law and in the run.
        atoms: values for the atoms of entrywise operations, asked for after the step.
    """
    law = norm_growth(recipe, scale_invariant=scale_invariant)
    step = law.step
    assert law.residual == 0

    rule = recipe(**hypers)
    w, g = rng.normal(size=7), rng.normal(size=7)
    # Along the weight not at all, or by far more than a test for scale invariance lets pass.
    g += w * ((0 if scale_invariant else 2) - (w @ g) / (w @ w))
    state = {
        n: rng.normal(size=v.shape) if v.numel() > 1 else np.full(v.shape, rng.uniform(1, 3))
        for n, v in rule.init(_row(w)).items()
    }
    state = {n: np.abs(v) if "sq" in n else v for n, v in state.items()}  # a second moment
    new, new_state = rule.step(_row(w), _row(g), {n: torch.tensor(v) for n, v in state.items()})

    letters = dict(zip(state, step.states, strict=True))
    vectors = {
        "w": w,
        "g": g,
        **{letters[n]: v.ravel() for n, v in state.items() if v.size > 1},
        **atoms(),
    }
    symbols = {s: hypers[n] for n, s in step.traced.symbols.items()}
    scalars = {
        sp.Symbol(letters[n], positive=True): float(v.item())
        for n, v in state.items()
        if v.size == 1
    }
    values = {**symbols, **scalars, DIMENSION: 7}
    after = new.numpy().ravel()
    np.testing.assert_allclose(
        combine(step, step.weight, vectors, values), after, rtol=1e-10, atol=1e-12
    )
    for name, letter in letters.items():
        derived, measured = step.states[letter], new_state[name].numpy().ravel()
        got = (
            combine(step, derived, vectors, values)
            if isinstance(derived, Vector)
            else evaluate(step, derived, vectors, values)
        )
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
            evaluate(step, expression, vectors, values),
            after @ new_state[key].numpy().ravel(),
            rtol=1e-9,
            atol=1e-11,
        )
    return law


def _row(x):
    return torch.tensor(x)[None]
