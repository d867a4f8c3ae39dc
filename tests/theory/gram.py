"""Numbers for Gram entries: formal results against float64 vectors."""

import re

import numpy as np
import sympy as sp


def evaluate(step, expression, vectors, values):
    """`expression` in Gram entries, at `vectors` by atom and `values` by symbol; names stand for what they were defined as."""
    numbers, vectors = dict(values), dict(vectors)

    def number(symbol):
        if symbol not in numbers:
            if symbol in step.algebra.definitions:
                numbers[symbol] = at(step.algebra.definitions[symbol])
            else:
                norm = re.fullmatch(r"\|(.+)\|\^2", symbol.name)
                a, b = (norm[1], norm[1]) if norm else re.fullmatch(r"<(.+),(.+)>", symbol.name).groups()
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
    place = {a: combine(step, composites[a], vectors, values) if a in composites else vectors[a] for a in vector.terms}
    return sum(evaluate(step, c, vectors, values) * place[a] for a, c in vector.terms.items())
