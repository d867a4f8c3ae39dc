"""Equilibria: the norm at which decay and growth balance under random gradients, and the turn.

The effective step is the chord |w'/|w'| - w/|w||, and the turn the angle between w and w', so that
step = 2 sin(turn / 2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm.rules import KeepNorm
from spherenorm_theory.claim import Hypothesis
from spherenorm_theory.equilibria.directions import (
    ArcsineSum,
    HomogeneousStep,
    OverlapSum,
    arcsine_law,
    stationary_along,
)
from spherenorm_theory.equilibria.mean_field import (
    FixedPoint,
    MeanStep,
    NoEquilibriumError,
    drop_transients,
    read_random_step,
    settle_own_states,
)
from spherenorm_theory.equilibria.stationary_point import (
    find_momenta,
    find_stationary_point,
    refuse_other_decay,
    stationary_gradient,
)
from spherenorm_theory.hyper_parameters import static_arguments_of_run
from spherenorm_theory.norm_law import NormLaw, derive_law, norm_growth, verified_trace
from spherenorm_theory.opaque_rules import RANK, SCALE, SHARE
from spherenorm_theory.printing import Part, Phrase, Proposition, enumerated, pieces, show, words
from spherenorm_theory.step import GAMMA, S, one_step
from spherenorm_theory.symbols import (
    DIMENSION,
    GrowthError,
    Inner,
    Norm,
    normalize_signs,
)
from spherenorm_theory.tracing import Trace
from spherenorm_theory.verify import DifferenceError, default_values, verify_numbers

MAX_ERROR = 1e-7
"""Relative difference of the closed form and the iterated map, where both are one point."""
MAX_ERROR_AT_DEFAULTS = 1e-4
"""Relative difference at the recipe's default numbers, where a small decay makes a point less
exact."""
EFFECTIVE_STEP = sp.Symbol("step", positive=True)
"""The effective step, the chord |w'/|w'| - w/|w||."""
Shape = int | tuple[int, ...]
"""The number of entries of a unit, or the shape of the weight, which orthogonal factors need."""
MAX_CHARACTERS = 120
"""Length of a printed formula beyond which its repeated parts get names."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """The stationary point of the one-step recursion of |w|^2, <w, m> and |m|^2.

    Gradients are random: each has norm gamma / |w|, is orthogonal to its weight and uncorrelated
    with the momentum. An entrywise second moment is replaced by its mean over the entries, d of
    them, and bias corrections have died out.

    Attributes:
        name: the recipe's name.
        traced: the recipe's trace.
        fourth_power: |w|^4, in gamma or d and the hyper-parameters.
        squared_effective_step: the squared chord |w'/|w'| - w/|w||^2 = |w' - w|^2 / |w|^2.
        kappa: decay of one step.
        mean: the step in the mean field, or as a step along a sign or an orthogonal factor.

    Example:
        >>> print(show(equilibrium("sgd", momentum=0.0, dampening=0.0, lr=0.5).fourth_power))
        gamma^2/(wd (4 - wd))
    """

    name: str
    traced: Trace
    fourth_power: sp.Expr
    squared_effective_step: sp.Expr
    kappa: sp.Expr
    mean: MeanStep | HomogeneousStep

    @property
    def orthogonal_factor_step(self) -> HomogeneousStep | None:
        """The step, if it is along an orthogonal factor; else None."""
        if isinstance(self.mean, HomogeneousStep) and not self.mean.is_sign:
            return self.mean
        return None

    def squared_norm(
        self, values: Mapping[sp.Symbol, float], shape: Shape, gamma: float = 1.0
    ) -> float:
        """Return |w|^2 in numbers.

        Args:
            values: the hyper-parameters.
            shape: d, the number of entries of a unit; of an orthogonal factor, the shape of the
                matrix.
            gamma: root mean square of |w| |g|.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
            TraceError: the code takes another step at these numbers.
        """
        return _solve_fixed_point(self, tuple(values.items()), shape, gamma).norm ** 2

    def effective_step(self, values: Mapping[sp.Symbol, float], shape: Shape = (64, 64)) -> float:
        """Return the effective step |w'/|w'| - w/|w|| in numbers.

        Args:
            values: the hyper-parameters.
            shape: shape of the weight, which matters to orthogonal factors only.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
            TraceError: the code takes another step at these numbers.
        """
        return _solve_fixed_point(self, tuple(values.items()), shape).effective_step

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The assumptions of the formulas."""
        step, mean = self.mean.step, self.mean
        has_gamma = self.fourth_power.has(GAMMA)
        length = ", |g_t| = gamma / |w_t|" if has_gamma else "; their length does not matter"
        has_momenta = any(m in step.states for m in step.buffers)
        needs = "many entries d in a unit"
        if has_momenta and isinstance(mean, MeanStep):
            needs += " and a momentum shorter than the time in which the weight turns"
        lines: list[Hypothesis] = [
            sp.Eq(Inner("w", "g"), 0, evaluate=False),
            f"gradients are random and uncorrelated with the momenta{length}",
            f"products are replaced by their means, which needs {needs}",
        ]
        if isinstance(mean, HomogeneousStep):
            if mean.is_sign:
                lines.append(
                    "entries are Gaussian: where those of two momenta have the correlation rho, "
                    "their signs have 2 asin(rho) / pi"
                )
            else:
                lines.append(
                    "entries are Gaussian: where those of two momenta have the correlation rho, "
                    "their orthogonal factors have F(rho), which is measured for the shape"
                )
            if isinstance(step.algebra.opaque_vectors[mean.atom].rule, KeepNorm):
                lines.append("rows have the mean of their lengths")
        else:
            moment = mean.second_moment
            if moment is not None and sp.sympify(step.states[moment.name]).has(DIMENSION):
                lines.append(f"the second moment {moment} is at its mean in every entry, eps = 0")
        return (*lines, *step.facts.hypotheses)

    def leading_term(self, expression: sp.Expr, small: str = "lr") -> sp.Expr:
        """Return the leading term of a rational expression for a small hyper-parameter.

        Raises:
            ValueError: the expression is not rational in it.
        """
        symbol = self.traced.symbols.get(small, sp.Symbol(small, positive=True))
        if not expression.is_rational_function(symbol):
            raise ValueError(
                f"{self.name}: an expression with a root of {small} in it has no leading term here"
            )
        numerator, denominator = sp.fraction(sp.cancel(expression))
        (power,), a = sp.Poly(numerator, symbol).terms()[-1]
        (power_below,), b = sp.Poly(denominator, symbol).terms()[-1]
        return normalize_signs(a / b * symbol ** (power - power_below))

    @property
    def small_lr_formulas(self) -> dict[sp.Expr, sp.Expr]:
        """|w| and the effective step for small lr, where the exact formulas have more terms."""
        formulas = {}
        for symbol, exact_formula, power in self._printed_quantities:
            if exact_formula.is_rational_function():
                leading_term = self.leading_term(exact_formula)
                if leading_term != exact_formula:
                    formulas[symbol] = _root(leading_term, power)
        return formulas

    @property
    def printed_formulas(self) -> dict[sp.Expr, Phrase]:
        """|w| and the effective step for small lr where they have a form, then |w|^4 and step^2."""
        lr = self.traced.symbols.get("lr", sp.Symbol("lr"))
        small = {x: (formula, " for small ", lr) for x, formula in self.small_lr_formulas.items()}
        exact_formulas = {
            symbol**power: _shorten(formula) for symbol, formula, power in self._printed_quantities
        }
        return {**small, **exact_formulas}

    @property
    def _printed_quantities(self) -> list[tuple[sp.Expr, sp.Expr, int]]:
        """The symbol of |w| and of the effective step, the formula of a power, and that power."""
        return [
            (Norm("w"), self.fourth_power, 4),
            (EFFECTIVE_STEP, self.squared_effective_step, 2),
        ]

    def formulas_as_text(self) -> dict[str, str]:
        """Return `printed_formulas` in text."""
        return {show(symbol): words(formula) for symbol, formula in self.printed_formulas.items()}

    def proposition(self) -> Proposition:
        """Return the equilibrium as a paper states it."""
        small = self.small_lr_formulas
        then = [
            (symbol, " ~ " if symbol in small else " = ", *pieces(formula))
            for symbol, formula in self.printed_formulas.items()
        ]
        status = (
            "Derived in the mean field. If the fixed point is not stable at your numbers, an error "
            "says so"
        )
        parts = [Part("Assume", self.hypotheses), Part("Then", tuple(then), displayed=True)]
        parts.append(Part("Where", (*self._letters(), *self._open_branches())))
        return Proposition("Equilibrium", self.name, (*parts, Part("Status", (status,))))

    def _letters(self) -> Iterator[Phrase]:
        """Yield what the letters of the formulas stand for."""
        yield EFFECTIVE_STEP, " is the effective step |w_{t+1}/|w_{t+1}| - w_t/|w_t||"
        formulas = sp.Tuple(self.fourth_power, self.squared_effective_step)
        if formulas.has(ArcsineSum):
            yield "ArcsineSum(a, r, b) is the sum over k = 1, 2, ... of a^k asin(r b^(k-1))"
        elif formulas.has(OverlapSum):
            yield "OverlapSum(a, r, b) is the sum over k = 1, 2, ... of a^k F(r b^(k-1))"
            yield "c, q and rank are those of the law, |O|^2 = c^2 q rank"

    def _open_branches(self) -> Iterator[str]:
        """Yield the branches that the formulas leave open, such as whether a clip acts."""
        branches = self.mean.step.facts.open_branches
        used = sp.Tuple(self.fourth_power, self.squared_effective_step).free_symbols
        for symbol in sorted(used & branches.keys(), key=str):
            (value, condition), (default, _) = branches[symbol].args
            yield f"{symbol} is {show(value)} where {show(condition)}, else {show(default)}"

    def __str__(self) -> str:
        return str(self.proposition())

    __repr__ = __str__


