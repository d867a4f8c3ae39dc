"""Two recipes side by side: laws, effective decay, growth, and the settings of equal turns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.hyper_parameters import (
    is_number,
    resolve_recipe,
    structure_of,
    structure_of_run,
)
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.trace import TraceError
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError
from spherenorm_theory.laws.turn import turn_at_rest
from spherenorm_theory.report.rows import Job, Row

COLUMNS = 80
LABEL = 11
DECAY = 0.01
"""The weight decay at which a recipe is compared whose default is 0."""


@dataclass(frozen=True)
class Side:
    """One of the two recipes.

    Attributes:
        recipe: the recipe.
        given: hyper-parameters that are held.
        law: of its norm.
        rest: its equilibrium; None if it has none.
        settings: the numbers at which its turn is taken.
    """

    recipe: Recipe
    given: dict[str, Any]
    law: Law
    rest: Equilibrium | None
    settings: dict[str, Any]

    @staticmethod
    def of(recipe: str | Recipe, **given: Any) -> Side:
        """The side of a recipe."""
        function = resolve_recipe(recipe)
        known = bind(function).defaults
        own = {n: x for n, x in given.items() if n in known}
        law = norm_growth(function, **own)
        try:
            rest = equilibrium(function, **structure_of(own), **without_eps(function))
        except (NoEquilibriumError, TraceError):
            rest = None
        settings = {n: x for n, x in known.items() if is_number(x) and x != 0 and n != "eps"}
        settings |= {"betas": known["betas"]} if "betas" in known else {}
        settings |= {"weight_decay": DECAY} if known.get("weight_decay") == 0 else {}
        settings |= {"momentum": 0.9} if known.get("momentum") == 0 else {}
        return Side(function, own, law, rest, {**settings, **own})

    def turn(self, lr: float) -> float:
        """The turn per step at rest, at a learning rate; nan where there is none."""
        values = {**self.settings, "lr": lr}
        held = {**structure_of_run(self.recipe, values), **without_eps(self.recipe)}
        try:
            law = equilibrium(self.recipe, **held)
            numbers = law.traced.values(**{**values, **held})
            return 2 * math.asin(min(law.rotation(numbers) / 2, 1.0))
        except (NoEquilibriumError, TraceError, ValueError):
            pass
        try:
            return turn_at_rest(self.recipe, **values)
        except (NoEquilibriumError, TraceError, ValueError):
            return math.nan

    @property
    def shown(self) -> str:
        """The settings in text, without the learning rate."""
        return ", ".join(f"{n}={x}" for n, x in self.settings.items() if n != "lr")


def comparison_jobs(first: str | Recipe, second: str | Recipe, **given: Any) -> list[Job]:
    """The comparison of two recipes, as one job.

    Raises:
        ValueError: no such recipe, or neither has a hyper-parameter that is given.

    Example:
        >>> [job.name for job in comparison_jobs("sgdw", "sgdp")]
        ['sgdw and sgdp']
    """
    sides = [Side.of(each, **given) for each in (first, second)]
    if unknown := given.keys() - sides[0].given.keys() - sides[1].given.keys():
        names = " and ".join(side.law.name for side in sides)
        raise ValueError(f"{names} have no hyper-parameter {min(unknown)!r}")
    title = " and ".join(side.law.name for side in sides)
    return [Job(title, title, lambda: [Row(title, title, side_by_side(*sides), "")])]


def side_by_side(a: Side, b: Side) -> str:
    """Two laws in two columns."""
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("", lambda side: side.law.name.upper()),
        ("step", lambda side: _step(side.law)),
        ("norm", lambda side: show(side.law.law)),
        ("decay", lambda side: show(side.law.kappa) if not side.law.constant else "none: held"),
        ("growth", _growth),
        ("|w| at rest", _norm_at_rest),
        ("turn", _turn),
    ]
    width = (COLUMNS - LABEL - 4) // 2
    lines = []
    for label, cell in rows:
        cells = [_fill(cell(side), width) for side in (a, b)]
        height = max(map(len, cells))
        for n in range(height):
            left, right = (c[n] if n < len(c) else "" for c in cells)
            lines.append(f"{label if n == 0 else '':{LABEL}}  {left:{width}}  {right}".rstrip())
    return "\n".join([*lines, "", *_equal_turns(a, b)])


def _fill(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _step(law: Law) -> str:
    if law.constant:
        return f"w' = {show(law.step.weight)}"
    keep = "" if law.kappa == 0 else f"({show(law.keep)}) "
    return f"w' = {keep}w + s, s = {show(law.drive)}"


def _growth(side: Side) -> str:
    law, text = side.law, describe_growth(side.law)
    shown = law.growth is None and law.cross != 0 and not law.constant
    return f"{text}; <w, s> = {show(law.cross)}" if shown else text


def describe_growth(law: Law) -> str:
    """The growth that a law adds to the norm that decay leaves, and what is known of it.

    Example:
        >>> print(describe_growth(norm_growth("sgdp")))
        |s|^2 alone: <w, s> = 0
    """
    if law.constant:
        return f"none: |w'| = {show(law.length)}"
    if law.cross == 0:
        return "|s|^2 alone: <w, s> = 0"
    if law.open_because:
        return f"|s|^2 + 2 <w, s>, open: {law.open_because.rpartition('; so ')[0]}"
    if law.growth is not None:
        A, B = law.growth
        return f"|s|^2 + 2 <w, s>, where <w', s'> = ({show(A)}) <w, s> + ({show(B)}) |s|^2"
    carried = ", ".join(sorted(map(show, law.unknowns)))
    return f"|s|^2 + 2 <w, s>, from the recursion of {carried}"


def _norm_at_rest(side: Side) -> str:
    if side.rest is None:
        return "held" if side.law.constant else "none"
    lines = side.rest.formulas()
    return next((f"~ {text}" for left, text in lines.items() if left == "|w|"), "numbers alone")


def _turn(side: Side) -> str:
    formula = ""
    if side.rest is not None:
        lines = side.rest.formulas()
        formula = lines.get("turn", "") or (
            f"sqrt({lines['turn^2']})" if len(lines["turn^2"]) < 60 else ""
        )
    lr = side.settings.get("lr", 0.1)
    found = side.turn(lr)
    number = f"{found:.4g} rad a step at lr={lr:g}, {side.shown}"
    number = "no number" if math.isnan(found) else number
    return f"{formula}; {number}" if formula else number


def _equal_turns(a: Side, b: Side) -> list[str]:
    """The settings at which both turn equally: in symbols for small lr, and in numbers."""
    lines = []
    forms = [_small_turn(side.rest) for side in (a, b)]
    if None not in forms:
        one, two = (_tagged(x, n) for x, n in zip(forms, (1, 2), strict=True))
        equal = f"equal turns for small lr where {show(sp.Eq(one, two, evaluate=False))}"
        lines += _fill(f"{equal} (1: {a.law.name}, 2: {b.law.name})", COLUMNS)
    for of, to in ((a, b), (b, a)):
        lr = of.settings.get("lr", 0.1)
        turn, found = of.turn(lr), math.nan
        if not math.isnan(turn):
            found = _rate_of_turn(to, turn)
        if not math.isnan(found):
            text = f"{to.law.name} turns as {of.law.name} does at lr={lr:g} ({turn:.4g} rad a step)"
            lines += _fill(f"{text} where its own lr is {found:.4g}", COLUMNS)
    return lines or ["no settings of equal turns: one of the two has no turn at rest"]


def _small_turn(rest: Equilibrium | None) -> sp.Expr | None:
    """The squared turn for small lr, where it is a rational function."""
    if rest is None or not rest.squared_rotation.is_rational_function():
        return None
    return rest.leading(rest.squared_rotation)


def _tagged(x: sp.Expr, n: int) -> sp.Expr:
    """A formula with the number of its recipe behind each hyper-parameter."""
    names = {"weight_decay": "wd", "momentum": "beta", "wd_ratio": "ratio", "dampening": "tau"}
    return x.subs({s: sp.Symbol(f"{names.get(s.name, s.name)}[{n}]", positive=True)
                   for s in x.free_symbols})  # fmt: skip


def _rate_of_turn(side: Side, turn: float) -> float:
    """The learning rate at which a recipe turns so."""
    from scipy.optimize import brentq  # seconds to import

    def off(power: float) -> float:
        found = side.turn(math.exp(power))
        return math.log(found / turn) if found > 0 else math.nan

    grid = [(x, off(x)) for x in map(math.log, (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0))]
    for (low, under), (high, over) in pairwise(grid):
        if under <= 0 <= over:
            return float(math.exp(brentq(off, low, high, xtol=1e-8)))
    return math.nan
