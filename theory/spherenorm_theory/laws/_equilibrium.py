"""The laws of many steps under random gradients.

Equilibria: the norm at which decay and growth balance, the rotation per step there, and the rate at
which `rotational(recipe)` turns so. Growth ratios: the norm's growth relative to that of the steps
by themselves.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import sympy as sp
from sympy.solvers.solveset import NonlinearError

from spherenorm import Recipe, bind
from spherenorm_theory.algebra import (
    DIMENSION,
    BudgetError,
    Trace,
    budget,
    normalize_signs,
    resolve_recipe,
    show,
    symbol_of,
    tidy,
    trace,
)
from spherenorm_theory.laws._homogeneity import NoEquilibriumError
from spherenorm_theory.laws._norm_growth import NormGrowth, norm_growth
from spherenorm_theory.laws._one_step import OneStep
from spherenorm_theory.laws._quantities import GAMMA, S, W
from spherenorm_theory.laws._stationary import (
    ArcsineSum,
    drop_transients,
    find_second_moment,
    find_stationary_buffers,
    find_stationary_point,
    read_mean_field_step,
)

FEWEST = 16
"""The entries of a unit from which on second moments and signs have a bound.

AdamW's effective step at d = 2 and beta2 = 0.5 was off by 136 % in float64 runs.
"""


def error_bound(
    momenta: Sequence[float], moments: Sequence[float], dimension: int, signed: bool = False
) -> float:
    """The relative error of |w| and of the effective step that may be left.

    Args:
        momenta: the share of itself that each momentum keeps in a step.
        moments: the same of each second moment of entries.
        dimension: d, the entries of a unit.
        signed: the step is along the sign of a momentum.

    Returns:
        The error; infinite where no bound was found, see `FEWEST`.
    """
    if (moments or signed) and dimension < FEWEST:
        return math.inf
    memory = max((1 / (1 - share) for share in momenta), default=1.0)
    variance = sum((1 - share) / (1 + share) for share in moments)
    return (1 + memory / 20) / dimension + variance


def list_mean_field_hypotheses(
    momenta: Sequence[sp.Expr], moments: Sequence[sp.Expr], signed: bool = False
) -> tuple[str, ...]:
    """The facts that the mean recursion takes for granted, in text.

    Args:
        momenta, moments, signed: as for `error_bound`, as formulas.
    """
    kept, averaged = (", ".join(map(show, shares)) for shares in (momenta, moments))
    large = "the mean of the step is that of its products: d is large"
    waits = bool(kept) and not signed
    forgets = f", and the momentum ({kept}) forgets before the weight turns" if waits else ""
    longest = f"max({kept})" if len(momenta) > 1 else kept
    bound = f"(1 + 1/(20 (1 - {longest})))/d" if kept else "21/(20 d)"
    bound += f" + (1 - {averaged})/(1 + {averaged})" if averaged else ""
    fewest = f" for d >= {FEWEST}" if averaged or signed else ""
    of_signs = (
        "the entries of gradients are Gaussian: signs of correlation rho have 2 asin(rho) / pi; "
        "ArcsineSum(a, r, b) is the sum of a^k asin(r b^(k-1)) over k >= 1"
    )
    return (
        "gradients are random: |g| = gamma / |w|, <w,g> = 0, and no momentum is correlated "
        "with them",
        large + forgets,
        *([f"the second moment ({averaged}) is at its mean in every entry"] if averaged else []),
        *([of_signs] if signed else []),
        f"|w| and the effective step are off by {bound} at most{fewest}, as measured",
        "the two formulas are positive: elsewhere the norm does not settle",
        "the step scales with the lengths of weight and gradients (checked)",
    )


@dataclass(frozen=True)
class Equilibrium:
    """The stationary point of the one-step recursion of |w|^2, <w, m> and |m|^2.

    Gradients are random: each has norm gamma / |w|, is orthogonal to its weight and uncorrelated
    with the momentum. An entrywise second moment is replaced by its mean over the entries, d of
    them, and bias corrections have died out.

    Attributes:
        name, traced: the recipe's name and trace.
        fourth_power: |w|^4, in gamma or d and the hyper-parameters.
        squared_rotation: the squared effective step |w'/|w| - w/|w||^2 = |w' - w|^2 / |w|^2; for a
            small step, the squared angle in radians.
        memories: the share of itself that each momentum, and each second moment of entries, keeps
            in a step.
        assumptions: those of the derivation beside `hypotheses`.
        open: the cases that the formulas leave open, such as whether a clip acts at the
            equilibrium's |g|.

    Example:
        >>> print(equilibrium("sgd", momentum=0.0, dampening=0.0, lr=0.5).fourth_power)
        gamma**2/(weight_decay*(4 - weight_decay))
    """

    name: str
    traced: Trace
    fourth_power: sp.Expr
    squared_rotation: sp.Expr
    memories: tuple[tuple[sp.Expr, ...], tuple[sp.Expr, ...]] = ((), ())
    assumptions: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """The facts that the formulas take for granted."""
        return (*list_mean_field_hypotheses(*self.memories, self._signed), *self.assumptions)

    @property
    def _signed(self) -> bool:
        return bool(self.fourth_power.has(ArcsineSum))

    def bound(self, values: Mapping[sp.Symbol, float], dimension: int) -> float:
        """The relative error of |w| and the effective step that may be left; infinite if unknown.

        1 / d + M / (20 d) for fluctuations, where M = 1 / (1 - beta) is the longest memory of a
        momentum, and half the relative variance 2 (1 - beta2) / (1 + beta2) of a second moment of
        Gaussian entries. With one, or with a sign, d is at least 16. Measured on float64 runs with
        kappa of 1 % per step, not proved.

        Args:
            values: the hyper-parameters.
            dimension: d, the entries of a unit.
        """
        momenta, moments = (
            [float(share.subs(values)) for share in shares] for shares in self.memories
        )
        return error_bound(momenta, moments, dimension, self._signed)

    def squared_norm(
        self, values: Mapping[sp.Symbol, float], dimension: int, gamma: float
    ) -> float:
        """|w|^2 in numbers.

        Args:
            values: the hyper-parameters.
            dimension: d, the entries of a unit.
            gamma: the root mean square of |w| |g|.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers, or a case is open.
        """
        fourth = self.fourth_power.subs(values).subs({DIMENSION: dimension, GAMMA: gamma})
        return _root(self, fourth, "|w|^4", values)

    def rotation(self, values: Mapping[sp.Symbol, float]) -> float:
        """The effective step in numbers, at hyper-parameters `values`.

        Raises:
            NoEquilibriumError: the norm does not settle at these numbers.
        """
        return _root(self, self.squared_rotation.subs(values), "(effective step)^2", values)

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
        """|w|^4 and the squared effective step in text, with their leading terms for small lr."""
        return {
            "|w|^4": self._text(self.fourth_power),
            "(effective step)^2": self._text(self.squared_rotation),
        }

    def _text(self, exact: sp.Expr) -> str:
        leading = self.leading(exact) if exact.is_rational_function() else exact
        if leading == exact:
            return shorten(exact)
        return f"{shorten(exact)} ~ {show(leading)} for small lr"

    def __str__(self) -> str:
        lines = [f"equilibrium of {self.name} under decay and random gradients"]
        lines += [f"  {name:18} = {formula}" for name, formula in self.formulas().items()]
        lines += [f"  where              {case}" for case in self.open]
        return "\n".join([*lines, *(f"  assumes            {each}" for each in self.hypotheses)])

    __repr__ = __str__


def _root(law: Equilibrium, square: sp.Expr, what: str, values: Mapping[sp.Symbol, float]) -> float:
    """The root of a quantity, which is one positive number at hyper-parameters `values`.

    Raises:
        NoEquilibriumError: it is none.
    """
    if square.free_symbols:
        lacking = ", ".join(sorted(map(str, square.free_symbols)))
        where = "".join(f"; {case}" for case in law.open)
        raise NoEquilibriumError(
            f"{law.name}: {what} depends on {lacking}, which has no one number{where}"
        )
    number = complex(math.nan) if square.is_finite is False else complex(square)
    if number.imag or not 0 < number.real < math.inf:
        shown = ", ".join(f"{s}={v:g}" for s, v in values.items())
        raise NoEquilibriumError(
            f"{law.name}: the norm does not settle at {shown}: {what} would be {number:.4g}"
        )
    return math.sqrt(number.real)


LONG = 120
"""Characters of a formula beyond which its repeated parts get names."""


def shorten(expression: sp.Expr) -> str:
    """A formula in text; in a long one the parts that occur twice have names."""
    if len(show(expression)) <= LONG:
        return show(expression)
    names = (sp.Symbol(f"q{n}") for n in itertools.count(1))
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
        >>> print(equilibrium("sgd", dampening=0.0).squared_rotation)
        2*lr*weight_decay/(momentum + 1)
    """
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    if isinstance(recipe, Trace):
        traced = recipe
    else:  # the recipe and not its name, which may stand for another one later
        traced = _traced(resolve_recipe(recipe), tuple(sorted(given.items())))
    try:
        with budget(traced.name):
            return _equilibrium(traced)
    except BudgetError as error:
        raise NoEquilibriumError(str(error)) from error


