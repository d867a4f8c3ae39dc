"""One step under random gradients, in the mean: a map of the products of weight and momenta.

A random gradient is orthogonal to its weight and uncorrelated with the momenta. In expectation one
step maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record of the
recipe's code has. `MeanStep` iterates that map until it rests, in numbers; the point that it
leaves as it is has a formula (`spherenorm_theory.equilibria.stationary_point`). Iterating finds attracting points
alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.evaluate import Array
from spherenorm_theory.printing import names_in, show
from spherenorm_theory.step import Step, one_step
from spherenorm_theory.symbols import DIMENSION, Norm, Vector, product
from spherenorm_theory.tracing import Trace

LATE = 1e12
"""A count of steps behind which bias corrections have died out."""
ROUNDS, PLAIN = 40, 60
"""A map is given up after so many rounds, each of plain steps and one of Newton's."""
TINY, LARGE = 1e-140, 300.0
"""The square that stands for 0 in a logarithm; the logarithm of one that has no bound."""
WIDTH, FAR = 1e-6, 2.0
"""Of the differences of Newton's method, and its longest step."""
AT_REST, STILL, ROUNDED = 1e-10, 1e-12, 2e-14
"""Of a point at rest: the distance to the one of Newton's method, and the length of a plain step.

The last is a length that rounding leaves.
"""
NEUTRAL = 1e-9
"""A direction that a step stretches by 1 up to this is one that it leaves alone: a held radius."""


class NoEquilibriumError(ValueError):
    """The norm of a recipe has no equilibrium, or none in closed form.

    Example:
        >>> try:
        ...     equilibrium("sgd", weight_decay=0.0)
        ... except NoEquilibriumError as error:
        ...     print(error)
        sgd: without decay the norm does not settle
    """


def read_random_step(traced: Trace) -> Step:
    """One step in the mean field, after many others, for gradients orthogonal to all momenta.

    States that no later weight depends on, such as an average of weights, are left out.
    """
    pairs = tuple((m, "g") for m in one_step(traced).buffers)
    step = one_step(traced, mean_field=True, orthogonal=pairs)

    def late(x: Any) -> Any:
        if isinstance(x, Vector):
            return x.map(late)
        with contextlib.suppress(NoEquilibriumError):
            return drop_transients(x, step)
        return x

    weight, named = late(step.weight), {n: late(x) for n, x in step.algebra.combinations.items()}
    kept = {n: x if n in step.counters else late(x) for n, x in step.states.items()}
    tables: list[dict[str, Any]] = [kept, named]
    tables += [{n: made.formula for n, made in step.algebra.opaque_vectors.items()}]
    tables += [{s.name: x for s, x in step.facts.open_branches.items()}]
    needed, waiting = set[str](), [weight]
    while waiting:
        names = {*names_in(waiting.pop())} - needed
        needed |= names
        waiting += [table[n] for table in tables for n in names & table.keys()]
    states = {n: x for n, x in kept.items() if n in needed}
    return replace(
        step, weight=weight, states=states, algebra=replace(step.algebra, combinations=named)
    )


def drop_transients(expression: sp.Expr, step: Step) -> sp.Expr:
    """The expression after many steps: a power x^t of a counter t is 0 where |x| < 1.

    Raises:
        NoEquilibriumError: the expression holds a power x^t of which |x| < 1 is not known, or the
            counter itself.
    """
    name = step.traced.name
    counters = {step.scalars[letter] for letter in step.counters if letter in step.scalars}
    cases = {n for n, x in step.facts.open_branches.items() if x.free_symbols & counters}
    if not expression.free_symbols & (counters | cases):
        return expression
    if open_cases := expression.free_symbols & cases:
        shown = ", ".join(sorted(map(str, open_cases)))
        raise NoEquilibriumError(f"{name}: {shown} is decided by the count of steps")
    moving = {p for p in expression.atoms(sp.Pow) if p.exp.free_symbols & counters}
    for power in moving:
        rates = [sp.diff(power.exp, counter) for counter in power.exp.free_symbols & counters]
        base = power.base
        shrinks = abs(base) < 1 if base.is_number else step.facts.is_in_unit_interval(base)
        if not (shrinks and all(rate.is_positive for rate in rates)):
            raise NoEquilibriumError(f"{name}: {show(power)} is not known to go to 0")
    after = expression.xreplace(dict.fromkeys(moving, sp.S.Zero))
    if left := after.free_symbols & counters:
        raise NoEquilibriumError(
            f"{name}: the step changes with {', '.join(map(str, left))} for ever"
        )
    return after


