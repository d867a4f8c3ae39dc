"""Numbers for Gram entries: formal results against float64 vectors."""

import re

import numpy as np
import sympy as sp


def evaluate(step, expression, vectors, values):
    """`expression` in Gram entries, at `vectors` by atom and `values` by symbol; names stand for what they were defined as."""
    numbers = dict(values)

    def number(symbol):
        if symbol not in numbers:
            if symbol in step.algebra.definitions:
                numbers[symbol] = at(step.algebra.definitions[symbol])
            else:
                norm = re.fullmatch(r"\|(.+)\|\^2", symbol.name)
                a, b = (norm[1], norm[1]) if norm else re.fullmatch(r"<(.+),(.+)>", symbol.name).groups()
                numbers[symbol] = float(np.sum(vectors[a] * vectors[b]))
        return numbers[symbol]

    def at(formula):
        return float(sp.sympify(formula).subs({s: number(s) for s in formula.free_symbols}))

    return at(sp.sympify(expression))


def combine(step, vector, vectors, values):
    """A formal vector at `vectors`."""
    return sum(evaluate(step, c, vectors, values) * vectors[a] for a, c in vector.terms.items())
