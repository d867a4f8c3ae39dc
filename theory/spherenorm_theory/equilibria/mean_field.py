"""A step under random gradients, in the mean: a map of the products of weight and momenta.

A random gradient is orthogonal to its weight and uncorrelated with the momenta. In expectation one
step maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record of the
recipe's code has. `MeanStep` iterates this map in numbers until it reaches a fixed point;
`spherenorm_theory.equilibria.stationary_point` has the formula of that point. Iteration finds
attracting points only.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import sympy as sp

from spherenorm_theory.evaluate import Array
from spherenorm_theory.hyper_parameters import scalars_by_name
from spherenorm_theory.printing import names_in, show
from spherenorm_theory.step import Step, one_step
from spherenorm_theory.symbols import DIMENSION, Inner, Norm, Vector, exact, product
from spherenorm_theory.tracing import Trace


@dataclass(frozen=True)
class SolverOptions:
    """Options of `find_fixed_point`, which alternates plain steps with one Newton step.

    Attributes:
        max_rounds: number of rounds before the map is given up.
        plain_steps: plain steps of a round.
        min_square: the square that stands for 0 in a logarithm.
        max_log_square: largest |log |w|^2| of a norm that is bounded.
        difference: width of the finite differences of the Jacobian.
        max_newton_step: longest Newton step, in logarithms and cosines.
        newton_tol: largest Newton step at a fixed point.
        plain_tol: largest plain step at a fixed point.
        rounding_tol: a plain step that rounding alone may cause.
        neutral_tol: directions whose factor differs from 1 by less are left alone, such as the
            radius that a step holds.
    """

    max_rounds: int = 40
    plain_steps: int = 60
    min_square: float = 1e-140
    max_log_square: float = 300.0
    difference: float = 1e-6
    max_newton_step: float = 2.0
    newton_tol: float = 1e-10
    plain_tol: float = 1e-12
    rounding_tol: float = 2e-14
    neutral_tol: float = 1e-9


OPTIONS = SolverOptions()


OWN_STEPS = (600, 30_000)
"""Steps after which a state that evolves by itself has settled: soon, or late."""
OTHER_SHARE = 0.7
"""Share of the recipe's own numbers at which its own states are run again."""


class NoEquilibriumError(ValueError):
    """The norm of a recipe has no equilibrium, or none in closed form.

    Example:
        >>> try:
        ...     equilibrium("sgd", weight_decay=0.0)
        ... except NoEquilibriumError as error:
        ...     print(error)
        sgd: without decay the norm does not settle
    """


# The step in the mean


def read_random_step(traced: Trace) -> Step:
    """Return one step in the mean field, after many others, for random gradients.

    States that no later weight depends on, such as an average of weights, are left out.
    """
    settled = settle_own_states(traced)
    late = one_step(traced, settled=settled)
    _refuse_random_switches(late)
    pairs = tuple((m, "g") for m in late.buffers)
    step = one_step(traced, mean_field=True, orthogonal=pairs, settled=settled)

    def without_transients(x: Any) -> Any:
        if isinstance(x, Vector):
            return x.map(without_transients)
        with contextlib.suppress(NoEquilibriumError):
            return drop_transients(x, step)
        return x

    algebra = step.algebra
    weight = without_transients(step.weight)
    combinations = {name: without_transients(x) for name, x in algebra.combinations.items()}
    states = {
        atom: x if atom in step.counters else without_transients(x)
        for atom, x in step.states.items()
    }
    definitions: list[dict[str, Any]] = [
        states,
        combinations,
        {name: opaque.formula for name, opaque in algebra.opaque_vectors.items()},
        {symbol.name: x for symbol, x in step.facts.open_branches.items()},
    ]
    needed, to_visit = set[str](), [weight]
    while to_visit:
        names = {*names_in(to_visit.pop())} - needed
        needed |= names
        to_visit += [table[name] for table in definitions for name in names & table.keys()]
    needed_states = {atom: x for atom, x in states.items() if atom in needed}
    algebra = replace(algebra, combinations=combinations)
    return replace(step, weight=weight, states=needed_states, algebra=algebra)


