"""The formula of the point that one step in the mean field leaves as it is.

Most of its equations are linear in |s|^2 and the products; the others give one unknown after the
other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import sympy as sp
from sympy.solvers.solveset import NonlinearError

from spherenorm_theory.equilibria.mean_field import (
    MeanStep,
    NoEquilibriumError,
    drop_transients,
    refuse_unknown,
)
from spherenorm_theory.printing import show
from spherenorm_theory.step import GAMMA, S, Step, W, express_inner
from spherenorm_theory.symbols import (
    DIMENSION,
    GrowthError,
    Inner,
    Norm,
    Vector,
    canonical_form,
    normalize_signs,
    product,
)

STEP_SQUARED = sp.Dummy("step^2", real=True)
"""|w' - w|^2."""
G = Norm("g") ** 2
MAX_UNKNOWNS = 10
"""Largest number of unknowns of a closed form in general symbols."""
MAX_OPS_WITH_ROOTS = 180
"""Largest number of operations of equations with roots; beyond, sympy works for minutes."""


def find_stationary_point(mean: MeanStep, kappa: sp.Expr, root: int = 0) -> tuple[sp.Expr, sp.Expr]:
    """Return |w|^4 and the squared effective step |w' - w|^2 / |w|^2 that one step keeps.

    Without a second moment, |w| = 1 and |g| is unknown; |g| = gamma / |w| ties it to |w|^4. With
    one, gradients of any length give the same step: v = 1, |g|^2 keeps it, and |w| is unknown.

    Args:
        mean: the step in the mean.
        kappa: decay of one step.
        root: which root is taken of an equation that has several.

    Raises:
        NoEquilibriumError: there is no such point, or it has no closed form.
    """
    moment, unknown, units = mean.second_moment, G, {Norm("w"): sp.S.One}
    if moment is not None:
        unknown, units = W, {Norm("g"): sp.sqrt(stationary_gradient(mean)), moment: sp.S.One}
    equations = _equations(mean, kappa, units)
    if moment is None and not sp.Tuple(*equations.values()).has(Norm("g")):
        unknown = W  # normalized gradients: their length does not enter the step
        equations = _equations(mean, kappa, {})
    products = [x for x in equations if x not in (W, STEP_SQUARED)]
    unknowns = [*products, unknown, STEP_SQUARED]
    point = _solve(mean, [*equations.values()], unknowns, [unknown, STEP_SQUARED], root)
    if unknown == G:
        return normalize_signs(GAMMA**2 / point[G]), normalize_signs(point[STEP_SQUARED])
    squared_effective_step = normalize_signs(point[STEP_SQUARED] / point[W])
    return normalize_signs(point[W] ** 2), squared_effective_step


def find_momenta(mean: MeanStep, kappa: sp.Expr) -> dict[sp.Expr, sp.Expr]:
    """Return the products of the momenta and |g|^2 that a step leaves, at a fixed |w|^2, by |s|^2.

    Where gradients are normalized, |s|^2 becomes a number, in place of |g|^2.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    equations = _equations(mean, kappa, {})
    of_momenta = [x for name, x in equations.items() if name not in (W, STEP_SQUARED)]
    unknown = G if sp.Tuple(*of_momenta).has(Norm("g")) else S
    unknowns = [*(x for x in equations if x not in (S, W, STEP_SQUARED)), unknown]
    return _solve(mean, of_momenta, unknowns, unknowns)


def _equations(
    mean: MeanStep, kappa: sp.Expr, units: Mapping[sp.Expr, sp.Expr]
) -> dict[sp.Expr, sp.Expr]:
    """Return, for each product, |s|^2 and |w' - w|^2, the expression that is 0 at the point."""
    step, after, inner = mean.step, mean.after, mean.step.algebra.inner
    drive = after["w"] - Vector.atom("w").scaled(1 - kappa)
    products = {S: inner(drive, drive)}
    for a, b in mean.pairs:
        direct = inner(after[a], after[b])
        products[product(a, b)] = direct
        if a == "w":
            # In terms of |s|^2 the equation is linear, with a projection in the step too.
            in_drive = express_inner(step, drive, "s", after[a], after[b])
            symbols = step.algebra.expand_and_simplify(direct).free_symbols | {Norm("s")}
            if in_drive.free_symbols <= symbols:
                products[product(a, b)] = in_drive
    products[STEP_SQUARED] = inner(mean.displacement, mean.displacement)

    def resolve(x: sp.Expr) -> sp.Expr:
        late = drop_transients(step.algebra.expand_products(x), step)
        return canonical_form(late.subs(units).subs(step.traced.given_values))

    return {x: resolve(value) - x.subs(units) for x, value in products.items()}


