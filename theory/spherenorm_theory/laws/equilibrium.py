"""Equilibria: the norm at which decay and growth balance under random gradients, and the turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm.rules import Graft
from spherenorm_theory.algebra.claims import Hypothesis
from spherenorm_theory.algebra.letters import RANK, SCALE, SHARE
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.statement import Part, Phrase, Statement, enumerated, pieces, words
from spherenorm_theory.algebra.symbols import (
    DIMENSION,
    GrowthError,
    Inner,
    Norm,
    normalize_signs,
)
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.laws.balance import (
    find_stationary_point,
    refuse_other_decay,
    resting_gradient,
)
from spherenorm_theory.laws.kernels import Directed, OverlapSum, arcsine_law, stationary_along
from spherenorm_theory.laws.law import norm_growth, verified_trace
from spherenorm_theory.laws.mean_field import (
    MeanStep,
    NoEquilibriumError,
    Rest,
    drop_transients,
    read_random_step,
)
from spherenorm_theory.laws.step import GAMMA
from spherenorm_theory.laws.verify import DifferenceError, own_values, verify_numbers

AGREE = 1e-7
"""The relative difference of the closed form and the iterated map, where both are one point."""
AGREE_AT_OWN_NUMBERS = 1e-4
"""The same at the recipe's own numbers, where a small decay makes a point less exact."""
TURN = sp.Symbol("turn", positive=True)
"""The chord |w'/|w'| - w/|w||, for a small step the angle in radians."""
Shape = int | tuple[int, ...]
"""The entries of a unit, or the shape of the weight, which an orthogonal factor needs."""
LONG = 120
"""Characters of a formula beyond which its repeated parts get names."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """The stationary point of the one-step recursion of |w|^2, <w, m> and |m|^2.

    Gradients are random: each has norm gamma / |w|, is orthogonal to its weight and uncorrelated
    with the momentum. An entrywise second moment is replaced by its mean over the entries, d of
    them, and bias corrections have died out.

    Attributes:
        name, traced: the recipe's name and trace.
        fourth_power: |w|^4, in gamma or d and the hyper-parameters.
        squared_rotation: the squared effective step |w'/|w'| - w/|w||^2 = |w' - w|^2 / |w|^2; for a
            small step, the squared angle in radians.
        kappa: the decay of one step.
        mean: the step in the mean field, or as one along a sign or an orthogonal factor.

    Example:
        >>> print(show(equilibrium("sgd", momentum=0.0, dampening=0.0, lr=0.5).fourth_power))
        gamma^2/(wd (4 - wd))
    """

    name: str
    traced: Trace
    fourth_power: sp.Expr
    squared_rotation: sp.Expr
    kappa: sp.Expr
    mean: MeanStep | Directed

    @property
    def factor(self) -> Directed | None:
        """The step, where it is one along an orthogonal factor."""
        along = isinstance(self.mean, Directed) and not self.mean.is_sign
        return self.mean if along else None  # type: ignore[return-value]

    def squared_norm(
        self, values: Mapping[sp.Symbol, float], shape: Shape, gamma: float = 1.0
    ) -> float:
        """|w|^2 in numbers.

        Args:
            values: the hyper-parameters.
            shape: d, the entries of a unit; of an orthogonal factor, the shape of the matrix.
            gamma: the root mean square of |w| |g|.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
            TraceError: the code takes another step at these numbers.
        """
        return _rest_of(self, tuple(values.items()), shape, gamma).norm ** 2

    def rotation(self, values: Mapping[sp.Symbol, float], shape: Shape = (64, 64)) -> float:
        """The effective step in numbers, at hyper-parameters `values`.

        Args:
            values: the hyper-parameters.
            shape: of the weight, which matters to orthogonal factors alone.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
            TraceError: the code takes another step at these numbers.
        """
        return _rest_of(self, tuple(values.items()), shape).chord

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The facts that the formulas take for granted."""
        step, mean = self.mean.step, self.mean
        length = (
            "|g_t| = gamma / |w_t|" if self.fourth_power.has(GAMMA) else "gradients of any length"
        )
        momenta = ", ".join(m for m in step.buffers if m in step.states)
        forgets = f", and {momenta} forgets before the weight turns"
        forgets = forgets if momenta and isinstance(mean, MeanStep) else ""
        lines: list[Hypothesis] = [
            sp.Eq(Inner("w", "g"), 0, evaluate=False),
            f"gradients are random and uncorrelated with the momenta, {length}",
            f"products are replaced by their means: d is large{forgets}",
        ]
        if isinstance(mean, Directed):
            kind, overlap = "factors", "F(rho), measured"
            if mean.is_sign:
                kind, overlap = "signs", "2 asin(rho) / pi"
            lines.append(f"entries are Gaussian: {kind} of correlation rho have {overlap}")
            if isinstance(step.algebra.opaque[mean.atom].rule, Graft):
                lines.append("rows have the mean of their lengths")
        elif (moment := mean.second_moment) and sp.sympify(step.states[moment.name]).has(DIMENSION):
            lines.append(f"the second moment {moment} is at its mean in every entry, eps = 0")
        return (*lines, *step.facts.hypotheses)

    def leading(self, expression: sp.Expr, small: str = "lr") -> sp.Expr:
        """The leading term of a rational expression for a small hyper-parameter.

        Raises:
            ValueError: the expression is not rational in it.
        """
        symbol = self.traced.symbols.get(small, sp.Symbol(small, positive=True))
        if not expression.is_rational_function(symbol):
            raise ValueError(
                f"{self.name}: an expression with a root of {small} in it has no leading term here"
            )
        parts = sp.fraction(sp.cancel(expression))
        ((low,), a), ((high,), b) = (sp.Poly(part, symbol).terms()[-1] for part in parts)
        return normalize_signs(a / b * symbol ** (low - high))

    @property
    def approximations(self) -> dict[sp.Expr, sp.Expr]:
        """|w| and the turn for small lr, where they are no exact leading terms themselves."""
        found = {}
        for left, whole, power in _powers(self):
            if whole.is_rational_function() and (first := self.leading(whole)) != whole:
                found[left] = _root(first, power)
        return found

    @property
    def lines(self) -> dict[sp.Expr, Phrase]:
        """|w| and the turn for small lr, where they have such a form, then |w|^4 and turn^2."""
        lr = self.traced.symbols.get("lr", sp.Symbol("lr"))
        small = {x: (root, " for small ", lr) for x, root in self.approximations.items()}
        return {**small, **{x**power: _shorten(whole) for x, whole, power in _powers(self)}}

    def formulas(self) -> dict[str, str]:
        """The same in text."""
        return {show(left): words(right) for left, right in self.lines.items()}

    def proposition(self) -> Statement:
        """The equilibrium as a paper states it."""
        small = self.approximations
        then = [
            (left, " ~ " if left in small else " = ", *pieces(right))
            for left, right in self.lines.items()
        ]
        status = (
            "derived in the mean field; it attracts at the numbers that are asked for, or a "
            "refusal says so"
        )
        parts = [Part("Assume", self.hypotheses), Part("Then", tuple(then), True)]
        parts += [Part("Where", (case,)) for case in self._cases()]
        return Statement("Equilibrium", self.name, (*parts, Part("Status", (status,))))

    def _cases(self) -> Iterator[str]:
        """The cases that the formulas leave open, such as whether a clip acts at the point."""
        cases = self.mean.step.facts.cases
        found = sp.Tuple(self.fourth_power, self.squared_rotation).free_symbols
        for name in sorted(found & cases.keys(), key=str):
            (first, condition), (second, _) = cases[name].args
            yield f"{name} is {show(first)} where {show(condition)}, else {show(second)}"

    def __str__(self) -> str:
        return str(self.proposition())

    __repr__ = __str__


