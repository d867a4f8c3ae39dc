"""The turn per step at rest, in numbers, and growth relative to the steps' own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import sympy as sp
from sympy.solvers.solveset import NonlinearError

from spherenorm import Recipe
from spherenorm_theory.algebra import (
    GrowthError,
    Norm,
    Trace,
    normalize_signs,
    product,
    structure_of_run,
    tidy,
    trace,
)
from spherenorm_theory.laws.equilibrium import without_eps
from spherenorm_theory.laws.kernels import Directed
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import (
    MeanStep,
    NoEquilibriumError,
    drop_transients,
    read_random_step,
    solve,
)
from spherenorm_theory.laws.step import S, Step, one_step

SCALED = 1e-9
"""The relative difference of turns at other lengths that rounding and the end may leave."""


def turn_at_rest(
    recipe: str | Recipe, *, shape: Sequence[int] = (64, 64), **hyper_parameters: Any
) -> float:
    """The turn per step of a scale-invariant weight after many steps, for random gradients.

    A random gradient is orthogonal to the weight and uncorrelated with the momenta. In the mean a
    step then maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record
    of the recipe's code has; they are followed until they rest. A momentum remembers gradients of
    weights that the present one has turned away from, and so its steps point outwards, too: a
    hyperball with the momentum beta turns by less than arctan(lr),

        atan2(lr sin a, 1 - lr cos a),    c rho = beta (c - lr),    rho^2 = 1 - 2 lr c + lr^2,

    with the angle a between the direction and the weight, c = cos a. The mean field takes norms for
    their means: d is large. A step along a sign or an orthogonal factor is followed as a sum over
    its past (`spherenorm_theory.laws.kernels`). Iterating finds attracting points alone.

    Args:
        recipe: its name, or a function.
        shape: of the weight, which matters to orthogonal factors alone.
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
    given = {**structure_of_run(recipe, numbers), **without_eps(recipe)}
    traced = trace(recipe, **given)
    values = traced.values(**numbers | given)
    directed, step = _step(traced)
    if directed is not None:
        turns = [directed.rest(values, shape, norm).turn for norm in (1.0, 2.0)]
    else:
        assert step is not None
        turns = [step.rest(values, *scale).turn for scale in ((1.0, 1.0, 1.0), (2.0, 3.0, 5.0))]
    if not math.isclose(*turns, rel_tol=SCALED):
        raise NoEquilibriumError(
            f"{traced.name}: the turn changes with the lengths of gradients or weight"
        )
    return turns[0]


@cache
def _step(traced: Trace) -> tuple[Directed | None, MeanStep | None]:
    """The step along a direction, or the mean step, of a recipe.

    Raises:
        NoEquilibriumError: it is not linear in the gradients, or depends on what is not followed.
    """
    try:
        directed = Directed.of(norm_growth(traced).step)
        return (directed, None) if directed else (None, MeanStep.of(read_random_step(traced)))
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error


def growth_ratio(recipe: str | Recipe | Trace | Law, **given: Any) -> sp.Expr:
    """(|w'|^2 - (1 - kappa)^2 |w|^2) / |s|^2 after many steps, for random gradients of one size.

    The factor by which momentum multiplies the growth that the steps alone bring: 1 for a projected
    recipe, (1 + beta) / (1 - beta) for SGD with momentum (Corollary 2.3). It is one number where
    the recursion of <w, s> holds no norm but |s|^2. Coupled decay has none: it enters the momentum,
    <w, s> holds a multiple of |w|^2, and the ratio is a function of |w|^2 / |s|^2, both means.

    Args:
        recipe: as for `norm_growth`, or a law.
        given: hyper-parameters to hold at a value.

    Raises:
        NoEquilibriumError: the products of the buffers have no closed form.

    Example:
        >>> print(show(growth_ratio("sgd", weight_decay=0.0)))
        (1 + beta)/(1 - beta)
    """
    law = recipe if isinstance(recipe, Law) else norm_growth(recipe, **given)
    if law.constant:
        return sp.S.Zero
    if law.cross == 0:
        return sp.S.One
    keep, cross = (drop_transients(e, law.step) for e in (1 - law.kappa, law.cross))
    at_rest, squared = _cross_at_rest(law)
    return normalize_signs(sp.cancel(1 + 2 * keep * cross.subs(at_rest) / squared))


def _cross_at_rest(law: Law) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The cross terms in the mean over many steps, and |s|^2.

    Their recursions give them where these hold no product but |s|^2; otherwise the products of the
    buffers are solved for too.
    """
    unknowns = sorted(law.unknowns, key=str)
    if unknowns and not law.open_because:
        equations = [tidy(drop_transients(law.recursion[u], law.step) - u) for u in unknowns]
        try:
            solutions = [*sp.linsolve(equations, *unknowns)]
        except NonlinearError:  # as a projection of a momentum that is not orthogonal makes it
            return stationary_buffers(law)
        values = dict(zip(unknowns, solutions[0], strict=True)) if solutions else {}
        along = {s for v in values.values() for s in v.free_symbols if str(s).endswith(",s>")}
        if values and not along:
            return values, S
    return stationary_buffers(law)


def stationary_buffers(law: Law) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The products of the buffers at rest, at frozen |w|^2 and |g|^2, and |s|^2 there.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    plain = law.step
    step: Step = one_step(plain.traced, orthogonal=tuple((m, "g") for m in plain.buffers))
    buffers, after = step.buffers, step.after
    pairs = [*(("w", m) for m in buffers)]
    pairs += [(a, b) for i, a in enumerate(buffers) for b in buffers[i:]]
    squares = {Norm(m) ** 2: sp.Dummy(f"{m}2", positive=True) for m in buffers}
    equations = [
        (step.inner(after[a], after[b]) - product(a, b)).subs(plain.traced.given).subs(squares)
        for a, b in pairs
    ]
    unknowns = [product(a, b).subs(squares) for a, b in pairs]
    fixed = {*step.traced.symbols.values(), *unknowns, Norm("w"), Norm("g")}
    if loose := sp.Tuple(*equations).free_symbols - fixed:
        names = ", ".join(sorted(map(str, loose)))
        raise NoEquilibriumError(
            f"{step.traced.name}: the step depends on {names}, which random gradients do not fix"
        )
    found = solve(step.traced.name, equations, unknowns, lambda roots: roots[0], unknowns)
    back = {dummy: square for square, dummy in squares.items()}
    solution = {back.get(x, x): value for x, value in found.items()}
    squared = step.inner(law.drive, law.drive).subs(solution)
    return solution, normalize_signs(sp.cancel(squared))
