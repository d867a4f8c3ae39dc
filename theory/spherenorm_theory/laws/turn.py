"""The turn per step at rest, in numbers, the rate at which `rotational` turns so, and growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.hyper_parameters import structure_of_run
from spherenorm_theory.algebra.symbols import GrowthError, normalize_signs
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.laws.balance import find_momenta
from spherenorm_theory.laws.equilibrium import equilibrium, mean_step, without_eps
from spherenorm_theory.laws.law import Law, norm_growth, verified_trace
from spherenorm_theory.laws.mean_field import (
    MeanStep,
    NoEquilibriumError,
    drop_transients,
    read_random_step,
)
from spherenorm_theory.laws.step import S
from spherenorm_theory.laws.verify import verify_numbers

SCALED = 1e-6
"""The relative difference of turns at other lengths that rounding may leave.

Rounding moves a point at rest by 1e-15 over the decay of one step.
"""


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
    traced = verified_trace(recipe, **given)
    return turn_of(traced, traced.values(**numbers | given), shape)


def turn_of(
    traced: Trace, values: Mapping[sp.Symbol, float], shape: Sequence[int] = (64, 64)
) -> float:
    """The same, of a trace.

    Raises:
        NoEquilibriumError: as for `turn_at_rest`.
        TraceError: the code takes another step at these numbers.
    """
    try:
        verify_numbers(norm_growth(traced), values)
        step = mean_step(traced)
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error
    turns = [
        step.rest(values, entries if isinstance(step, MeanStep) else shape, norm, gamma).turn
        for norm, gamma, entries in ((1.0, 1.0, 1), (2.0, 3.0, 5))
    ]
    if not math.isclose(*turns, rel_tol=SCALED):
        raise NoEquilibriumError(
            f"{traced.name}: the turn changes with the lengths of gradients or weight"
        )
    return turns[0]


def rotational_rate(
    recipe: str | Recipe, *, shape: Sequence[int] = (64, 64), **hyper_parameters: Any
) -> Callable[[float], float]:
    """The learning rate of `rotational(recipe)`, as a function of the learning rate of the recipe.

    The equilibrium that is derived from the recipe's code has an effective step e, the length of
    the chord from w / |w| to w' / |w'|. A step of `rotational` turns by arctan(rate) on average,
    and exactly without `zero_mean` and memory, so

        rate = tan(2 arcsin(e / 2)),    e = sqrt(2 lr weight_decay (1 - beta1) / (1 + beta1))

    for AdamW and a small lr. A schedule of the rate is then the function of one of lr.

    Args:
        recipe: its name, or a function.
        shape: of the weight, which matters to orthogonal factors alone.
        **hyper_parameters: of the recipe, but for lr; its weight decay, above all.

    Raises:
        NoEquilibriumError: the recipe has no equilibrium, or none in closed form; or, of the
            function, it does not settle at this lr.

    Example:
        >>> rate = rotational_rate("sgd", weight_decay=0.1, momentum=0.9)
        >>> round(rate(0.1), 4), round(rate(0.05), 4)
        (0.103, 0.0727)

    Source: Kosson et al. 2024 (rotational equilibrium), Section 3.
    """
    bound = bind(recipe, **hyper_parameters)
    held = {name: x for name, x in bound.hyper_parameters.items() if name != "lr" and x is not None}
    law = equilibrium(recipe, **{**held, **without_eps(recipe)})
    symbol = law.traced.symbols["lr"]

    def rate(lr: float) -> float:
        chord = law.rotation({symbol: lr}, tuple(shape))
        if chord >= math.sqrt(2):
            raise NoEquilibriumError(f"{law.name}: at lr={lr:g} a step turns by a right angle")
        return math.tan(2 * math.asin(chord / 2))

    return rate


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
    at_rest = momenta_at_rest(law)
    return normalize_signs(sp.cancel(1 + 2 * keep * cross.subs(at_rest) / S.subs(at_rest)))


def momenta_at_rest(law: Law) -> dict[sp.Expr, sp.Expr]:
    """The products of the momenta and |g|^2, or |s|^2, at rest; see `find_momenta`.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    mean = MeanStep(read_random_step(law.step.traced))
    return find_momenta(mean, drop_transients(law.kappa, law.step))
