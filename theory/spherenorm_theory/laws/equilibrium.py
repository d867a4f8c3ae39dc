"""Equilibria: the norm at which decay and growth balance under random gradients, and the turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import sympy as sp

from spherenorm import Recipe, bind
from spherenorm.rules import SameLength
from spherenorm_theory.algebra import (
    DIMENSION,
    Claim,
    GrowthError,
    Hypothesis,
    Inner,
    Kind,
    Norm,
    Trace,
    Vector,
    normalize_signs,
    show,
    tidy,
    trace,
    words,
)
from spherenorm_theory.laws.kernels import Directed, stationary_along
from spherenorm_theory.laws.law import norm_growth
from spherenorm_theory.laws.mean_field import (
    MeanStep,
    NoEquilibriumError,
    drop_transients,
    find_second_moment,
    find_stationary_point,
    read_random_step,
    refuse_opaque,
    resting_gradient,
)
from spherenorm_theory.laws.proposition import paragraph, wrapped
from spherenorm_theory.laws.stationary import Stationary
from spherenorm_theory.laws.step import GAMMA, Step

AGREE = 1e-7
"""The relative difference of the closed form and the iterated map, where both are one point."""
TURN = sp.Symbol("turn", positive=True)
"""The chord |w'/|w'| - w/|w||, for a small step the angle in radians."""


@dataclass(frozen=True, eq=False)
class Equilibrium(Stationary):
    """The stationary point of the one-step recursion of |w|^2, <w, m> and |m|^2.

    Gradients are random: each has norm gamma / |w|, is orthogonal to its weight and uncorrelated
    with the momentum. An entrywise second moment is replaced by its mean over the entries, d of
    them, and bias corrections have died out.

    The attributes are those of `spherenorm_theory.laws.Stationary`.

    Example:
        >>> print(show(equilibrium("sgd", momentum=0.0, dampening=0.0, lr=0.5).fourth_power))
        gamma^2/(wd (4 - wd))
    """

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The facts that the formulas take for granted."""
        random = (
            "|g_t| = gamma / |w_t|" if self.fourth_power.has(GAMMA) else "gradients of any length"
        )
        momenta = ", ".join(m for m in self.step.buffers if m in self.step.states)
        forgets = f", and {momenta} forgets before the weight turns" if momenta else ""
        forgets = forgets if self.directed is None else ""
        lines: list[Hypothesis] = [
            sp.Eq(Inner("w", "g"), 0, evaluate=False),
            f"gradients are random and uncorrelated with the momenta, {random}",
            f"products are replaced by their means: d is large{forgets}",
        ]
        moment = find_second_moment(self.step)
        if moment is not None and sp.sympify(self.step.states[moment.name]).has(DIMENSION):
            lines.append(f"the second moment {moment} is at its mean in every entry, eps = 0")
        if self.directed is not None and self.directed.is_sign:
            lines.append("entries are Gaussian: signs of correlation rho have 2 asin(rho) / pi")
        elif self.directed is not None:
            lines.append("entries are Gaussian: factors of correlation rho have F(rho), measured")
        if self.directed is not None and isinstance(
            self.step.algebra.opaque[self.directed.atom].function, SameLength
        ):
            lines.append("rows have the mean of their lengths")
        return (*lines, *self.step.facts.hypotheses)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The two formulas, with their hypotheses."""
        pairs = {"the norm": (Norm("w") ** 4, self.fourth_power),
                 "the turn": (TURN**2, self.squared_rotation)}  # fmt: skip
        return tuple(
            Claim(about, sp.Eq(left, right, evaluate=False), Kind.MEAN_FIELD,
                  {left: right}, under=self.hypotheses)
            for about, (left, right) in pairs.items()
        )  # fmt: skip

    @property
    def status(self) -> str:
        """The kind of its derivation."""
        return (
            "derived in the mean field; it attracts at the numbers that are asked for, or a "
            "refusal says so"
        )

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

    def formulas(self) -> dict[str, str]:
        """|w| and the turn for small lr, where they have such a form, then |w|^4 and turn^2."""
        return {show(left): text for left, text in self._lines()}

    @property
    def _powers(self) -> dict[sp.Expr, tuple[sp.Expr, int]]:
        return {Norm("w"): (self.fourth_power, 4), TURN: (self.squared_rotation, 2)}

    @property
    def approximations(self) -> dict[sp.Expr, sp.Expr]:
        """|w| and the turn for small lr, where they are no exact leading terms themselves."""
        exact = {x: pair for x, pair in self._powers.items() if pair[0].is_rational_function()}
        leading = {x: (self.leading(whole), n) for x, (whole, n) in exact.items()}
        return {x: _root(first, n) for x, (first, n) in leading.items() if first != exact[x][0]}

    def _lines(self) -> Iterator[tuple[sp.Expr, str]]:
        for left, root in self.approximations.items():
            yield left, f"{show(root)} for small lr"
        for left, (exact, power) in self._powers.items():
            yield left**power, shorten(exact)

    def __str__(self) -> str:
        assumed = "; ".join(map(words, self.hypotheses))
        lines = [f"Equilibrium ({self.name})", paragraph("Assume", f"{assumed}.")]
        shown = [f"{show(left)} {'~' if 'small lr' in text else '='} {text}"
                 for left, text in self._lines()]  # fmt: skip
        lines += ["Then.", *(line for each in shown for line in wrapped(each))]
        lines += [paragraph("Where", f"{case}.") for case in self.open]
        return "\n".join([*lines, paragraph("Status", f"{self.status}.")])

    __repr__ = __str__


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


LONG = 120
"""Characters of a formula beyond which its repeated parts get names."""


def shorten(expression: sp.Expr) -> str:
    """A formula in text; in a long one the parts that occur twice have names."""
    if len(show(expression)) <= LONG:
        return show(expression)
    names = (sp.Symbol(f"k{n}") for n in itertools.count(1))
    parts, (whole,) = sp.cse(expression, symbols=names)
    where = ", ".join(f"{name} = {show(part)}" for name, part in parts)
    return f"{show(whole)} with {where}" if where else show(whole)


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
    traced = trace(recipe, **given)
    try:
        found = _general_or_held(traced)
    except GrowthError as error:
        raise NoEquilibriumError(f"{traced.name}: {error}") from error
    if not traced.given:
        return found
    return replace(
        found,
        traced=traced,
        fourth_power=normalize_signs(found.fourth_power.subs(traced.given)),
        squared_rotation=normalize_signs(found.squared_rotation.subs(traced.given)),
        step=replace(found.step, traced=traced),
        kappa=found.kappa.subs(traced.given),
    )


def _general_or_held(traced: Trace) -> Equilibrium:
    """The equilibrium for all numbers, or where its formulas grow too long, for those given."""
    if not traced.given:
        return _equilibrium(traced)
    try:
        return _equilibrium(_general(traced))
    except (GrowthError, NoEquilibriumError) as error:
        if not isinstance(error.__cause__ or error, GrowthError):
            raise
        return _equilibrium(traced)


_generals: dict[tuple[Any, ...], Trace] = {}


def _general(traced: Trace) -> Trace:
    """The trace with symbols in place of the numbers that were given, one for all numbers."""
    kept = {n: x for n, x in traced.hyper_parameters.items() if n in traced.structure}
    given = {str(s) for s in traced.given}
    kept = {n: x for n, x in kept.items() if n not in given}
    key = (traced.recipe, tuple(sorted(kept.items(), key=str)), tuple(traced.symbols))
    return _generals.setdefault(key, replace(traced, given={}))


@cache
def _equilibrium(traced: Trace) -> Equilibrium:
    law = norm_growth(traced)
    if law.constant:
        raise NoEquilibriumError(f"{traced.name}: the norm never changes")
    if law.kappa == 0 and law.cross == 0:
        raise NoEquilibriumError(f"{traced.name}: without decay the norm does not settle")
    directed = Directed.of(law.step)
    step = read_random_step(traced)
    if directed is not None:
        fourth, rotation = stationary_along(directed)
        return Equilibrium(traced.name, traced, fourth, rotation, law.kappa, step, directed)
    refuse_opaque(step)
    if (moment := find_second_moment(step)) is not None:
        resting_gradient(step, moment)  # which refuses a moment of more than gradients
    _refuse_other_decay(step)
    fourth, rotation = _attracting_point(step, law.kappa)
    if fourth == 0 or fourth.has(sp.zoo, sp.oo, sp.nan):
        raise NoEquilibriumError(f"{traced.name}: the norm does not settle")
    cases = tuple(_cases(step, fourth, rotation))
    return Equilibrium(traced.name, traced, fourth, rotation, law.kappa, step, None, cases)


def _attracting_point(step: Step, kappa: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """The stationary point that the iterated map comes to, at usual numbers and several scales.

    Raises:
        NoEquilibriumError: there is none in closed form, or the step does not scale with the
            lengths of weight and gradients.
    """
    kappa, tried = drop_transients(kappa, step), []
    for index in range(2):
        asked: list[int] = []

        def choose(roots: list[sp.Expr], index: int = index, asked: list[int] = asked) -> sp.Expr:
            asked.append(len(roots))
            return roots[index % len(roots)]

        point = find_stationary_point(step, kappa, choose)
        if step.facts.cases.keys() & sp.Tuple(*point).free_symbols:
            return point
        try:
            off = _distance(step, point)
        except NoEquilibriumError:
            if not asked:
                raise
            off = math.inf
        if off <= AGREE:
            return point
        tried.append(off)
        if not asked:
            break
    raise NoEquilibriumError(
        f"{step.traced.name}: the step does not scale with the lengths of weight and gradients, so "
        f"that no one norm stands for all{_advice(step)}"
    )


def _advice(step: Step) -> str:
    eps = step.traced.symbols.get("eps")
    used = [*step.weight.values(), *(c for x in step.algebra.named.values() for c in x.values())]
    return "; eps=0.0 holds it at 0" if eps in sp.Tuple(*used).free_symbols else ""


def _distance(step: Step, point: tuple[sp.Expr, sp.Expr]) -> float:
    """The relative difference of a point and the iterated map, at usual numbers and two scales."""
    numbers, off, follow = usual_values(step.traced), [], MeanStep.of(step)
    for gamma, entries in ((1.0, 1.0), (3.0, 5.0)):
        rest = follow.rest(numbers, 1.0, gamma, entries)
        known = {**numbers, GAMMA: gamma, DIMENSION: entries}
        fourth, squared = (complex(x.subs(known)) for x in point)
        chord = 2 * math.sin(rest.turn / 2)
        off += [abs(fourth / rest.norm**4 - 1), abs(squared / chord**2 - 1)]
    return max(off) if np.isfinite(off).all() else math.inf


def usual_values(traced: Trace) -> dict[sp.Symbol, float]:
    """Numbers at which a norm settles soon: momenta of 1/2, and all else at 1/10."""
    numbers = {}
    for name, symbol in traced.symbols.items():
        if symbol in traced.given:
            continue
        interval = traced.intervals[name]
        inside = (interval.low, interval.high) == (0, 1)
        numbers[symbol] = 0.5 if inside else 0.3 if interval.low >= 0 else 0.1
    return numbers


def _refuse_other_decay(step: Step) -> None:
    """Refuse a step that leaves the weight its length, or takes a share that changes with it.

    A projection acts on the products of the weight with other vectors; decay on the weight itself.
    """
    name, kept = step.traced.name, step.algebra.spread(step.weight)["w"]
    products = {s: 0 for s in kept.free_symbols if isinstance(s, Inner) and "w" in (s.a, s.b)}
    kept = drop_transients(tidy(step.algebra.expand(kept).subs(products)), step)
    enters = any(
        isinstance(x, Vector) and step.algebra.spread(x)["w"].subs(products) != 0
        for x in step.states.values()
    )
    if kept == 1 and not enters:
        raise NoEquilibriumError(f"{name}: without decay the norm does not settle")
    named = {*step.facts.cases, *step.traced.symbols.values()}
    fixed = {*named, *step.scalars.values(), DIMENSION}
    if lengths := sorted(show(s) for s in kept.free_symbols - fixed):
        raise NoEquilibriumError(
            f"{name}: the decay is no fixed share of the weight, it changes with "
            f"{', '.join(lengths)}; such a norm has no closed form"
        )


def _cases(step: Step, *formulas: sp.Expr) -> Iterator[str]:
    """The meanings of the names of open cases in `formulas`."""
    for name in sorted(sp.Tuple(*formulas).free_symbols & {*step.facts.cases}, key=str):
        case = step.facts.cases[name]
        if len(case.args) != 2:
            yield f"{name} is {show(case)}"
            continue
        (first, condition), (second, _) = case.args
        yield f"{name} is {show(first)} where {show(condition)}, else {show(second)}"


def without_eps(recipe: str | Recipe) -> dict[str, float]:
    """eps at 0, where a recipe has one: it spoils closed forms, and is small beside a moment."""
    return {"eps": 0.0} if "eps" in bind(recipe).defaults else {}


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
        chord = law.rotation({symbol: lr}, shape)
        if chord >= math.sqrt(2):
            raise NoEquilibriumError(f"{law.name}: at lr={lr:g} a step turns by a right angle")
        return math.tan(2 * math.asin(chord / 2))

    return rate
