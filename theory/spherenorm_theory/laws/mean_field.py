"""One step under random gradients, in the mean: a map of the products of weight and momenta.

A random gradient is orthogonal to its weight and uncorrelated with the momenta. In expectation one
step maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record of the
recipe's code has. `MeanStep` iterates that map until it rests, in numbers; `solve` finds the point
that one step leaves as it is, in symbols. Iterating finds attracting points alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy as sp
from sympy.solvers.solveset import NonlinearError

from spherenorm_theory.algebra import (
    DIMENSION,
    Array,
    Entries,
    GrowthError,
    Inner,
    Norm,
    Trace,
    Vector,
    names_in,
    normalize_signs,
    product,
    show,
    tidy,
)
from spherenorm_theory.laws.step import GAMMA, S, Step, express_inner, one_step

LATE = 1e12
"""A count of steps behind which bias corrections have died out."""
LONGEST = 200_000
"""The steps after which a recursion that does not rest is given up."""
TINY = 1e-150
"""The length that stands for 0 where cosines are taken; its square is no 0."""
AT_REST = 1e-13
"""The change of cosines in a step, and the relative one of the turn, below which they rest."""


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
    """One step in the mean field, with gradients that are orthogonal to weight and momenta."""
    linear = one_step(traced)
    pairs = tuple((m, "g") for m in linear.buffers)
    step = one_step(traced, mean_field=True, orthogonal=pairs)
    return _settled(_without_bystanders(step))


def _settled(step: Step) -> Step:
    """The step after many steps, where its transients are known to die out."""

    def late(x: Any) -> Any:
        if isinstance(x, Vector):
            return x.map(late)
        if isinstance(x, Entries):
            return x
        try:
            return drop_transients(x, step)
        except NoEquilibriumError:
            return x

    counters = {step.scalars[n] for n in step.counters if n in step.scalars}
    kept = {n: x if step.scalars.get(n) in counters else late(x) for n, x in step.states.items()}
    named = {n: late(x) for n, x in step.algebra.named.items()}
    algebra = replace(step.algebra, named=named)
    return _without_bystanders(
        replace(step, weight=late(step.weight), states=kept, algebra=algebra)
    )


def _without_bystanders(step: Step) -> Step:
    """The step without states that no later weight depends on, such as an average of weights."""
    needed, waiting = set[str](), [step.weight]
    algebra = step.algebra
    while waiting:
        names = {*names_in(waiting.pop())} - needed
        needed |= names
        for table in (step.states, algebra.named):
            waiting += [x for n, x in table.items() if n in names]
        waiting += [x for n, made in algebra.opaque.items() if n in names for x in made.arguments]
        waiting += [x for symbol, x in step.facts.cases.items() if symbol.name in names]
    return replace(step, states={n: x for n, x in step.states.items() if n in needed})


def refuse_opaque(step: Step) -> None:
    """Refuse a step along an operation on entries that has no mean.

    Raises:
        NoEquilibriumError: naming the operation.
    """
    opaque = step.algebra.opaque
    for atom in (a for a in step.algebra.spread(step.weight) if a in opaque):
        raise NoEquilibriumError(
            f"no equilibrium of {step.traced.name} is derived: {opaque[atom].says} is not linear "
            "in the gradients, in the mean either"
        )


def drop_transients(expression: sp.Expr, step: Step) -> sp.Expr:
    """The expression after many steps: a power x^t of a counter t is 0 where |x| < 1.

    Raises:
        NoEquilibriumError: the expression holds a power x^t of which |x| < 1 is not known, or the
            counter itself.
    """
    counters = {step.scalars[letter] for letter in step.counters if letter in step.scalars}
    cases = {n: x for n, x in step.facts.cases.items() if x.free_symbols & counters}
    if not expression.free_symbols & (counters | {*cases}):
        return expression
    if open_cases := expression.free_symbols & {*cases}:
        shown = ", ".join(map(str, open_cases))
        raise NoEquilibriumError(f"{step.traced.name}: {shown} is decided by the count of steps")
    moving = {p for p in expression.atoms(sp.Pow) if p.exp.free_symbols & counters}
    for power in moving:
        if not _vanishes(power, counters, step):
            raise NoEquilibriumError(
                f"{step.traced.name}: {show(power)} is not known to go to 0 after many steps"
            )
    after = expression.xreplace(dict.fromkeys(moving, sp.S.Zero))
    if left := after.free_symbols & counters:
        raise NoEquilibriumError(
            f"{step.traced.name}: the step changes with {', '.join(map(str, left))} for ever"
        )
    return after


def _vanishes(power: sp.Pow, counters: set[sp.Symbol], step: Step) -> bool:
    """Tell if |x| < 1 is known for a power x^(n t + c) with n > 0."""
    rates = [sp.diff(power.exp, counter) for counter in power.exp.free_symbols & counters]
    if not all(rate.is_positive for rate in rates):
        return False
    if power.base.is_number:
        return bool(abs(power.base) < 1)
    interval = step.facts.domains.get(power.base)
    return interval is not None and interval.low >= 0 and interval.high == 1


def find_second_moment(step: Step) -> sp.Symbol | None:
    """The state that averages |g|^2, or |g|^2 / d, if the step keeps one."""
    numbers = {n: v for n, v in step.states.items() if not isinstance(v, Vector)}
    moments = [step.scalars[n] for n, v in numbers.items() if step.algebra.expand(v).has(Norm("g"))]
    return moments[0] if moments else None


# In numbers


@dataclass(frozen=True)
class Rest:
    """The point at which the products of weight and momenta rest.

    Attributes:
        norm: |w|.
        turn: the angle between a weight and the next one.
    """

    norm: float
    turn: float


@dataclass(frozen=True)
class MeanStep:
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

    @staticmethod
    def of(step: Step) -> MeanStep:
        """The map of a step.

        Raises:
            NoEquilibriumError: it is not linear in the gradients, or depends on what is not
                followed.
        """
        refuse_opaque(step)
        traced = step.traced
        atoms = ("w", *(m for m in step.buffers if m in step.states), "g")
        numbers = [n for n, x in step.states.items() if n not in atoms]
        new = [step.algebra.spread(step.after[atom]) for atom in atoms[:-1]]
        outside = {atom for x in new for atom in x} - {*atoms}
        factors = [x[atom] for x in new for atom in atoms]
        places = {
            Norm(a) if a == b else product(a, b): (i, j)
            for i, a in enumerate(atoms)
            for j, b in enumerate(atoms[i:], i)
        }
        symbols = [*places, *(step.scalars[n] for n in numbers if n in step.scalars)]
        symbols += [*traced.symbols.values(), DIMENSION]
        results = [*factors, *(step.states[n] for n in numbers if n in step.scalars)]
        meanings = meanings_of(step, results)
        loose = sp.Tuple(*results, *meanings.values()).free_symbols - {*symbols, *meanings}
        if outside or loose:
            names = ", ".join(sorted(map(show, loose)) + sorted(outside))
            raise NoEquilibriumError(
                f"{traced.name}: the step depends on {names}, which random gradients do not fix"
            )
        function = compiled(symbols, results, meanings)
        grown = [step.states[n] - step.scalars[n] for n in numbers if n in step.scalars]
        counts = tuple(bool(by.is_number and by != 0) for by in grown)
        return MeanStep(traced, tuple(places.values()), counts, len(atoms), function)

    def rest(
        self,
        values: Mapping[sp.Symbol, float],
        norm: float = 1.0,
        gamma: float = 1.0,
        entries: float = 1.0,
    ) -> Rest:
        """The point at which the map rests, from a weight of that norm, for |g| = gamma / |w|.

        Raises:
            NoEquilibriumError: it does not rest.
        """
        name, size = self.traced.name, self.size
        products, numbers = np.zeros((size, size)), [LATE if c else norm for c in self.counters]
        products[0, 0], products[-1, -1] = norm**2, (gamma / norm) ** 2
        given = {**{s: float(x) for s, x in self.traced.given.items()}, **values}
        hypers = [given[s] for s in self.traced.symbols.values()]
        before = np.full(size**2 + 2, math.nan)
        for _ in range(LONGEST):
            try:
                after, turn, numbers = self._once(products, numbers, hypers, entries)
            except (ArithmeticError, ValueError, TypeError) as error:
                raise NoEquilibriumError(f"{name}: its angles do not rest: {error}") from error
            if not np.isfinite(after).all() or after[0, 0] <= 0:
                break
            products[:-1, :-1], products[-1, -1] = after, gamma**2 / after[0, 0]
            lengths = np.maximum(np.sqrt(np.abs(products.diagonal())), TINY)
            present = np.append(products / np.outer(lengths, lengths), [turn, lengths[0]])
            scale = np.append(np.ones(size**2), [turn, lengths[0]])
            if (abs(present - before) <= AT_REST * scale).all():
                return Rest(float(lengths[0]), turn)
            before = present
        shown = ", ".join(f"{s}={v:g}" for s, v in values.items())
        raise NoEquilibriumError(f"{name}: its angles do not rest at {shown}")

    def spectral_radius(self, values: Mapping[sp.Symbol, float], norm: float) -> float:
        """The factor by which a step multiplies a small distance to the stationary point.

        Of the recursion of |w|^2, <w, m>, |m|^2 and the numbers of the state.

        Args:
            values: the hyper-parameters.
            norm: |w| at the point, for gamma = 1 and d = 1.
        """
        given = {**{s: float(x) for s, x in self.traced.given.items()}, **values}
        hypers, size = [given[s] for s in self.traced.symbols.values()], self.size
        upper = np.triu_indices(size - 1)
        moving = [n for n, counts in enumerate(self.counters) if not counts]

        def step(x: Array) -> Array:
            products = np.zeros((size, size))
            products[upper] = x[: len(upper[0])]
            products = np.triu(products) + np.triu(products, 1).T
            products[-1, -1] = 1 / x[0]
            numbers = [LATE] * len(self.counters)
            for n, value in zip(moving, x[len(upper[0]) :], strict=True):
                numbers[n] = value
            after, _, new = self._once(products, numbers, hypers, 1.0)
            return np.append(after[upper], [new[n] for n in moving])

        x = np.zeros(len(upper[0]) + len(moving))
        x[0], x[len(upper[0]) :] = norm**2, 1 / norm**2
        diagonal = [n for n, (i, j) in enumerate(zip(*upper, strict=True)) if i == j]

        def scales(x: Array) -> Array:
            """The largest that each product can be, |a| |b|: they differ by many decades."""
            lengths = np.sqrt(np.abs(x[diagonal]))
            return np.append(np.outer(lengths, lengths)[upper], np.abs(x[len(upper[0]) :]))

        for _ in range(5000):  # the momenta forget while the norm stands still
            new = step(x)
            new[0] = norm**2
            done = np.abs(new - x).max() <= 1e-12 * np.abs(x).max()
            x = new
            if done:
                break
        for _ in range(4):
            jacobian = _jacobian(step, x, scales(x))
            move = np.linalg.solve(np.eye(len(x)) - jacobian, step(x) - x)
            if np.isfinite(move).all() and abs(move[0]) < 0.1 * x[0]:
                x = x + move
        return float(np.abs(np.linalg.eigvals(_jacobian(step, x, scales(x)))).max())

    def _once(
        self, products: Array, numbers: Sequence[float], hypers: Sequence[float], entries: float
    ) -> tuple[Array, float, list[float]]:
        """The products of weight and momenta after a step, the turn, and the numbers."""
        size = self.size
        known = [
            math.sqrt(max(products[p], 0.0)) if p[0] == p[1] else products[p] for p in self.pairs
        ]
        found = self.function(*known, *numbers, *hypers, entries)
        factors = np.array(found[: (size - 1) * size], dtype=float).reshape(size - 1, size)
        kept = zip(self.counters, found[factors.size :], strict=True)
        after = factors @ products @ factors.T
        new = [LATE if counts else float(number) for counts, number in kept]
        return after, _turn(products, factors[0], after[0, 0]), new


def _jacobian(function: Callable[[Array], Array], x: Array, scales: Array) -> Array:
    """The derivative of a function, by central differences of 1e-6 of the scales."""
    columns = []
    for n in range(len(x)):
        size = 1e-6 * (scales[n] or 1.0)
        move = np.zeros_like(x)
        move[n] = size
        columns.append((function(x + move) - function(x - move)) / (2 * size))
    return np.stack(columns, 1)


def _turn(products: Array, factors: Array, squared: float) -> float:
    """The angle between w and w', by the chord between their directions."""
    chord = factors / math.sqrt(squared)
    chord[0] -= 1 / math.sqrt(products[0, 0])
    return 2 * math.asin(min(math.sqrt(max(float(chord @ products @ chord), 0.0)) / 2, 1.0))