def refuse_other_decay(step: Step) -> None:
    """Refuse a step that keeps the length of the weight, or a decay that changes with it.

    A projection acts on the products of the weight with other vectors; decay on the weight itself.

    Raises:
        NoEquilibriumError: naming the cause.
    """
    name, coefficient = step.traced.name, step.algebra.expand_names(step.weight)["w"]
    products = {
        x: 0 for x in coefficient.free_symbols if isinstance(x, Inner) and "w" in (x.a, x.b)
    }
    without_projection = step.algebra.expand_and_simplify(coefficient).subs(products)
    retention = drop_transients(canonical_form(without_projection), step)
    enters_momentum = any(
        isinstance(x, Vector) and step.algebra.expand_names(x)["w"].subs(products) != 0
        for x in step.states.values()
    )
    if retention == 1 and not enters_momentum:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    numbers = {*step.facts.open_branches, *step.traced.symbols.values(), DIMENSION}
    numbers |= {*step.scalars.values()}
    lengths = sorted(show(x) for x in retention.free_symbols - numbers)
    if lengths:
        raise NoEquilibriumError(
            f"{name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(lengths)}; such a norm has no closed form"
        )


def stationary_gradient(mean: MeanStep) -> sp.Expr:
    """Return |g|^2 at which the second moment stays at 1.

    Raises:
        NoEquilibriumError: the second moment averages more than gradients.
    """
    step, moment, square = mean.step, mean.second_moment, sp.Dummy(positive=True)
    assert moment is not None
    after = step.algebra.expand_and_simplify(sp.sympify(step.states[moment.name]))
    change = sp.expand(drop_transients(after, step) - moment).subs(G, square)
    slope = sp.cancel(sp.diff(change, square))
    stationary_square = sp.cancel(-change.subs(square, 0) / slope)
    other_symbols = stationary_square.free_symbols - {DIMENSION, moment}
    if slope.has(square) or other_symbols:
        names = sorted(map(show, other_symbols - {*step.traced.symbols.values()}))
        terms = ["coupled decay"] if stationary_square.has(Norm("w")) else names or ["a number"]
        raise NoEquilibriumError(
            f"{step.traced.name}: the second moment {moment} is not of gradients alone "
            f"({', '.join(terms)} enters it)"
        )
    return stationary_square.subs(moment, 1)


# Systems of polynomial equations


