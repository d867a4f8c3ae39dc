"""The point that one step in the mean field leaves as it is, in symbols.

Most of its equations are linear in |s|^2 and the products; of the others, one gives an unknown
after the other.
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

STEP_SQUARED = sp.Dummy("moved", real=True)
"""|w' - w|^2."""
G = Norm("g") ** 2
MAX_UNKNOWNS = 10
"""The unknowns of a closed form in general symbols, at most."""
MAX_OPS_WITH_ROOTS = 180
"""The operations of equations with roots in them, at most; beyond, sympy works for minutes."""


def find_stationary_point(mean: MeanStep, kappa: sp.Expr, root: int = 0) -> tuple[sp.Expr, sp.Expr]:
    """|w|^4 and the squared chord |w' - w|^2 / |w|^2 that one step leaves as they are.

    Without a second moment |w| = 1, and |g| is unknown; |g| = gamma / |w| ties it to |w|^4. With
    one, gradients of any length give the same step: v = 1, |g|^2 keeps it, and |w| is unknown.

    Args:
        mean: the step.
        kappa: the decay of one step.
        root: which root is taken of an equation that has several.

    Raises:
        NoEquilibriumError: there is no such point, or it has no closed form.
    """
    moment, free, units = mean.second_moment, G, {Norm("w"): sp.S.One}
    if moment is not None:
        free, units = W, {Norm("g"): sp.sqrt(resting_gradient(mean)), moment: sp.S.One}
    equations = _equations(mean, kappa, units)
    if moment is None and not sp.Tuple(*equations.values()).has(Norm("g")):
        free = W  # of gradients that are normalized, the length is none of the step's
        equations = _equations(mean, kappa, {})
    unknowns = [*(x for x in equations if x not in (W, STEP_SQUARED)), free, STEP_SQUARED]
    point = _solve(mean, [*equations.values()], unknowns, [free, STEP_SQUARED], root)
    if free == G:
        return normalize_signs(GAMMA**2 / point[free]), normalize_signs(point[STEP_SQUARED])
    return normalize_signs(point[free] ** 2), normalize_signs(point[STEP_SQUARED] / point[free])


