"""The turn per step at rest, in numbers: of any recipe, one that keeps the norm as well.

Where `equilibrium` has a closed form for a balance of decay and growth, here the recursion of the
products of weight and momenta is followed until it rests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import Recipe
from spherenorm_theory.algebra import (
    DIMENSION,
    BudgetError,
    Space,
    Trace,
    budget,
    resolve_recipe,
    structure_of,
    trace,
)
from spherenorm_theory.laws._equilibrium import without_eps
from spherenorm_theory.laws._homogeneity import NoEquilibriumError
from spherenorm_theory.laws._norm_growth import norm_growth
from spherenorm_theory.laws._one_step import OneStep
from spherenorm_theory.laws._stationary import read_random_step, refuse_opaque

LATE = 1e12
"""A count of steps behind which bias corrections have died out."""
LONGEST = 200_000
"""The steps after which a recursion that does not rest is given up."""
AT_REST = 1e-13
"""The change of cosines in a step, and the relative one of the turn, below which they rest."""
SCALED = 1e-9
"""The relative difference of turns at other lengths that rounding and the end may leave."""


def turn_at_rest(recipe: str | Recipe, **hyper_parameters: Any) -> float:
    """The turn per step of a scale-invariant weight after many steps, for random gradients.

    A random gradient is orthogonal to the weight and uncorrelated with the momenta. In the mean a
    step then maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record
    of the recipe's code has; they are followed until they rest. A momentum remembers gradients of
    weights that the present one has turned away from, and so its steps point outwards, too: a
    hyperball with the momentum beta turns by less than arctan(lr),

        atan2(lr sin a, 1 - lr cos a),    c rho = beta (c - lr),    rho^2 = 1 - 2 lr c + lr^2,

    with the angle a between the direction and the weight, c = cos a. The mean field takes norms for
    their means: d is large.

    Args:
        recipe: its name, or a function.
        **hyper_parameters: of the recipe; an eps is taken as 0.

    Returns:
        The turn in radians.

    Raises:
        NoEquilibriumError: the step holds an operation that is not linear in the gradients, or
            changes with the lengths of gradients, or its angles do not rest.

    Example:
        >>> round(turn_at_rest("adamh", lr=0.1, betas=(0.0, 0.99)), 4)  # arctan(0.1)
        0.0997
        >>> round(turn_at_rest("adamh", lr=0.1, betas=(0.9, 0.99)), 4)
        0.078
    """
    numbers = {n: tuple(x) if isinstance(x, list) else x for n, x in hyper_parameters.items()}
    given = {**structure_of(numbers), **without_eps(recipe)}
    step = _mean_step(resolve_recipe(recipe), tuple(sorted(given.items())))
    values = step.traced.values(**numbers | given)
    turn, other = (
        step.turn_at_rest(values, *scale) for scale in ((1.0, 1.0, 1.0), (2.0, 3.0, 5.0))
    )
    if not math.isclose(turn, other, rel_tol=SCALED):
        name = step.traced.name
        raise NoEquilibriumError(
            f"{name}: the turn changes with the lengths of gradients or weight"
        )
    return turn


@dataclass(frozen=True)
class _MeanStep:
    """A step in the mean field, in numbers. Its atoms are the weight, the momenta, the gradient.

    Attributes:
        traced: the recipe's trace.
        pairs: the places of the products of atoms that it reads.
        counters: for each state that is a number, whether it counts steps.
        size: the number of atoms.
        function: the factors of all atoms in the new weight and momenta, then the new numbers; of
            products, numbers, hyper-parameters and the entries of a unit.
    """

    traced: Trace
    pairs: tuple[tuple[int, int], ...]
    counters: tuple[bool, ...]
    size: int
    function: Callable[..., list[float]]

    def turn_at_rest(
        self, values: Mapping[sp.Symbol, float], norm: float, gamma: float, entries: float
    ) -> float:
        """The turn, from a weight of that norm; gradients are gamma / |w| long."""
        size, name = self.size, self.traced.name
        products = np.zeros((size, size))
        products[0, 0], products[-1, -1] = norm**2, (gamma / norm) ** 2
        numbers = [LATE if counts else norm for counts in self.counters]
        before = np.full(size**2 + 1, math.nan)
        for _ in range(LONGEST):
            known = [products[pair] for pair in self.pairs]
            try:
                found = self.function(*known, *numbers, *values.values(), entries)
            except (ArithmeticError, ValueError) as error:
                raise NoEquilibriumError(f"{name}: its angles do not rest: {error}") from error
            factors = np.array(found[: (size - 1) * size], dtype=float).reshape(size - 1, size)
            kept = zip(self.counters, found[factors.size :], strict=True)
            numbers = [LATE if counts else number for counts, number in kept]
            after = factors @ products @ factors.T
            turn = _turn(products, factors[0], after[0, 0])
            products[:-1, :-1], products[-1, -1] = after, gamma**2 / after[0, 0]
            lengths = np.sqrt(products.diagonal()) + math.ulp(0.0)
            present = np.append(products / np.outer(lengths, lengths), turn)
            if (abs(present - before) <= AT_REST * np.append(np.ones(size**2), turn)).all():
                return turn
            before = present
        raise NoEquilibriumError(f"{name}: its angles do not rest within {LONGEST} steps")


def _turn(products: np.ndarray, factors: np.ndarray, squared: float) -> float:
    """The angle between w and w', by the chord between their directions."""
    chord = factors / math.sqrt(squared)
    chord[0] -= 1 / math.sqrt(products[0, 0])
    return 2 * math.asin(math.sqrt(max(float(chord @ products @ chord), 0.0)) / 2)