def compiled(
    symbols: Sequence[sp.Symbol],
    results: Sequence[sp.Expr],
    meanings: Mapping[sp.Symbol, sp.Expr],
) -> Callable[..., list[float]]:
    """Formulas as a function of numbers, in which named parts are computed once.

    Args:
        symbols: of the numbers.
        results: the formulas.
        meanings: of further symbols, each after those that it uses.
    """
    plain = {s: sp.Dummy() for s in (*symbols, *meanings)}
    pairs = [(plain[s], x.xreplace(plain)) for s, x in meanings.items()]
    formulas = [sp.sympify(x).xreplace(plain) for x in results]
    arguments = [plain[s] for s in symbols]
    return sp.lambdify(arguments, formulas, "math", cse=lambda exprs: (pairs, exprs))  # type: ignore[no-any-return]


def meanings_of(step: Step, results: Sequence[sp.Expr]) -> dict[sp.Symbol, sp.Expr]:
    """The norms of letters and the open cases that formulas use, each after those it uses."""
    algebra = step.algebra
    known: dict[sp.Symbol, sp.Expr] = {
        Norm(n): sp.sqrt(algebra.inner(x, x)) for n, x in algebra.named.items()
    }
    known |= step.facts.cases
    named = algebra.named
    every = sp.Tuple(*results, *known.values(), *(c for x in named.values() for c in x.values()))
    for s in every.atoms(Inner):
        if late := [x for x in (s.a, s.b) if x in named]:
            name = max(late, key=[*named].index)
            known[s] = algebra.inner(named[name], Vector.atom(s.b if s.a == name else s.a))
    ordered: dict[sp.Symbol, sp.Expr] = {}

    def visit(x: sp.Expr) -> None:
        for symbol in sorted(x.free_symbols & known.keys(), key=str):
            if symbol not in ordered:
                visit(known[symbol])
                ordered[symbol] = known[symbol]

    for each in results:
        visit(sp.sympify(each))
    return ordered