def _refuse_random_switches(step: Step) -> None:
    """Refuse a step that a random product decides, whose mean alone is 0, or a count of such.

    Raises:
        NoEquilibriumError: naming the branch or the state.
    """
    for atom, symbol in step.scalars.items():
        if symbol in step.facts.switches and step.facts.counts_vectors(step.states[atom]):
            raise NoEquilibriumError(
                f"{step.traced.name}: the step changes with {atom}, a count of what gradients "
                "decide, so that the norm has no stationary value"
            )
    for symbol, meaning in step.facts.open_branches.items():
        conditions = [c for choice in meaning.atoms(sp.Piecewise) for _, c in choice.args]
        products = set[sp.Basic]().union(*map(step.facts.origins, conditions))
        if any(isinstance(x, Inner) and "g" in (x.a, x.b) for x in products):
            raise NoEquilibriumError(
                f"{step.traced.name}: {symbol} depends on the sign of a random product, so that "
                "the norm has no stationary value"
            )


@cache
def settle_own_states(traced: Trace) -> dict[str, sp.Expr]:
    """Return the numbers at which the states settle that evolve by themselves, by name.

    Such a state depends on no weight and no gradient: a counter that starts again or saturates, a
    flag, a sign that alternates. Its own recursion is run from the start. A state that grows at
    each step is left to `drop_transients`, and so is one that creeps towards a limit.

    Raises:
        NoEquilibriumError: a state never settles, as where it counts in a cycle.
    """
    step = one_step(traced)
    own_states, counters = _own_states(step), growing_counters(step)
    if not own_states.keys() - counters:
        return {}
    runs = [_run_own_states(step, own_states, numbers) for numbers in _numbers_of_runs(traced)]
    values = {
        atom: {number for run in runs if (number := run[atom]) is not None}
        for atom in own_states.keys() - counters
    }
    for atom, numbers in values.items():
        if len(numbers) > 1:
            raise NoEquilibriumError(
                f"{traced.name}: the state {atom} settles at a number that depends on the "
                "hyper-parameters, so that no one law stands for all"
            )
    names = {atom: name for name, atom in step.state_atoms.items()}
    return {names[atom]: exact(*numbers) for atom, numbers in values.items() if numbers}


def growing_counters(step: Step) -> frozenset[str]:
    """Return the states to which each step adds a positive number, by their atoms."""
    states, scalars = step.states, step.scalars
    increments = {atom: states[atom] - scalars[atom] for atom in states if atom in scalars}
    return frozenset(a for a, x in increments.items() if x.is_number and x.is_positive)


def _own_states(step: Step) -> dict[str, sp.Expr]:
    """Return the scalar states that change by themselves, after a step, by their atoms."""
    facts, scalars = step.facts, step.scalars
    own_states = {a: x for a, x in step.states.items() if a in scalars and x != scalars[a]}
    constants = {*step.traced.symbols.values(), DIMENSION}
    while True:
        symbols = constants | {scalars[atom] for atom in own_states}
        smaller = {a: x for a, x in own_states.items() if facts.origins(x) <= symbols}
        if len(smaller) == len(own_states):
            return {
                a: step.algebra.expand_products(x, open_branches=True)
                for a, x in own_states.items()
            }
        own_states = smaller


def _numbers_of_runs(traced: Trace) -> list[dict[sp.Basic, float]]:
    """Return the recipe's own numbers, and others, for the symbols of a run of the own states."""
    numbers = scalars_by_name(traced.hyper_parameters)
    defaults = {s: float(numbers[name]) for name, s in traced.symbols.items()}
    others = {
        s: x if s in traced.given_values or x == 0 else x * OTHER_SHARE for s, x in defaults.items()
    }
    return [{**defaults, DIMENSION: 64.0}, {**others, DIMENSION: 64.0}]


