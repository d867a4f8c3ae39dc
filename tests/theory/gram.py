"""NumericEvaluator for Gram entries: formal results against float64 vectors."""

import re
from dataclasses import dataclass

import numpy as np
import sympy as sp
import torch

from spherenorm_theory import OneStep, norm_growth
from spherenorm_theory.algebra import DIMENSION, Vector


@dataclass
class NumericEvaluator:
    """Values for the symbols and the atoms of a step.

    Attributes:
        step: the step on symbols.
        values: numbers by symbol.
        vectors: arrays by atom.
    """

    step: OneStep
    values: dict
    vectors: dict

    def evaluate(self, expression):
        """`expression` in Gram entries; a name stands for its definition."""
        expression = sp.sympify(expression)
        return float(expression.subs({s: self._number(s) for s in expression.free_symbols}))

    def combine(self, vector):
        """A formal vector."""
        terms = vector.terms.items()
        return sum(self.evaluate(c) * self._vector(atom) for atom, c in terms)

    def evaluate_after(self, derived):
        """A derived vector or number."""
        return self.combine(derived) if isinstance(derived, Vector) else self.evaluate(derived)

    def _number(self, symbol):
        if symbol in self.values:
            return self.values[symbol]
        if symbol in self.step.facts.definitions:
            return self.evaluate(self.step.facts.definitions[symbol])
        if norm := re.fullmatch(r"\|(.+)\|\^2", symbol.name):
            a = b = norm[1]
        else:
            a, b = re.fullmatch(r"<(.+),(.+)>", symbol.name).groups()
        return float(np.sum(self._vector(a) * self._vector(b)))

    def _vector(self, atom):
        composites = self.step.algebra.composites
        if atom not in self.vectors:
            self.vectors[atom] = self.combine(composites[atom])
        return self.vectors[atom]


def assert_matches_a_float64_step(recipe, hypers, rng, scale_invariant=True, atoms=dict):
    """The derived step, law and recursions of `recipe` match a float64 step from a random state.

    Args:
        hypers: values for the hyper-parameters.
        scale_invariant: whether <w, g> = 0, in the law and in the run.
        atoms: values for the atoms of entrywise operations, asked for after the step.
    """
    law = norm_growth(recipe, scale_invariant=scale_invariant)
    assert law.residual == 0
    rule = recipe(**hypers)
    w, g = _random_weight_and_gradient(rng, scale_invariant)
    state = _random_state(rule, w, rng)
    new, new_state = rule.step(_row(w), _row(g), {n: torch.tensor(v) for n, v in state.items()})
    after, new_state = new.numpy().ravel(), {n: v.numpy().ravel() for n, v in new_state.items()}
    numbers = _numbers(law.step, hypers, w, g, state, atoms())
    np.testing.assert_allclose(numbers.combine(law.step.weight), after, rtol=1e-10, atol=1e-12)
    for name, letter in law.step.letters.items():
        derived = numbers.evaluate_after(law.step.states[letter])
        np.testing.assert_allclose(derived, new_state[name], rtol=1e-10, atol=1e-12)
    _assert_law_matches(law, numbers, after, new_state)
    return law


def _assert_law_matches(law, numbers, after, new_state):
    """The law and its recursions, fed with the measured step."""
    drive = after - (1 - numbers.evaluate(law.kappa)) * numbers.vectors["w"]
    numbers.vectors["s"] = drive
    np.testing.assert_allclose(numbers.evaluate(law.law.rhs), after @ after, rtol=1e-10)
    names = {letter: name for name, letter in law.step.letters.items()}
    for unknown, expression in law.recursion.items():
        buffer = names[unknown.name.removeprefix("<w,").removesuffix(">")]
        measured = after @ new_state[buffer]
        np.testing.assert_allclose(numbers.evaluate(expression), measured, rtol=1e-9, atol=1e-11)


def _random_weight_and_gradient(rng, scale_invariant):
    w, g = rng.normal(size=7), rng.normal(size=7)
    # Along the weight not at all, or by far more than a test for scale invariance lets pass.
    return w, g + w * ((0 if scale_invariant else 2) - (w @ g) / (w @ w))


def _random_state(rule, w, rng):
    state = {
        n: rng.normal(size=v.shape) if v.numel() > 1 else np.full(v.shape, rng.uniform(1, 3))
        for n, v in rule.init(_row(w)).items()
    }
    return {n: np.abs(v) if "sq" in n else v for n, v in state.items()}  # a second moment


def _numbers(step, hypers, w, g, state, atoms):
    letters = step.letters
    vectors = {letters[n]: v.ravel() for n, v in state.items() if v.size > 1}
    symbols = {s: hypers[n] for n, s in step.traced.symbols.items()}
    scalars = {step.scalars[letters[n]]: float(v.item()) for n, v in state.items() if v.size == 1}
    values = {**symbols, **scalars, DIMENSION: 7}
    return NumericEvaluator(step, values, {"w": w, "g": g, **vectors, **atoms})


def _row(x):
    return torch.tensor(x)[None]