# In symbols


def find_stationary_point(
    step: Step, kappa: sp.Expr, choose: Callable[[list[sp.Expr]], sp.Expr]
) -> tuple[sp.Expr, sp.Expr]:
    """|w|^4 and the squared chord |w' - w|^2 / |w|^2 that one step leaves as they are.

    Without a second moment |w| = 1, and |g| is unknown; |g| = gamma / |w| ties it to |w|^4. With
    one, gradients of any length give the same step: v = 1, |g|^2 keeps it, and |w| is unknown.

    Args:
        step: as `read_random_step` returns it.
        kappa: the decay of one step.
        choose: takes one of the roots of the last equation.

    Raises:
        NoEquilibriumError: there is no such point, or it has no closed form.
    """
    moved, held = sp.Dummy("moved", real=True), step.traced.given
    moment, w = find_second_moment(step), Vector.atom("w")
    units: dict[sp.Expr, sp.Expr] = {Norm("w"): sp.S.One}
    if moment is not None:
        units = {Norm("g"): sp.sqrt(resting_gradient(step, moment)), moment: sp.S.One}

    def resolve(x: sp.Expr) -> sp.Expr:
        return tidy(drop_transients(step.algebra.write_out(x), step).subs(units).subs(held))

    inner = step.algebra.inner
    after = {n: step.algebra.spread(x) for n, x in step.after.items() if isinstance(x, Vector)}
    drive = after["w"] - w.scaled(1 - kappa)
    buffers = [m for m in step.buffers if m in step.states]
    pairs = [("w", "w"), *(("w", m) for m in buffers)]
    pairs += [(a, b) for i, a in enumerate(buffers) for b in buffers[i:]]
    plain = {(a, b): inner(after[a], after[b]) for a, b in pairs}
    equations = [resolve(inner(drive, drive)) - S]
    for (a, b), whole in plain.items():
        # In terms of |s|^2 the first equations are linear, with a projection in the step too.
        value = _in_drive(step, drive, after[a], after[b], whole) if a == "w" else whole
        equations.append(resolve(value) - product(a, b).subs(units))
    way = after["w"] - w
    equations.append(resolve(inner(way, way)) - moved)
    free = Norm("w") if moment is not None else Norm("g")
    squares = {n**2: sp.Dummy(f"{n}2", positive=True) for n in map(Norm, ("s", "g", "w", *buffers))}
    equations = [e.subs(squares) for e in equations]
    unknowns = [squares[S], *(product(a, b).subs(squares) for a, b in pairs[1:]),
                squares[free**2], moved]  # fmt: skip
    _refuse_unknown(step, equations, unknowns)
    point = solve(step.traced.name, equations, unknowns, choose, [squares[free**2], moved])
    value, turned = point[squares[free**2]], point[moved]
    if moment is None:
        return normalize_signs(GAMMA**2 / value), normalize_signs(turned)
    return normalize_signs(value**2), normalize_signs(turned / value)