@dataclass(frozen=True, eq=False)
class MeanStep:
    """A step in the mean field: the products of the weight and its momenta after it.

    Attributes:
        step: as `read_random_step` returns it.
    """

    step: Step

    def __post_init__(self) -> None:
        opaque = self.step.algebra.opaque_vectors
        for atom in (a for a in self.step.algebra.expand_names(self.step.weight) if a in opaque):
            raise NoEquilibriumError(
                f"no equilibrium of {self.step.traced.name} is derived: "
                f"{show(opaque[atom].formula)} is not linear in the gradients, in the mean either"
            )

    @cached_property
    def after(self) -> dict[str, Vector]:
        """The weight and the momenta after the step, by their atoms before it."""
        atoms = ("w", *(m for m in self.step.buffers if m in self.step.states))
        return {a: self.step.algebra.expand_names(self.step.after[a]) for a in atoms}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The atoms of each product, |w|^2 first."""
        return [*itertools.combinations_with_replacement(self.after, 2)]

    @property
    def displacement(self) -> Vector:
        """w' - w."""
        return self.after["w"] - Vector.atom("w")

    @cached_property
    def second_moment(self) -> sp.Symbol | None:
        """The state that averages |g|^2, or |g|^2 / d, if the step keeps one."""
        step = self.step
        numbers = {n: v for n, v in step.states.items() if not isinstance(v, Vector)}
        found = [
            n for n, v in numbers.items() if step.algebra.expand_and_simplify(v).has(Norm("g"))
        ]
        return step.scalars[found[0]] if found else None

    # In numbers

    @cached_property
    def _numbers(self) -> list[str]:
        """The states that are numbers."""
        return [n for n in self.step.states if n in self.step.scalars]

    @cached_property
    def _function(self) -> Callable[..., list[float]]:
        """The products and numbers after a step, and |w' - w|^2, by those before it."""
        step, inner = self.step, self.step.algebra.inner
        refuse_unknown(
            self.step.traced.name, {a for x in self.after.values() for a in x} - {*self.after, "g"}
        )
        results = [inner(self.after[a], self.after[b]) for a, b in self.pairs]
        results += [
            *(step.states[n] for n in self._numbers),
            inner(self.displacement, self.displacement),
        ]
        symbols = [Norm(a) if a == b else product(a, b) for a, b in self.pairs]
        symbols += [*(step.scalars[n] for n in self._numbers), Norm("g")]
        symbols += [*step.traced.symbols.values(), DIMENSION]
        whole = [step.algebra.expand_products(x, open_branches=True) for x in results]
        refuse_unknown(self.step.traced.name, sp.Tuple(*whole).free_symbols - {*symbols})
        return compiled(symbols, whole)

    def fixed_point(
        self,
        values: Mapping[sp.Symbol, float],
        shape: int | Sequence[int] = 1,
        norm: float = 1.0,
        gamma: float = 1.0,
    ) -> FixedPoint:
        """The point at which the map rests, from a weight of that norm, for |g| = gamma / |w|.

        Raises:
            NoEquilibriumError: it does not rest.
        """
        function, traced, size = self._function, self.step.traced, len(self.pairs)
        given = {**{s: float(x) for s, x in traced.exact_values.items()}, **values}
        entries = shape if isinstance(shape, int) else math.prod(shape)
        fixed = [*(given[s] for s in traced.symbols.values()), float(entries)]
        first, second = (np.array(each) for each in np.triu_indices(len(self.after)))
        diagonal = first == second
        grown = [self.step.states[n] - self.step.scalars[n] for n in self._numbers]
        counts = np.array([bool(x.is_number and x != 0) for x in grown], dtype=bool)

        def point(products: Array, numbers: Array) -> Array:
            """Logarithms of squares, cosines and logarithms: numbers of one size."""
            squares = np.maximum(products[diagonal], TINY)
            cosines = products / np.sqrt(squares[first] * squares[second])
            logs = np.log(np.maximum(numbers, TINY))
            return np.append(np.where(diagonal, np.log(squares[first]), cosines), logs)

        def step(x: Array) -> tuple[Array, float]:
            lengths, numbers = np.exp(x[:size][diagonal] / 2), np.exp(x[size:])
            known = np.where(diagonal, lengths[first], x[:size] * lengths[first] * lengths[second])
            *new, moved = function(*known, *numbers, gamma / lengths[0], *fixed)
            after = np.array(new, dtype=float)
            numbers = np.where(counts, LATE, after[size:])
            if (numbers < 0).any():
                raise ArithmeticError("a number of the state is below 0")
            return point(after[:size], numbers), moved / float(lengths[0]) ** 2

        start = np.where(diagonal & (first == 0), norm**2, 0.0)
        numbers = np.where(counts, LATE, norm)
        return find_fixed_point(traced.name, step, point(start, numbers), values)