@lru_cache(maxsize=1024)  # a run asks for each of its weights
def _solve_fixed_point(
    equilibrium: Equilibrium,
    pairs: tuple[tuple[sp.Symbol, float], ...],
    shape: int | tuple[int, ...],
    gamma: float = 1.0,
) -> FixedPoint:
    """Return the point that the iteration reaches, starting with that of the formulas."""
    name, values = equilibrium.name, dict(pairs)
    missing = {*equilibrium.traced.symbolic.values()} - values.keys()
    if missing:
        raise ValueError(f"{name}: needs numbers for {', '.join(map(str, missing))}")
    verify_numbers(norm_growth(equilibrium.traced), values)
    entries = shape if isinstance(shape, int) else math.prod(shape)
    start = equilibrium.fourth_power.subs({**values, GAMMA: gamma, DIMENSION: entries})
    has_value = start.is_number and not start.has(OverlapSum) and start.is_positive
    norm = float(start) ** 0.25 if has_value and start.is_finite else 1.0
    try:
        return equilibrium.mean.fixed_point(values, shape, norm, gamma)
    except NoEquilibriumError as error:
        raise NoEquilibriumError(f"{name}: the norm does not settle: {error}") from error


def _root(x: sp.Expr, power: int) -> sp.Expr:
    """Return a root of a positive product, of its factors where they are squares themselves.

    The root of (1 - beta)^2 is 1 - beta, not beta - 1.
    """
    factors = [f.as_base_exp() for f in sp.Mul.make_args(normalize_signs(x))]
    numbers = [sp.sqrt(base**e) for base, e in factors if base.is_number]
    symbolic = [(base, e / 2) for base, e in factors if not base.is_number]
    is_square = all(n.is_Rational for n in numbers) and all(e.is_Integer for _, e in symbolic)
    if is_square and power > 1:
        square_root = sp.Mul(*numbers, *(base**e for base, e in symbolic))
        return _root(square_root, power // 2)
    return sp.root(x, power, evaluate=False) if power > 1 else x


def _shorten(expression: sp.Expr) -> Phrase:
    """Return a formula; in a long one, parts that occur twice have names."""
    if len(show(expression)) <= MAX_CHARACTERS:
        return expression
    used_names = {s.name for s in expression.free_symbols}
    numbered = (f"k{n}" for n in itertools.count(1))
    names = (sp.Symbol(name, positive=True) for name in numbered if name not in used_names)
    parts, (shortened,) = sp.cse(expression, symbols=names)
    definitions = enumerated(sp.Eq(name, part, evaluate=False) for name, part in parts)
    return (shortened, " with ", *definitions) if parts else shortened


def equilibrium(recipe: str | Recipe | Trace, **hyper_parameters: Any) -> Equilibrium:
    """Derive the norm and the effective step of a scale-invariant weight in equilibrium.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        **hyper_parameters: values at which hyper-parameters are fixed; eps=0.0 for preconditioned
            recipes, whose eps spoils the closed form.

    Raises:
        NoEquilibriumError: the recipe has no decay, keeps the norm constant, or its stationary
            point has no closed form.

    Example:
        >>> print(show(equilibrium("sgd", dampening=0.0).squared_effective_step))
        2 lr wd/(1 + beta)
    """
    traced = verified_trace(recipe, **hyper_parameters)
    try:
        return _equilibrium(traced)
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error


@cache
def mean_step(traced: Trace) -> MeanStep | HomogeneousStep:
    """Return the step under random gradients.

    Raises:
        NoEquilibriumError: it is neither along a direction of degree 0 nor linear in gradients.
    """
    return HomogeneousStep.of(_late_law(traced).step) or MeanStep(read_random_step(traced))


@cache
def _late_law(traced: Trace) -> NormLaw:
    """Return the law after many steps, with the numbers of the states that have settled.

    Raises:
        NoEquilibriumError: a state that evolves by itself never settles.
    """
    law, settled = norm_growth(traced), settle_own_states(traced)
    return derive_law(one_step(traced, settled=settled)) if settled else law


@cache
def _equilibrium(traced: Trace) -> Equilibrium:
    """Derive the equilibrium of a trace whose law agrees with its code."""
    name = traced.name
    if norm_growth(traced).sets_norm:
        raise NoEquilibriumError(f"{name}: the norm never changes")
    law = _late_law(traced)
    if law.kappa == 0 and law.cross == 0:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    mean = mean_step(traced)
    if isinstance(mean, MeanStep) and mean.second_moment is not None:
        stationary_gradient(mean)  # refuses a second moment of more than gradients
    refuse_other_decay(mean.step)
    fourth_power, squared_step = _attracting_point(mean, law.kappa)
    if fourth_power == 0 or fourth_power.has(sp.zoo, sp.oo, sp.nan):
        raise NoEquilibriumError(f"{name}: the norm does not settle")
    return Equilibrium(name, traced, fourth_power, squared_step, law.kappa, mean)


def _attracting_point(mean: MeanStep | HomogeneousStep, kappa: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """Return |w|^4 and the squared effective step of the stationary point that attracts.

    The iterated map reaches it at usual numbers and at several scales.

    Raises:
        NoEquilibriumError: there is none in closed form, or the step does not scale with the
            lengths of weight and gradients.
    """
    step, eps = mean.step, mean.step.traced.symbols.get("eps")
    # An open branch may be decided otherwise at another gamma.
    n_roots = 2 if step.facts.open_branches or _may_scale_with_gamma(mean) else 0
    for root in range(n_roots):
        if isinstance(mean, HomogeneousStep):
            point = stationary_along(mean)
        else:
            point = find_stationary_point(mean, drop_transients(kappa, step), root)
        numbers = step.traced.given_values
        if numbers:
            point = normalize_signs(point[0].subs(numbers)), normalize_signs(point[1].subs(numbers))
        if step.facts.open_branches.keys() & sp.Tuple(*point).free_symbols:
            return point if eps is None else (point[0].subs(eps, 0), point[1].subs(eps, 0))
        if _iteration_reaches(mean, point):
            _refuse_another_point(mean, point)
            return point
    vectors = (step.weight, *step.algebra.combinations.values())
    coefficients = sp.Tuple(*(c for vector in vectors for c in vector.values()))
    raise NoEquilibriumError(
        f"{step.traced.name}: the step does not scale with the lengths of weight and gradients, so "
        "that no one norm stands for all"
        f"{'; eps=0.0 holds it at 0' if eps in coefficients.free_symbols else ''}"
    )


def _may_scale_with_gamma(mean: MeanStep | HomogeneousStep) -> bool:
    """Return False if |w| is known to settle neither at one norm nor in proportion to sqrt(gamma).

    Numbers show it at once, whereas the formulas of such a step grow for minutes.
    """
    if isinstance(mean, HomogeneousStep):
        return True
    numbers = usual_values(mean.step.traced)
    with suppress(NoEquilibriumError):  # the formulas may name the cause
        at_one, at_three = (mean.fixed_point(numbers, 1, 1.0, gamma).norm for gamma in (1.0, 3.0))
        factors = (1, math.sqrt(3))
        return any(math.isclose(at_three, at_one * x, rel_tol=MAX_ERROR) for x in factors)
    return True


def _iteration_reaches(mean: MeanStep | HomogeneousStep, point: tuple[sp.Expr, sp.Expr]) -> bool:
    """Tell if the iterated map reaches |w|^4 and the squared step, at usual numbers and two scales.

    An orthogonal factor is compared as if it were a sign: the formula has its length and its
    overlap as symbols.
    """
    numbers = usual_values(mean.step.traced)
    return all(
        _distance_to_fixed_point(mean, point, numbers, gamma, entries) <= MAX_ERROR
        for gamma, entries in ((1.0, 1), (3.0, 5))
    )


def _distance_to_fixed_point(
    mean: MeanStep | HomogeneousStep,
    point: tuple[sp.Expr, sp.Expr],
    numbers: Mapping[sp.Symbol, float],
    gamma: float,
    entries: int,
) -> float:
    """Return the relative distance of a point to the one that the iterated map reaches.

    Raises:
        NoEquilibriumError: the map reaches none.
    """
    if isinstance(mean, HomogeneousStep):
        fixed = mean.fixed_point(numbers, entries, 1.0, gamma, arcsine_law)
    else:
        fixed = mean.fixed_point(numbers, entries, 1.0, gamma)
    values = {**numbers, GAMMA: gamma, DIMENSION: entries, SCALE: 1, SHARE: 1, RANK: entries}
    fourth_power, squared_step = (complex(x.subs(values)) for x in point)
    norm_error = abs(fourth_power / fixed.norm**4 - 1)
    error = max(norm_error, abs(squared_step / fixed.effective_step**2 - 1))
    return math.inf if math.isnan(error) else error


def _refuse_another_point(mean: MeanStep | HomogeneousStep, point: tuple[sp.Expr, sp.Expr]) -> None:
    """Refuse a closed form of another point than the one that attracts at the recipe's numbers.

    Raises:
        NoEquilibriumError: naming the numbers.
    """
    traced = mean.step.traced
    numbers = {**usual_values(traced), **default_values(traced)}
    with suppress(NoEquilibriumError):  # there is nothing to compare where no norm settles
        distance = _distance_to_fixed_point(mean, point, numbers, 1.0, 1)
        if distance > MAX_ERROR_AT_DEFAULTS:
            settings = ", ".join(f"{s}={x:g}" for s, x in numbers.items())
            raise DifferenceError(
                f"{traced.name}: the closed form is not the point at which the norm settles at "
                f"{settings}: it is off by {distance:.2g}; `equilibrium_turn` gives that point in "
                "numbers"
            )


def usual_values(traced: Trace) -> dict[sp.Symbol, float]:
    """Return numbers at which a norm settles soon, or the defaults if the recipe refuses them."""
    numbers = {}
    for name in traced.symbolic:
        low, high = traced.intervals[name].low, traced.intervals[name].high
        numbers[name] = 0.1 if low < 0 else low + 0.3 if math.isinf(high) else (low + high) / 2
    with suppress(ValueError):
        traced.build(numbers)
        return {symbol: numbers[name] for name, symbol in traced.symbolic.items()}
    return traced.free_values()


def without_eps(recipe: str | Recipe) -> dict[str, float]:
    """Return eps = 0 for a recipe with an eps, which spoils closed forms and is small."""
    return {"eps": 0.0} if "eps" in bind(recipe).defaults else {}


# The turn per step, and growth ratios


MAX_TURN_ERROR = 1e-6
"""Relative difference that rounding may leave between turns at other lengths.

Rounding moves a stationary point by 1e-15 over the decay of one step.
"""


def equilibrium_turn(
    recipe: str | Recipe, *, shape: Sequence[int] = (64, 64), **hyper_parameters: Any
) -> float:
    """Compute the turn per step of a scale-invariant weight after many steps of random gradients.

    A random gradient is orthogonal to the weight and uncorrelated with the momenta. In the mean a
    step then maps the products |w|^2, <w, m> and |m|^2 to functions of themselves, which the record
    of the recipe's code has; the map is iterated to its fixed point. A momentum remembers gradients
    of weights that the present one has turned away from, and so its steps point outwards, too: a
    hyperball with the momentum beta turns by less than arctan(lr),

        atan2(lr sin a, 1 - lr cos a),    c rho = beta (c - lr),    rho^2 = 1 - 2 lr c + lr^2,

    with the angle a between the direction and the weight, c = cos a. The mean field takes norms for
    their means: d is large. A step along a sign or an orthogonal factor is a sum over its past
    (`spherenorm_theory.equilibria.directions`). Iteration finds attracting points only.

    Args:
        recipe: name or function of the recipe.
        shape: shape of the weight, which matters to orthogonal factors only.
        **hyper_parameters: hyper-parameters of the recipe; an eps is taken as 0.

    Returns:
        The turn in radians.

    Raises:
        NoEquilibriumError: the step holds an operation that is not linear in the gradients,
            changes with the lengths of gradients or with the step count for ever, as each fifth
            step of `lookahead`, or its angles do not become stationary.
        TraceError: the recipe has no law, or its code takes another step at these numbers.
        ValueError: no such recipe or hyper-parameter, or the shape is not that of a matrix.

    Example:
        >>> round(equilibrium_turn("adamh", lr=0.1, betas=(0.0, 0.99)), 4)  # arctan(0.1)
        0.0997
        >>> round(equilibrium_turn("adamh", lr=0.1, betas=(0.9, 0.99)), 4)
        0.078
    """
    _check_shape(shape)
    numbers = {n: tuple(x) if isinstance(x, list) else x for n, x in hyper_parameters.items()}
    static = {**static_arguments_of_run(recipe, numbers), **without_eps(recipe)}
    traced = verified_trace(recipe, **static)
    return turn_of_trace(traced, traced.free_values(**numbers | static), shape)


def turn_of_trace(
    traced: Trace, values: Mapping[sp.Symbol, float], shape: Sequence[int] = (64, 64)
) -> float:
    """Return the stationary angle per step of a trace, as `equilibrium_turn` does for a recipe.

    Args:
        traced: the trace.
        values: numbers for its free symbols.
        shape: shape of the weight, which matters to orthogonal factors only.

    Raises:
        NoEquilibriumError: as for `equilibrium_turn`.
        TraceError: the code takes another step at these numbers.
    """
    try:
        verify_numbers(norm_growth(traced), values)
        step = mean_step(traced)
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error
    turns = [
        step.fixed_point(values, entries if isinstance(step, MeanStep) else shape, norm, gamma).turn
        for norm, gamma, entries in ((1.0, 1.0, 1), (2.0, 3.0, 5))
    ]
    if not math.isclose(*turns, rel_tol=MAX_TURN_ERROR):
        raise NoEquilibriumError(
            f"{traced.name}: the turn changes with the lengths of gradients or weight"
        )
    return turns[0]


def _check_shape(shape: Sequence[int]) -> None:
    """Refuse a shape that is not that of a matrix, or of a weight with more dimensions.

    Raises:
        ValueError: naming the shape.
    """
    is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in shape)
    if len(shape) < 2 or not is_whole:
        raise ValueError(
            f"shape must be two or more whole numbers of at least 1, got {tuple(shape)}"
        )


def rotational_rate(
    recipe: str | Recipe, *, shape: Sequence[int] = (64, 64), **hyper_parameters: Any
) -> Callable[[float], float]:
    """Return the learning rate of `rotational(recipe)` as a function of that of the recipe.

    The equilibrium that is derived from the recipe's code has an effective step e, the length of
    the chord from w / |w| to w' / |w'|. A step of `rotational` turns by arctan(rate) on average,
    and exactly without `zero_mean` and memory, so

        rate = tan(2 arcsin(e / 2)),    e = sqrt(2 lr weight_decay (1 - beta1) / (1 + beta1))

    for AdamW and a small lr. A schedule of the rate is then the function of one of lr.

    Args:
        recipe: name or function of the recipe.
        shape: shape of the weight, which matters to orthogonal factors only.
        **hyper_parameters: hyper-parameters of the recipe except lr, above all its weight decay.

    Raises:
        NoEquilibriumError: the recipe has no equilibrium, or none in closed form. The returned
            function raises it at an lr where the norm does not settle.

    Example:
        >>> rate = rotational_rate("sgd", weight_decay=0.1, momentum=0.9)
        >>> round(rate(0.1), 4), round(rate(0.05), 4)
        (0.103, 0.0727)

    Source: Kosson et al. 2024 (rotational equilibrium), Section 3.
    """
    _check_shape(shape)
    bound = bind(recipe, **hyper_parameters)
    fixed = {n: x for n, x in bound.hyper_parameters.items() if n != "lr" and x is not None}
    law = equilibrium(recipe, **{**fixed, **without_eps(recipe)})
    symbol = law.traced.symbols["lr"]

    def rate(lr: float) -> float:
        effective_step = law.effective_step({symbol: lr}, tuple(shape))
        if effective_step >= math.sqrt(2):
            raise NoEquilibriumError(f"{law.name}: at lr={lr:g} a step turns by a right angle")
        return math.tan(2 * math.asin(effective_step / 2))

    return rate


def growth_ratio(recipe: str | Recipe | Trace | NormLaw, **hyper_parameters: Any) -> sp.Expr:
    """Return (|w'|^2 - (1 - kappa)^2 |w|^2) / |s|^2 after many steps of random gradients.

    It is the factor by which momentum multiplies the growth that the steps alone bring: 1 for a
    projected recipe, (1 + beta) / (1 - beta) for SGD with momentum (Corollary 2.3). It is one
    number if the recursion of <w, s> has no norm but |s|^2. Coupled decay has no such number: it
    enters the momentum, <w, s> has a multiple of |w|^2, and the ratio is a function of
    |w|^2 / |s|^2, both means.

    Args:
        recipe: a recipe, its registered name, "module:function", a trace, or a law.
        **hyper_parameters: values at which hyper-parameters are fixed.

    Raises:
        NoEquilibriumError: the products of the buffers have no closed form.

    Example:
        >>> print(show(growth_ratio("sgd", weight_decay=0.0)))
        (1 + beta)/(1 - beta)
    """
    law = recipe if isinstance(recipe, NormLaw) else norm_growth(recipe, **hyper_parameters)
    if law.sets_norm:
        return sp.S.Zero
    if law.cross == 0:
        return sp.S.One
    late_law = _late_law(law.step.traced)
    retention, cross = (
        drop_transients(x, late_law.step) for x in (1 - late_law.kappa, late_law.cross)
    )
    stationary = stationary_momenta(law)
    relative_cross = cross.subs(stationary) / S.subs(stationary)
    return normalize_signs(sp.cancel(1 + 2 * retention * relative_cross))


def stationary_momenta(law: NormLaw) -> dict[sp.Expr, sp.Expr]:
    """Return the stationary products of the momenta and |g|^2, or |s|^2; see `find_momenta`.

    Raises:
        NoEquilibriumError: they have no closed form.
    """
    mean = MeanStep(read_random_step(law.step.traced))
    late_law = _late_law(law.step.traced)
    return find_momenta(mean, drop_transients(late_law.kappa, late_law.step))