def _in_drive(step: Step, drive: Vector, a: Vector, b: Vector, plain: sp.Expr) -> sp.Expr:
    """<a, b> by |s|^2, where that holds no product beside those of the plain formula."""
    in_drive = express_inner(step, drive, "s", a, b)
    fine = in_drive.free_symbols <= step.algebra.expand(plain).free_symbols | {Norm("s")}
    return in_drive if fine else plain


def resting_gradient(step: Step, moment: sp.Symbol) -> sp.Expr:
    """|g|^2 at which the second moment stays as it is, at 1.

    Raises:
        NoEquilibriumError: it holds more than gradients.
    """
    G = sp.Dummy(positive=True)
    after = step.algebra.expand(sp.sympify(step.states[moment.name]))
    change = sp.expand(drop_transients(after, step) - moment).subs(Norm("g") ** 2, G)
    slope = sp.cancel(sp.diff(change, G))
    rest = sp.cancel(-change.subs(G, 0) / slope)
    if slope.has(G) or rest.free_symbols - {DIMENSION, moment}:
        hypers = {*step.traced.symbols.values()}
        loose = sorted(map(show, rest.free_symbols - {DIMENSION, moment} - hypers))
        entering = "coupled decay" if rest.has(Norm("w")) else ", ".join(loose) or "a number"
        raise NoEquilibriumError(
            f"{step.traced.name}: the second moment {moment} is not of gradients alone "
            f"({entering} enters it)"
        )
    return rest.subs(moment, 1)