def _run_own_states(
    step: Step, own_states: Mapping[str, sp.Expr], numbers: Mapping[sp.Basic, float]
) -> dict[str, float | None]:
    """Return the number at which each state settles; None where it creeps or grows.

    Raises:
        NoEquilibriumError: a state that decides a branch, or alternates, never settles.
    """
    traced, scalars = step.traced, step.scalars
    names = {atom: name for name, atom in step.state_atoms.items()}
    starts = dict[str, float]()
    for atom in own_states:
        start = traced.starts[names[atom]]
        if start is None:
            raise NoEquilibriumError(f"{traced.name}: the state {atom} starts at no one number")
        starts[atom] = float(start)
    symbols = [scalars[atom] for atom in own_states]
    counters = growing_counters(step)
    growing = {scalars[atom] for atom in counters & own_states.keys()}
    x = np.array([*starts.values()])

    def run(formulas: Sequence[sp.Expr], x: Array, n_steps: int) -> Array:
        function = compile_formulas([*symbols, *numbers], formulas)
        run = [x]
        with np.errstate(all="ignore"):
            for _ in range(n_steps):
                run.append(np.array(function(*run[-1], *numbers.values()), dtype=float))
        return np.array(run)

    for n_steps in OWN_STEPS:
        path = run([*own_states.values()], x, n_steps)
        tails = dict(zip(own_states, path[n_steps // 2 :].T, strict=True))
        settled = {atom for atom, tail in tails.items() if np.ptp(tail) == 0}
        unsettled = [
            atom
            for atom in own_states.keys() - counters - settled
            if scalars[atom] in step.facts.switches or not _is_monotone(tails[atom])
        ]
        if not unsettled:
            break
    if settled and growing:  # a branch by the step count may be far
        late = [
            drop_transients(formula, step, growing) if atom in settled else scalars[atom]
            for atom, formula in own_states.items()
        ]
        path = run(late, path[-1], OWN_STEPS[0])
        ends = dict(zip(own_states, path[OWN_STEPS[0] // 2 :].T, strict=True))
        tails |= {atom: ends[atom] for atom in settled}
        unsettled += [atom for atom in settled if np.ptp(ends[atom]) != 0]
    if unsettled:
        states = ", ".join(sorted(unsettled))
        uses_step_count = any("t" in map(str, own_states[atom].free_symbols) for atom in unsettled)
        verb = "depends" if len(unsettled) == 1 else "depend"
        cause = (
            f"{states} {verb} on the step count t"
            if uses_step_count
            else f"the step changes with {states} for ever"
        )
        raise NoEquilibriumError(
            f"{traced.name}: {cause}, so that the norm has no stationary value"
        )
    return {atom: float(tails[atom][-1]) if atom in settled else None for atom in own_states}


def _is_monotone(tail: Array) -> bool:
    """Tell if a state only rises, or only falls."""
    changes = np.diff(tail)
    return bool((changes >= 0).all() or (changes <= 0).all())


def drop_transients(
    expression: sp.Expr, step: Step, counters: AbstractSet[sp.Symbol] | None = None
) -> sp.Expr:
    """Return the expression after many steps: x^t is 0 for |x| < 1, and t > 300 is true.

    Args:
        expression: a formula of a step.
        step: the step.
        counters: the symbols that grow without bounds; by default, all counters of the step.

    Raises:
        NoEquilibriumError: the expression holds a power x^t of which |x| < 1 is not known, or the
            step count itself, as where each fifth step is another one.
    """
    name = step.traced.name
    if counters is None:
        counters = {step.scalars[atom] for atom in step.counters if atom in step.scalars}
    branches = {
        symbol for symbol, x in step.facts.open_branches.items() if x.free_symbols & counters
    }
    if not step.facts.origins(expression) & counters:
        return expression
    open_branches = expression.free_symbols & branches
    for symbol in expression.free_symbols & step.facts.open_branches.keys() - branches:
        if step.facts.origins(symbol) & counters:  # a branch of branches: is it decided late?
            expanded = step.algebra.expand_products(symbol, open_branches=True)
            drop_transients(expanded, step, counters)
    if open_branches:
        used = set[sp.Basic]().union(*map(step.facts.origins, open_branches)) & counters
        names = sorted(map(str, used))
        cause = "the step count t" if names == ["t"] else f"the state {', '.join(names)}"
        verb = "depends" if len(open_branches) == 1 else "depend"
        raise NoEquilibriumError(
            f"{name}: {' and '.join(sorted(map(str, open_branches)))} {verb} on {cause}, "
            "so that the norm has no stationary value"
        )
    powers = {p for p in expression.atoms(sp.Pow) if p.exp.free_symbols & counters}
    for power in powers:
        slopes = [sp.diff(power.exp, counter) for counter in power.exp.free_symbols & counters]
        base = power.base
        shrinks = abs(base) < 1 if base.is_number else step.facts.is_in_unit_interval(base)
        if not (shrinks and all(slope.is_positive for slope in slopes)):
            raise NoEquilibriumError(f"{name}: {show(power)} is not known to go to 0")
    limit = expression.xreplace(dict.fromkeys(powers, sp.S.Zero))
    comparisons = {x for x in limit.atoms(sp.Rel) if x.free_symbols & counters}
    limit = limit.xreplace({x: _compare_late(x, counters) for x in comparisons})
    remaining = limit.free_symbols & counters
    if remaining:
        raise NoEquilibriumError(
            f"{name}: the step changes with {', '.join(map(str, remaining))} for ever"
        )
    return limit


def _compare_late(comparison: sp.Rel, counters: AbstractSet[sp.Symbol]) -> sp.Basic:
    """Return what becomes of a comparison as a counter grows; itself if that is not known.

    The sign of a polynomial is then that of its leading coefficient. A remainder has none.
    """
    difference = comparison.lhs - comparison.rhs
    used_counters = difference.free_symbols & counters
    if len(used_counters) > 1 or not difference.is_polynomial(*used_counters):
        return comparison
    leading_coefficient = sp.Poly(difference, *used_counters).LC()
    if leading_coefficient.is_positive or leading_coefficient.is_negative:
        return comparison.func(sp.sign(leading_coefficient), 0)
    return comparison


@dataclass(frozen=True, eq=False)
class MeanStep:
    """A step in the mean field: the products of the weight and its momenta after it.

    Attributes:
        step: the step, as `read_random_step` returns it.

    Raises:
        NoEquilibriumError: the step is not linear in the gradients.
    """

    step: Step

    def __post_init__(self) -> None:
        opaque_vectors = self.step.algebra.opaque_vectors
        for atom in self.step.algebra.expand_names(self.step.weight):
            if atom in opaque_vectors:
                raise NoEquilibriumError(
                    f"no equilibrium of {self.step.traced.name} is derived: "
                    f"{show(opaque_vectors[atom].formula)} is not linear in the gradients, in the "
                    "mean either"
                )

    @cached_property
    def after(self) -> dict[str, Vector]:
        """The weight and the momenta after the step, by their atoms before it."""
        atoms = ("w", *(m for m in self.step.buffers if m in self.step.states))
        return {a: self.step.algebra.expand_names(self.step.after[a]) for a in atoms}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The two atoms of each product, |w|^2 first."""
        return [*itertools.combinations_with_replacement(self.after, 2)]

    @property
    def displacement(self) -> Vector:
        """The step w' - w."""
        return self.after["w"] - Vector.atom("w")

    @cached_property
    def second_moment(self) -> sp.Symbol | None:
        """The state that averages |g|^2, or |g|^2 / d, if the step keeps one."""
        step = self.step
        for atom, x in step.states.items():
            if isinstance(x, Vector):
                continue
            if step.algebra.expand_and_simplify(x).has(Norm("g")):
                return step.scalars[atom]
        return None

    # In numbers

    @cached_property
    def _scalar_atoms(self) -> list[str]:
        """The states of one number that may become stationary."""
        numbers = [atom for atom in self.step.states if atom in self.step.scalars]
        return [atom for atom in numbers if atom not in growing_counters(self.step)]

    @cached_property
    def _function(self) -> Callable[..., list[float]]:
        """The products and scalars after a late step, and |w' - w|^2, by those before it."""
        step, inner = self.step, self.step.algebra.inner
        atoms = {atom for x in self.after.values() for atom in x}
        refuse_unknown(step.traced.name, atoms - {*self.after, "g"})
        results = [inner(self.after[a], self.after[b]) for a, b in self.pairs]
        results += [step.states[atom] for atom in self._scalar_atoms]
        results.append(inner(self.displacement, self.displacement))
        symbols = [Norm(a) if a == b else product(a, b) for a, b in self.pairs]
        symbols += [*(step.scalars[atom] for atom in self._scalar_atoms), Norm("g")]
        symbols += [*step.traced.symbols.values(), DIMENSION]
        counters = {step.scalars[atom] for atom in growing_counters(self.step)}
        expanded = [
            drop_transients(step.algebra.expand_products(x, open_branches=True), step, counters)
            for x in results
        ]
        refuse_unknown(step.traced.name, sp.Tuple(*expanded).free_symbols - {*symbols})
        return compile_formulas(symbols, expanded)

    def fixed_point(
        self,
        values: Mapping[sp.Symbol, float],
        shape: int | Sequence[int] = 1,
        norm: float = 1.0,
        gamma: float = 1.0,
    ) -> FixedPoint:
        """Return the fixed point of the map, for |g| = gamma / |w|.

        Args:
            values: the hyper-parameters.
            shape: shape of a unit, or the number of its entries.
            norm: norm of the weight at the start.
            gamma: norm of the gradient at |w| = 1.

        Raises:
            NoEquilibriumError: the map reaches none.
        """
        function, traced, n_products = self._function, self.step.traced, len(self.pairs)
        numbers = {**{s: float(x) for s, x in traced.given_values.items()}, **values}
        n_entries = shape if isinstance(shape, int) else math.prod(shape)
        constants = [*(numbers[s] for s in traced.symbols.values()), float(n_entries)]
        rows, columns = (np.array(x) for x in np.triu_indices(len(self.after)))
        is_square = rows == columns

        def to_point(products: Array, scalars: Array) -> Array:
            """Return logarithms of squares, cosines, and logarithms of scalars."""
            squares = np.maximum(products[is_square], OPTIONS.min_square)
            cosines = products / np.sqrt(squares[rows] * squares[columns])
            logs = np.log(np.maximum(scalars, OPTIONS.min_square))
            return np.append(np.where(is_square, np.log(squares[rows]), cosines), logs)

        def step(x: Array) -> tuple[Array, float]:
            lengths, scalars = np.exp(x[:n_products][is_square] / 2), np.exp(x[n_products:])
            inner_products = x[:n_products] * lengths[rows] * lengths[columns]
            arguments = np.where(is_square, lengths[rows], inner_products)
            grad_norm = gamma / lengths[0]
            *new, squared_move = function(*arguments, *scalars, grad_norm, *constants)
            after = np.array(new, dtype=float)
            scalars = after[n_products:]
            if (scalars < 0).any():
                raise ArithmeticError("a number of the state is below 0")
            return to_point(after[:n_products], scalars), squared_move / float(lengths[0]) ** 2

        products = np.where(is_square & (rows == 0), norm**2, 0.0)
        scalars = np.full(len(self._scalar_atoms), norm)
        return find_fixed_point(traced.name, step, to_point(products, scalars), values)


# The fixed point of a map


@dataclass(frozen=True)
class FixedPoint:
    """The fixed point of the products of weight and momenta.

    Attributes:
        norm: the norm of the weight, |w|.
        turn: angle in radians between a weight and the next one.
        radius: the largest factor by which a step multiplies a small distance to the point.
    """

    norm: float
    turn: float
    radius: float

    @property
    def effective_step(self) -> float:
        """The effective step |w'/|w'| - w/|w||, the chord of the turn."""
        return 2 * math.sin(self.turn / 2)


def find_fixed_point(
    name: str,
    function: Callable[[Array], tuple[Array, float]],
    start: Array,
    values: Mapping[sp.Symbol, float],
    options: SolverOptions = OPTIONS,
) -> FixedPoint:
    """Return the attracting fixed point of a map, by rounds of plain steps and a Newton step.

    Args:
        name: name of the recipe.
        function: maps a point to the next one and to |w' - w|^2 / |w|^2; the first number of a
            point is log |w|^2, and all of them are of one size.
        start: the first point.
        values: the hyper-parameters, for the message.
        options: tolerances and limits.

    Raises:
        NoEquilibriumError: the map reaches no fixed point.
    """
    x, settings = start, ", ".join(f"{s}={v:g}" for s, v in values.items())
    for _ in range(options.max_rounds):
        try:
            for _ in range(options.plain_steps):
                x, _ = _check_point(function(x), options)
        except (ArithmeticError, ValueError, TypeError, NameError) as error:
            raise NoEquilibriumError(
                f"{name}: its angles do not become stationary at {settings}: {error}"
            ) from error
        with contextlib.suppress(ArithmeticError, ValueError):  # the Newton step may leave the map
            newton_step, plain_step, radius = _newton(function, x, options)
            longest = np.abs(newton_step).max(initial=options.min_square)
            guess = x + newton_step * min(1.0, options.max_newton_step / longest)
            _, squared_step = _check_point(function(guess), options)
            converged = (
                np.abs(newton_step).max() <= options.newton_tol
                or plain_step <= options.rounding_tol
            )
            attracts = radius <= 1 + options.difference
            if converged and plain_step <= options.plain_tol and attracts:
                half_chord = min(math.sqrt(max(squared_step, 0.0)) / 2, 1.0)
                return FixedPoint(math.exp(guess[0] / 2), 2 * math.asin(half_chord), radius)
            x = guess
    raise NoEquilibriumError(f"{name}: its angles do not become stationary at {settings}")


def _newton(
    function: Callable[[Array], tuple[Array, float]], x: Array, options: SolverOptions
) -> tuple[Array, float, float]:
    """Return a Newton step towards the fixed point, by central differences.

    Returns:
        The Newton step, the largest entry of a plain step, and the spectral radius of the map.
    """
    width = options.difference
    offsets = width * np.eye(len(x))
    columns = [(function(x + d)[0] - function(x - d)[0]) / (2 * width) for d in offsets]
    jacobian, plain_step = np.stack(columns, 1), function(x)[0] - x
    matrix = np.eye(len(x)) - jacobian
    newton_step = np.linalg.lstsq(matrix, plain_step, rcond=options.neutral_tol)[0]
    radius = np.abs(np.linalg.eigvals(jacobian)).max()
    return newton_step, float(np.abs(plain_step).max()), float(radius)


def _check_point(result: tuple[Array, float], options: SolverOptions) -> tuple[Array, float]:
    """Return the result of a step, if the weight has a finite norm.

    Raises:
        ArithmeticError: it has none.
    """
    point, _ = result
    if not np.isfinite(point).all() or abs(point[0]) > options.max_log_square:
        raise ArithmeticError("the norm goes to 0 or grows beyond all bounds")
    return result


def refuse_unknown(name: str, unknown: Iterable[sp.Basic | str]) -> None:
    """Refuse products that random gradients do not fix, such as the mean of the entries.

    Args:
        name: name of the recipe.
        unknown: the products, or their names.

    Raises:
        NoEquilibriumError: naming them.
    """
    names = ", ".join(sorted(x if isinstance(x, str) else show(x) for x in unknown))
    if names:
        raise NoEquilibriumError(
            f"{name}: the step depends on {names}, which random gradients do not fix"
        )


def compile_formulas(
    symbols: Sequence[sp.Symbol], results: Sequence[sp.Expr]
) -> Callable[..., list[float]]:
    """Return formulas as a function of the numbers of symbols."""
    dummies = {symbol: sp.Dummy() for symbol in symbols}
    formulas = [sp.sympify(x).xreplace(dummies) for x in results]
    return sp.lambdify([*dummies.values()], formulas, "math", cse=True)  # type: ignore[no-any-return]