@cache
def _mean_step(recipe: Recipe, given: tuple[tuple[str, Any], ...]) -> _MeanStep:
    """The mean step of a recipe.

    Raises:
        NoEquilibriumError: it is not linear in the gradients, or depends on what is not followed.
    """
    traced = trace(recipe, **dict(given))
    try:
        with budget(traced.name):
            norm_growth(traced)  # holds the record against the code, in units of other shapes
            step = read_random_step(traced)
    except BudgetError as error:
        raise NoEquilibriumError(str(error)) from error
    refuse_opaque(step)
    atoms = ("w", *step.buffers, "g")
    numbers = [name for name in step.states if name not in step.buffers]
    new = [step.after[atom] for atom in atoms[:-1]]
    outside = {atom for x in new for atom in x.terms} - {*atoms}
    factors = [x[atom] for x in new for atom in atoms]
    gram = Space({}).gram
    places = {gram(a, b): (i, j) for i, a in enumerate(atoms) for j, b in enumerate(atoms[i:], i)}
    symbols = [
        *places,
        *(step.scalars[name] for name in numbers),
        *traced.symbols.values(),
        DIMENSION,
    ]
    results = [*factors, *(step.states[name] for name in numbers)]
    named = _needed(results, step)
    loose = sp.Tuple(*results, *(x for _, x in named)).free_symbols
    loose -= {*symbols, *(symbol for symbol, _ in named)}
    if outside or loose:
        names = ", ".join(sorted(map(str, outside | loose)))
        raise NoEquilibriumError(
            f"{traced.name}: the step depends on {names}, which random gradients do not fix"
        )
    function = sp.lambdify(symbols, results, "math", cse=lambda exprs: (named, exprs))
    grown = (step.states[name] - step.scalars[name] for name in numbers)
    counters = tuple(bool(by.is_number and by != 0) for by in grown)
    return _MeanStep(traced, tuple(places.values()), counters, len(atoms), function)


def _needed(results: Sequence[sp.Expr], step: OneStep) -> list[tuple[sp.Symbol, sp.Expr]]:
    """The names that formulas use, directly or in each other, with their meanings in order."""
    definitions = step.facts.definitions
    waiting, needed = [*results], set[sp.Symbol]()
    while waiting:
        used = {s for s in waiting.pop().free_symbols if s in definitions} - needed
        needed |= used
        waiting += [definitions[symbol] for symbol in used]
    return [(symbol, meaning) for symbol, meaning in definitions.items() if symbol in needed]