def _refuse_unknown(step: Step, equations: Sequence[sp.Expr], unknowns: Sequence[Any]) -> None:
    """Refuse equations with a product that random gradients do not fix, as the mean of entries."""
    names = {*step.facts.cases, *step.traced.symbols.values(), DIMENSION, *unknowns}
    if loose := sorted(sp.Tuple(*equations).free_symbols - names, key=str):
        raise NoEquilibriumError(
            f"{step.traced.name}: the step depends on {', '.join(map(show, loose))}, which random "
            "gradients do not fix"
        )


MOST = 9
"""The unknowns of a closed form in general symbols, at most: those of two momenta."""


def solve(
    name: str,
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    choose: Callable[[list[sp.Expr]], sp.Expr],
    wanted: Sequence[sp.Symbol],
) -> dict[sp.Symbol, sp.Expr]:
    """The values of some unknowns at which all expressions are 0.

    Most of the equations are linear; of the others, one gives an unknown after the other.

    Args:
        name: of the recipe.
        equations: quotients of polynomials in the unknowns.
        unknowns: of the equations.
        choose: takes one of two roots.
        wanted: the unknowns whose values are asked for.

    Raises:
        NoEquilibriumError: they are no such equations.
    """
    try:
        return _solved(equations, unknowns, choose, wanted)
    except (sp.PolynomialError, GrowthError, NonlinearError) as error:
        raise NoEquilibriumError(f"{name}: no closed form ({error})") from error