def find_momenta(mean: MeanStep, kappa: sp.Expr) -> dict[sp.Expr, sp.Expr]:
    """The products of the momenta and |g|^2 at rest, at a frozen |w|^2, by |s|^2.

    Where gradients are normalized, |s|^2 is a number at rest, in place of |g|^2.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    equations = _equations(mean, kappa, {})
    left = [x for n, x in equations.items() if n not in (W, STEP_SQUARED)]
    free = G if sp.Tuple(*left).has(Norm("g")) else S
    unknowns = [*(x for x in equations if x not in (S, W, STEP_SQUARED)), free]
    return _solve(mean, left, unknowns, unknowns)


def _equations(
    mean: MeanStep, kappa: sp.Expr, units: Mapping[sp.Expr, sp.Expr]
) -> dict[sp.Expr, sp.Expr]:
    """Each product with what is 0 where a step leaves it as it is; |s|^2 and `MOVED` too."""
    step, after, inner = mean.step, mean.after, mean.step.algebra.inner
    drive = after["w"] - Vector.atom("w").scaled(1 - kappa)
    found = {S: inner(drive, drive)}
    for a, b in mean.pairs:
        found[product(a, b)] = plain = inner(after[a], after[b])
        if a == "w":
            # In terms of |s|^2 these are linear, with a projection in the step too.
            in_drive = express_inner(step, drive, "s", after[a], after[b])
            if in_drive.free_symbols <= step.algebra.expand_and_simplify(plain).free_symbols | {
                Norm("s")
            }:
                found[product(a, b)] = in_drive
    found[STEP_SQUARED] = inner(mean.displacement, mean.displacement)

    def resolve(x: sp.Expr) -> sp.Expr:
        late = drop_transients(step.algebra.expand_products(x), step)
        return canonical_form(late.subs(units).subs(step.traced.exact_values))

    return {x: resolve(value) - x.subs(units) for x, value in found.items()}


def refuse_other_decay(step: Step) -> None:
    """Refuse a step that leaves the weight its length, or takes a share that changes with it.

    A projection acts on the products of the weight with other vectors; decay on the weight itself.

    Raises:
        NoEquilibriumError: naming the cause.
    """
    name, kept = step.traced.name, step.algebra.expand_names(step.weight)["w"]
    products = {s: 0 for s in kept.free_symbols if isinstance(s, Inner) and "w" in (s.a, s.b)}
    kept = drop_transients(
        canonical_form(step.algebra.expand_and_simplify(kept).subs(products)), step
    )
    enters = any(
        isinstance(x, Vector) and step.algebra.expand_names(x)["w"].subs(products) != 0
        for x in step.states.values()
    )
    if kept == 1 and not enters:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    named = {*step.facts.open_branches, *step.traced.symbols.values()}
    fixed = {*named, *step.scalars.values(), DIMENSION}
    if lengths := sorted(show(s) for s in kept.free_symbols - fixed):
        raise NoEquilibriumError(
            f"{name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(lengths)}; such a norm has no closed form"
        )


def resting_gradient(mean: MeanStep) -> sp.Expr:
    """|g|^2 at which the second moment stays as it is, at 1.

    Raises:
        NoEquilibriumError: it holds more than gradients.
    """
    step, moment, squared = mean.step, mean.second_moment, sp.Dummy(positive=True)
    assert moment is not None
    after = step.algebra.expand_and_simplify(sp.sympify(step.states[moment.name]))
    change = sp.expand(drop_transients(after, step) - moment).subs(G, squared)
    slope = sp.cancel(sp.diff(change, squared))
    rest = sp.cancel(-change.subs(squared, 0) / slope)
    loose = rest.free_symbols - {DIMENSION, moment}
    if slope.has(squared) or loose:
        own = sorted(map(show, loose - {*step.traced.symbols.values()}))
        entering = "coupled decay" if rest.has(Norm("w")) else ", ".join(own) or "a number"
        raise NoEquilibriumError(
            f"{step.traced.name}: the second moment {moment} is not of gradients alone "
            f"({entering} enters it)"
        )
    return rest.subs(moment, 1)


def _solve(
    mean: MeanStep,
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Expr],
    wanted: Sequence[sp.Expr],
    root: int = 0,
) -> dict[sp.Expr, sp.Expr]:
    """The values of some unknowns at which all expressions are 0.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    squares = {x.base**2: sp.Dummy(str(x), positive=True) for e in (*equations, *unknowns)
               for x in e.atoms(sp.Pow) if isinstance(x.base, Norm)}  # fmt: skip
    names = [x.subs(squares) for x in unknowns]
    whole = [e.subs(squares) for e in equations]
    fixed = {*mean.step.facts.open_branches, *mean.step.traced.symbols.values(), DIMENSION}
    fixed |= {squares.get(x, x) for x in (S, W) if x not in unknowns}
    refuse_unknown(mean.step.traced.name, sp.Tuple(*whole).free_symbols - fixed - {*names})
    try:
        found = _solved(whole, names, [x.subs(squares) for x in wanted], root)
    except (sp.PolynomialError, GrowthError, NonlinearError) as error:
        why = error if isinstance(error, GrowthError) else "its equations are no polynomials"
        raise NoEquilibriumError(f"{mean.step.traced.name}: no closed form ({why})") from error
    back = {dummy: square for square, dummy in squares.items()}
    return {back.get(x, x): value.subs(back) for x, value in found.items()}


def _solved(
    equations: Sequence[sp.Expr],
    unknowns: Sequence[sp.Symbol],
    wanted: Sequence[sp.Symbol],
    root: int,
) -> dict[sp.Symbol, sp.Expr]:
    large = sum(e.count_ops() for e in equations) > MAX_OPS_WITH_ROOTS
    if large and any(not p.exp.is_Integer for e in equations for p in e.atoms(sp.Pow)):
        raise GrowthError("its equations with roots are too long; try eps=0.0, or turn_at_rest")
    whole = [_polynomial(e) for e in equations]
    if len(unknowns) > MAX_UNKNOWNS and len(sp.Tuple(*whole).free_symbols - {*unknowns}) > 2:
        raise GrowthError(f"its {len(unknowns)} unknowns have no short formula")
    linear = [e for e in whole if sp.Poly(e, *unknowns).total_degree() <= 1]
    solutions = [*sp.linsolve(linear, *unknowns)]
    if not solutions:
        raise GrowthError("its equations contradict each other")
    values = dict(zip(unknowns, solutions[0], strict=True))
    curved = [_polynomial(e.subs(values)) for e in whole if e not in linear]
    left = [e for e in curved if e != 0]
    while choice := _easiest(left, [x for x in unknowns if values[x] == x], wanted):
        equation, x = choice
        roots = [*map(normalize_signs, sp.roots(sp.Poly(equation, x)))]
        taken = roots[root % len(roots)]
        values = {each: sp.sympify(value).subs(x, taken) for each, value in values.items()}
        left = [n for e in left if e is not equation and (n := _polynomial(e.subs(x, taken))) != 0]
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