@cache
def _traced(recipe: Recipe, given: tuple[tuple[str, Any], ...]) -> Trace:
    return trace(recipe, **dict(given))


@cache
def _equilibrium(traced: Trace) -> Equilibrium:
    general = _with_symbols(traced) if traced.scalar_states else traced
    held = {general.numbers[name]: number for name, number in traced.numbers.items()}
    law = norm_growth(general)
    if law.constant:
        raise NoEquilibriumError(f"{traced.name}: the norm never changes")
    if law.law.rhs == W + S:
        raise NoEquilibriumError(f"{traced.name}: without decay the norm does not settle")
    step = read_mean_field_step(general)
    squared, gradient, moved = find_stationary_point(step, law.kappa, held)
    # Without a second moment |w| = 1, where |g| = gamma / |w| ties |w|^4 to |g|^2.
    fourth = normalize_signs(GAMMA**2 / gradient if squared == 1 else squared**2)
    rotation = normalize_signs(moved / squared)
    if fourth == 0 or fourth.has(sp.zoo, sp.oo):
        raise NoEquilibriumError(f"{traced.name}: the norm does not settle")
    assumptions = tuple(step.facts.assumptions)
    cases = _cases(step, held, fourth, rotation)
    memories = tuple(
        tuple(sp.cancel(share.subs(held)) for share in shares) for shares in _memories(step)
    )
    return Equilibrium(
        traced.name, traced, fourth, rotation, cast(Any, memories), assumptions, cases
    )