# The point at which a map rests


@dataclass(frozen=True)
class FixedPoint:
    """The point at which the products of weight and momenta rest.

    Attributes:
        norm: |w|.
        turn: the angle between a weight and the next one.
        radius: the factor by which a step multiplies a small distance to the point, at most.
    """

    norm: float
    turn: float
    radius: float

    @property
    def chord(self) -> float:
        """The effective step |w'/|w'| - w/|w||."""
        return 2 * math.sin(self.turn / 2)


def find_fixed_point(
    name: str,
    function: Callable[[Array], tuple[Array, float]],
    start: Array,
    values: Mapping[sp.Symbol, float],
) -> FixedPoint:
    """The attracting point of a map, by rounds of plain steps, each with a step of Newton's.

    Args:
        name: of the recipe.
        function: from a point to the next one, and |w' - w|^2 / |w|^2; a point's first number is
            the logarithm of |w|^2, and all of them are of one size.
        start: the first point.
        values: the hyper-parameters, for the refusal.

    Raises:
        NoEquilibriumError: it does not rest.
    """
    x, shown = start, ", ".join(f"{s}={v:g}" for s, v in values.items())
    for _ in range(ROUNDS):
        try:
            for _ in range(PLAIN):
                x, _ = _valid(function(x))
        except (ArithmeticError, ValueError, TypeError, NameError) as error:
            raise NoEquilibriumError(
                f"{name}: its angles do not rest at {shown}: {error}"
            ) from error
        with contextlib.suppress(ArithmeticError, ValueError):  # of a guess that is no point
            move, off, radius = _newton(function, x)
            guess = x + move * min(1.0, FAR / np.abs(move).max(initial=TINY))
            _, turned = _valid(function(guess))
            near = np.abs(move).max() <= AT_REST or off <= ROUNDED
            if near and off <= STILL and radius <= 1 + WIDTH:
                turn = 2 * math.asin(min(math.sqrt(max(turned, 0.0)) / 2, 1.0))
                return FixedPoint(math.exp(guess[0] / 2), turn, radius)
            x = guess
    raise NoEquilibriumError(f"{name}: its angles do not rest at {shown}")


def _newton(
    function: Callable[[Array], tuple[Array, float]], x: Array
) -> tuple[Array, float, float]:
    """The way to the point at rest by Newton's method, with central differences.

    Returns:
        The way, the length of a plain step, and the factor by which a step multiplies a distance.
    """
    moves = WIDTH * np.eye(len(x))
    columns = [(function(x + d)[0] - function(x - d)[0]) / (2 * WIDTH) for d in moves]
    jacobian, step = np.stack(columns, 1), function(x)[0] - x
    move = np.linalg.lstsq(np.eye(len(x)) - jacobian, step, rcond=NEUTRAL)[0]
    radius = np.abs(np.linalg.eigvals(jacobian)).max()
    return move, float(np.abs(step).max()), float(radius)


def _valid(found: tuple[Array, float]) -> tuple[Array, float]:
    """The result of a step, of which the weight has a length."""
    if not np.isfinite(found[0]).all() or abs(found[0][0]) > LARGE:
        raise ArithmeticError("the norm goes to 0 or grows beyond all bounds")
    return found


def refuse_unknown(name: str, loose: Iterable[sp.Basic | str]) -> None:
    """Refuse products that random gradients do not fix, such as the mean of the entries.

    Args:
        name: of the recipe.
        loose: the products, or their names.

    Raises:
        NoEquilibriumError: naming them.
    """
    if shown := ", ".join(sorted(x if isinstance(x, str) else show(x) for x in loose)):
        raise NoEquilibriumError(
            f"{name}: the step depends on {shown}, which random gradients do not fix"
        )


def compiled(
    symbols: Sequence[sp.Symbol], results: Sequence[sp.Expr]
) -> Callable[..., list[float]]:
    """Formulas as a function of the numbers of symbols."""
    plain = {s: sp.Dummy() for s in symbols}
    formulas = [sp.sympify(x).xreplace(plain) for x in results]
    return sp.lambdify([*plain.values()], formulas, "math", cse=True)  # type: ignore[no-any-return]