def _powers(law: Equilibrium) -> list[tuple[sp.Expr, sp.Expr, int]]:
    return [(Norm("w"), law.fourth_power, 4), (TURN, law.squared_rotation, 2)]


@lru_cache(maxsize=1024)  # a run asks for each of its weights
def _rest_of(
    law: Equilibrium,
    pairs: tuple[tuple[sp.Symbol, float], ...],
    shape: int | tuple[int, ...],
    gamma: float = 1.0,
) -> Rest:
    """The point that iterating comes to, from the one of the formulas."""
    values = dict(pairs)
    if lacking := {*law.traced.free.values()} - values.keys():
        raise ValueError(f"{law.name}: needs numbers for {', '.join(map(str, lacking))}")
    verify_numbers(norm_growth(law.traced), values)
    entries = shape if isinstance(shape, int) else math.prod(shape)
    start = law.fourth_power.subs({**values, GAMMA: gamma, DIMENSION: entries})
    known = start.is_number and not start.has(OverlapSum) and start.is_positive
    norm = float(start) ** 0.25 if known and start.is_finite else 1.0
    try:
        return law.mean.rest(values, shape, norm, gamma)
    except NoEquilibriumError as error:
        raise NoEquilibriumError(f"{law.name}: the norm does not settle: {error}") from error