def _memories(step: OneStep) -> tuple[list[sp.Expr], list[sp.Expr]]:
    """The share of itself that each momentum keeps, and each second moment of entries."""
    buffers = step.buffers
    momenta = _shares(sp.Matrix([[step.states[m][n] for n in buffers] for m in buffers]))
    moment = find_second_moment(step)
    after = sp.Integer(0) if moment is None else cast(sp.Expr, step.states[moment.name])
    entrywise = after.has(DIMENSION)
    return momenta, [sp.cancel(sp.diff(after, moment))] if entrywise else []


def _shares(kept: sp.Matrix) -> list[sp.Expr]:
    """The magnitudes of the eigenvalues of the matrix that momenta are multiplied by in a step.

    Two momenta that feed each other keep more than the diagonal says.
    """
    diagonal = [sp.cancel(kept[n, n]) for n in range(kept.rows)]
    x = sp.Dummy()
    alone = sp.Mul(*(x - share for share in diagonal))
    if not kept or sp.expand(kept.charpoly(x).as_expr() - alone) == 0:
        return diagonal
    return list(dict.fromkeys(sp.Abs(sp.simplify(root)) for root in kept.eigenvals()))


def _with_symbols(traced: Trace) -> Trace:
    """The trace with symbols in place of given numbers, which are substituted in the result.

    Sums that hold (9/10)^t would be brought to a denominator of 10^t.
    """
    return replace(traced, numbers={n: symbol_of(n, x) for n, x in traced.intervals.items()})