def _solved(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    choose: Callable[[list[sp.Expr]], sp.Expr],
    wanted: Sequence[sp.Symbol],
) -> dict[sp.Symbol, sp.Expr]:
    whole = [_polynomial(e) for e in equations]
    general = sp.Tuple(*whole).free_symbols - {*unknowns}
    if len(unknowns) > MOST and len(general) > 2:
        raise GrowthError(f"its {len(unknowns)} unknowns have no short formula")
    linear = [e for e in whole if sp.Poly(e, *unknowns).total_degree() <= 1]
    curved = [e for e in whole if e not in linear]
    solutions = [*sp.linsolve(linear, *unknowns)]
    if not solutions:
        raise GrowthError("its equations contradict each other")
    values = dict(zip(unknowns, solutions[0], strict=True))
    left = [e for e in (_polynomial(e.subs(values)) for e in curved) if e != 0]
    while choice := _easiest(left, [x for x in unknowns if values[x] == x], wanted):
        equation, x = choice
        roots = [*map(normalize_signs, sp.roots(sp.Poly(equation, x)))]
        root = choose(roots) if len(roots) > 1 else roots[0]
        values = {each: sp.sympify(value).subs(x, root) for each, value in values.items()}
        left = [n for e in left if e is not equation and (n := _polynomial(e.subs(x, root))) != 0]
    found = {each: normalize_signs(values[each]) for each in wanted}
    if left or sp.Tuple(*found.values()).free_symbols & {*unknowns}:
        raise GrowthError("its equations leave an unknown or an equation over")
    return found


def _easiest(
    equations: Sequence[sp.Expr], unknowns: Sequence[sp.Symbol], wanted: Sequence[sp.Symbol]
) -> tuple[sp.Expr, sp.Symbol] | None:
    """The equation to solve next, and its unknown: a linear one, or a quadratic one by itself."""
    choices = []
    for n, (equation, x) in enumerate(itertools.product(equations, unknowns)):
        degree, alone = sp.degree(equation, x), not equation.free_symbols & {*unknowns} - {x}
        if degree == 1 or (degree == 2 and alone):
            choices.append((not alone, degree, x in wanted, sp.count_ops(equation), n, equation, x))
    return min(choices, key=lambda choice: choice[:5])[5:] if choices else None


def _polynomial(expression: sp.Expr) -> sp.Expr:
    """The numerator, without the powers of positive symbols that divide it."""
    numerator = sp.fraction(sp.cancel(expression))[0]
    factors = sp.Mul.make_args(sp.factor_terms(numerator))
    return sp.expand(sp.Mul(*(f for f in factors if not f.as_base_exp()[0].is_positive)))