def _root(x: sp.Expr, power: int) -> sp.Expr:
    """A root of a positive product, taken of its factors where they are squares themselves."""
    # (1 - beta)^2, of which the root is the base: not (beta - 1)^2.
    factors = [f.as_base_exp() for f in sp.Mul.make_args(normalize_signs(x))]
    numbers = [sp.sqrt(base**e) for base, e in factors if base.is_number]
    whole = all(n.is_Rational for n in numbers) and all(
        (e / 2).is_Integer for base, e in factors if not base.is_number
    )
    if whole and power > 1:
        half = sp.Mul(*numbers, *(b ** (e / 2) for b, e in factors if not b.is_number))
        return _root(half, power // 2)
    return sp.root(x, power, evaluate=False) if power > 1 else x


def _shorten(expression: sp.Expr) -> Phrase:
    """A formula; in a long one the parts that occur twice have names."""
    if len(show(expression)) <= LONG:
        return expression
    used_names = {s.name for s in expression.free_symbols}
    numbered = (f"k{n}" for n in itertools.count(1))
    names = (sp.Symbol(name, positive=True) for name in numbered if name not in used_names)
    parts, (whole,) = sp.cse(expression, symbols=names)
    where = enumerated(sp.Eq(name, part, evaluate=False) for name, part in parts)
    return (whole, " with ", *where) if parts else whole


def equilibrium(recipe: str | Recipe | Trace, **given: Any) -> Equilibrium:
    """The norm and the rotation per step of a scale-invariant weight in equilibrium.

    Args:
        recipe: as for `norm_growth`.
        given: hyper-parameters to hold at a value; eps=0.0 for preconditioned recipes, whose eps
            spoils the closed form.

    Raises:
        NoEquilibriumError: the recipe has no decay, keeps the norm constant, or its stationary
            point has no closed form.

    Example:
        >>> print(show(equilibrium("sgd", dampening=0.0).squared_rotation))
        2 lr wd/(1 + beta)
    """
    traced = verified_trace(recipe, **given)
    try:
        return _equilibrium(traced)
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error


@cache
def mean_step(traced: Trace) -> MeanStep | Directed:
    """The step under random gradients: along a direction of degree 0, or linear in gradients.

    Raises:
        NoEquilibriumError: it is neither.
    """
    return Directed.of(norm_growth(traced).step) or MeanStep(read_random_step(traced))


@cache
def _equilibrium(traced: Trace) -> Equilibrium:
    law, name = norm_growth(traced), traced.name
    if law.constant:
        raise NoEquilibriumError(f"{name}: the norm never changes")
    if law.kappa == 0 and law.cross == 0:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    mean = mean_step(traced)
    if isinstance(mean, MeanStep) and mean.second_moment is not None:
        resting_gradient(mean)  # which refuses a moment of more than gradients
    refuse_other_decay(mean.step)
    fourth, rotation = _attracting_point(mean, law.kappa)
    if fourth == 0 or fourth.has(sp.zoo, sp.oo, sp.nan):
        raise NoEquilibriumError(f"{name}: the norm does not settle")
    return Equilibrium(name, traced, fourth, rotation, law.kappa, mean)


def _attracting_point(mean: MeanStep | Directed, kappa: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """The stationary point that the iterated map comes to, at usual numbers and several scales.

    Raises:
        NoEquilibriumError: there is none in closed form, or the step does not scale with the
            lengths of weight and gradients.
    """
    step, eps = mean.step, mean.step.traced.symbols.get("eps")
    # An open case may be another one at another gamma.
    for root in range(2 if step.facts.cases or _scales(mean) else 0):
        if isinstance(mean, Directed):
            found = stationary_along(mean)
        else:
            found = find_stationary_point(mean, drop_transients(kappa, step), root)
        given = step.traced.given
        point = tuple(normalize_signs(x.subs(given)) if given else x for x in found)
        if step.facts.cases.keys() & sp.Tuple(*point).free_symbols:
            return point if eps is None else (point[0].subs(eps, 0), point[1].subs(eps, 0))
        if _is_at_rest(mean, point):
            _refuse_another_point(mean, point)
            return point
    named = step.algebra.named.values()
    used = [*step.weight.values(), *(c for x in named for c in x.values())]
    advice = "; eps=0.0 holds it at 0" if eps in sp.Tuple(*used).free_symbols else ""
    raise NoEquilibriumError(
        f"{step.traced.name}: the step does not scale with the lengths of weight and gradients, so "
        f"that no one norm stands for all{advice}"
    )


def _scales(mean: MeanStep | Directed) -> bool:
    """False if |w| at rest is known to be neither fixed nor a multiple of sqrt(gamma).

    Numbers tell at once; the formulas of such a step grow for minutes.
    """
    if isinstance(mean, Directed):
        return True
    numbers = usual_values(mean.step.traced)
    with suppress(NoEquilibriumError):  # of which the formulas may name the cause
        one, three = (mean.rest(numbers, 1, 1.0, gamma).norm for gamma in (1.0, 3.0))
        return any(math.isclose(three, one * x, rel_tol=AGREE) for x in (1, math.sqrt(3)))
    return True


def _is_at_rest(mean: MeanStep | Directed, point: tuple[sp.Expr, sp.Expr]) -> bool:
    """Tell if the iterated map comes to a point, at usual numbers and two scales.

    Of an orthogonal factor, as if it were a sign: the formula holds its length and its overlap as
    symbols.
    """
    numbers = usual_values(mean.step.traced)
    return all(
        _distance_to_rest(mean, point, numbers, gamma, entries) <= AGREE
        for gamma, entries in ((1.0, 1), (3.0, 5))
    )


def _distance_to_rest(
    mean: MeanStep | Directed,
    point: tuple[sp.Expr, sp.Expr],
    numbers: Mapping[sp.Symbol, float],
    gamma: float,
    entries: int,
) -> float:
    """Return the relative distance of a point to the one that the iterated map comes to.

    Raises:
        NoEquilibriumError: the map comes to none.
    """
    if isinstance(mean, Directed):
        rest = mean.rest(numbers, entries, 1.0, gamma, arcsine_law)
    else:
        rest = mean.rest(numbers, entries, 1.0, gamma)
    known = {**numbers, GAMMA: gamma, DIMENSION: entries, SCALE: 1, SHARE: 1, RANK: entries}
    fourth, squared = (complex(x.subs(known)) for x in point)
    off = max(abs(fourth / rest.norm**4 - 1), abs(squared / rest.chord**2 - 1))
    return math.inf if math.isnan(off) else off


def _refuse_another_point(mean: MeanStep | Directed, point: tuple[sp.Expr, sp.Expr]) -> None:
    """Refuse a closed form of another point than the one that attracts at the recipe's numbers.

    Raises:
        NoEquilibriumError: naming the numbers.
    """
    traced = mean.step.traced
    numbers = {**usual_values(traced), **own_values(traced)}
    with suppress(NoEquilibriumError):  # where no norm settles, a formula is of no point
        distance = _distance_to_rest(mean, point, numbers, 1.0, 1)
        if distance > AGREE_AT_OWN_NUMBERS:
            shown = ", ".join(f"{s}={x:g}" for s, x in numbers.items())
            raise DifferenceError(
                f"{traced.name}: the closed form is not the point at which the norm settles at "
                f"{shown}: it is off by {distance:.2g}; `turn_at_rest` gives that point in numbers"
            )


def usual_values(traced: Trace) -> dict[sp.Symbol, float]:
    """Numbers at which a norm settles soon, or the defaults if the recipe refuses them together."""
    numbers = {}
    for name in traced.free:
        low, high = traced.intervals[name].low, traced.intervals[name].high
        numbers[name] = 0.1 if low < 0 else low + 0.3 if math.isinf(high) else (low + high) / 2
    with suppress(ValueError):
        traced.build(numbers)
        return {symbol: numbers[name] for name, symbol in traced.free.items()}
    return traced.values()


def without_eps(recipe: str | Recipe) -> dict[str, float]:
    """eps at 0, where a recipe has one: it spoils closed forms, and is small beside a moment."""
    return {"eps": 0.0} if "eps" in bind(recipe).defaults else {}