def _cases(step: OneStep, held: dict[sp.Symbol, sp.Expr], *formulas: sp.Expr) -> tuple[str, ...]:
    """The meanings of the names of open cases in `formulas`."""
    meanings = step.facts.definitions
    cases = []
    for name in sorted(sp.Tuple(*formulas).free_symbols & {*meanings}, key=str):
        meaning = step.facts.spell_out(meanings[name])
        cases.append(f"{name} is {show(sp.piecewise_fold(meaning.subs(held)))}")
    return tuple(cases)


def without_eps(recipe: str | Recipe) -> dict[str, float]:
    """eps at 0, where a recipe has one: it spoils closed forms, and is small beside a moment."""
    return {"eps": 0.0} if "eps" in bind(recipe).defaults else {}


def rotational_rate(recipe: str | Recipe, **hyper_parameters: Any) -> Callable[[float], float]:
    """The learning rate of `rotational(recipe)`, as a function of the learning rate of the recipe.

    The equilibrium that is derived from the recipe's code has an effective step e, the length of
    the chord from w / |w| to w' / |w'|. A step of `rotational` turns by arctan(rate) on average,
    and exactly without `zero_mean` and memory, so

        rate = tan(2 arcsin(e / 2)),    e = sqrt(2 lr weight_decay (1 - beta1) / (1 + beta1))

    for AdamW and a small lr. A schedule of the rate is then the function of one of lr.

    Args:
        recipe: its name, or a function.
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
        chord = law.rotation({symbol: lr})
        if chord >= math.sqrt(2):
            raise NoEquilibriumError(f"{law.name}: at lr={lr:g} a step turns by a right angle")
        return math.tan(2 * math.asin(chord / 2))

    return rate


def growth_ratio(recipe: str | Recipe | Trace | NormGrowth, **given: Any) -> sp.Expr:
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
        >>> growth_ratio("sgd", weight_decay=0.0)
        (momentum + 1)/(1 - momentum)
    """
    law = recipe if isinstance(recipe, NormGrowth) else norm_growth(recipe, **given)
    if law.constant:
        return sp.Integer(0)
    if law.cross == 0:
        return sp.Integer(1)
    keep, cross = (drop_transients(e, law.step) for e in (1 - law.kappa, law.cross))
    at_rest, squared = _at_rest(law)
    return normalize_signs(sp.cancel(1 + 2 * keep * cross.subs(at_rest) / squared))


def _at_rest(law: NormGrowth) -> tuple[dict[sp.Symbol, sp.Expr], sp.Expr]:
    """The cross terms in the mean over many steps, and |s|^2.

    Their recursions give them where these hold no product but |s|^2; otherwise the products of the
    buffers are solved for too.
    """
    at_rest: dict[sp.Symbol, sp.Expr] = {}
    unknowns = sorted(law.unknowns, key=str)
    if unknowns and not law.open_because:
        equations = [tidy(drop_transients(law.recursion[u], law.step) - u) for u in unknowns]
        with contextlib.suppress(NonlinearError):
            for values in sp.linsolve(equations, unknowns):
                at_rest = dict(zip(unknowns, values, strict=True))
    symbols = (s for value in at_rest.values() for s in value.free_symbols)
    if not at_rest or any(str(s).endswith(",s>") for s in symbols):
        return find_stationary_buffers(law)
    return at_rest, S