def _solve(
    mean: MeanStep,
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Expr],
    wanted: Sequence[sp.Expr],
    root: int = 0,
) -> dict[sp.Expr, sp.Expr]:
    """Return the values of the wanted unknowns at which all expressions are 0.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    powers = {p for x in (*equations, *unknowns) for p in x.atoms(sp.Pow)}
    squares = {
        p.base**2: sp.Dummy(str(p), positive=True) for p in powers if isinstance(p.base, Norm)
    }
    unknown_symbols = [x.subs(squares) for x in unknowns]
    in_squares = [x.subs(squares) for x in equations]
    fixed = {*mean.step.facts.open_branches, *mean.step.traced.symbols.values(), DIMENSION}
    fixed |= {squares.get(x, x) for x in (S, W) if x not in unknowns}
    unexplained = sp.Tuple(*in_squares).free_symbols - fixed - {*unknown_symbols}
    refuse_unknown(mean.step.traced.name, unexplained)
    wanted_symbols = [x.subs(squares) for x in wanted]
    try:
        solution = _solve_polynomials(in_squares, unknown_symbols, wanted_symbols, root)
    except GrowthError as error:
        raise NoEquilibriumError(f"{mean.step.traced.name}: no closed form ({error})") from error
    except (sp.PolynomialError, NonlinearError) as error:
        raise NoEquilibriumError(
            f"{mean.step.traced.name}: no closed form (its equations are no polynomials)"
        ) from error
    to_norms = {dummy: square for square, dummy in squares.items()}
    return {to_norms.get(x, x): value.subs(to_norms) for x, value in solution.items()}


def _solve_polynomials(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    wanted: Sequence[sp.Symbol],
    root: int,
) -> dict[sp.Symbol, sp.Expr]:
    """Return the wanted unknowns: the linear equations at once, then one equation at a time.

    Raises:
        GrowthError: the system is too large, or leaves an unknown.
    """
    is_large = sum(x.count_ops() for x in equations) > MAX_OPS_WITH_ROOTS
    if is_large and any(not p.exp.is_Integer for x in equations for p in x.atoms(sp.Pow)):
        raise GrowthError("its equations with roots are too long; try eps=0.0, or equilibrium_turn")
    polynomials = [_numerator(x) for x in equations]
    parameters = sp.Tuple(*polynomials).free_symbols - {*unknowns}
    if len(unknowns) > MAX_UNKNOWNS and len(parameters) > 2:
        raise GrowthError(f"its {len(unknowns)} unknowns have no short formula")
    linear = [x for x in polynomials if sp.Poly(x, *unknowns).total_degree() <= 1]
    solutions = [*sp.linsolve(linear, *unknowns)]
    if not solutions:
        raise GrowthError("its equations contradict each other")
    values = dict(zip(unknowns, solutions[0], strict=True))
    nonlinear = [_numerator(x.subs(values)) for x in polynomials if x not in linear]
    remaining = [x for x in nonlinear if x != 0]
    while True:
        unsolved = [x for x in unknowns if values[x] == x]
        choice = _easiest_equation(remaining, unsolved, wanted)
        if choice is None:
            break
        equation, unknown = choice
        roots = [*map(normalize_signs, sp.roots(sp.Poly(equation, unknown)))]
        value = roots[root % len(roots)]
        values = {x: sp.sympify(y).subs(unknown, value) for x, y in values.items()}
        substituted = [_numerator(x.subs(unknown, value)) for x in remaining if x is not equation]
        remaining = [x for x in substituted if x != 0]
    solution = {x: normalize_signs(values[x]) for x in wanted}
    if remaining or sp.Tuple(*solution.values()).free_symbols & {*unknowns}:
        raise GrowthError("its equations leave an unknown or an equation over")
    return solution


def _easiest_equation(
    equations: Sequence[sp.Expr], unknowns: Sequence[sp.Symbol], wanted: Sequence[sp.Symbol]
) -> tuple[sp.Expr, sp.Symbol] | None:
    """Return the equation to solve next and its unknown, or None.

    It is linear in the unknown, or quadratic with no other unknown.
    """
    choices = []
    for n, (equation, x) in enumerate(itertools.product(equations, unknowns)):
        degree = sp.degree(equation, x)
        has_others = bool(equation.free_symbols & {*unknowns} - {x})
        if degree == 1 or (degree == 2 and not has_others):
            cost = (has_others, degree, x in wanted, sp.count_ops(equation), n)
            choices.append((cost, equation, x))
    if not choices:
        return None
    _, equation, unknown = min(choices, key=lambda choice: choice[0])
    return equation, unknown


def _numerator(expression: sp.Expr) -> sp.Expr:
    """Return the numerator, without the powers of positive symbols that divide it."""
    numerator = sp.fraction(sp.cancel(expression))[0]
    factors = sp.Mul.make_args(sp.factor_terms(numerator))
    return sp.expand(sp.Mul(*(f for f in factors if not f.as_base_exp()[0].is_positive)))
