"""Two recipes side by side: laws, effective decay, growth, and the settings of equal turns."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm_theory.algebra.hyper_parameters import (
    are_numbers,
    is_number,
    resolve_recipe,
    structure_of,
    structure_of_run,
)
from spherenorm_theory.algebra.printing import SHORT, show
from spherenorm_theory.algebra.statement import COLUMNS
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth, verified_trace
from spherenorm_theory.laws.turn import turn_of
from spherenorm_theory.report.rows import Row, Section

LABEL = 11
SWITCHED_ON = {"weight_decay": 0.01, "momentum": 0.9}
"""The hyper-parameters at which a recipe is compared whose default is 0."""
RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Between two of these a learning rate is looked for."""


@dataclass(frozen=True)
class Side:
    """One of the two recipes.

    Attributes:
        law: of its norm.
        rest: its equilibrium; None if it has none.
        settings: the numbers at which its turn is taken.
        traced: the recipe at these settings.
    """

    law: Law
    rest: Equilibrium | None
    settings: dict[str, Any]
    traced: Trace

    @staticmethod
    def of(recipe: Recipe, own: dict[str, Any]) -> Side:
        """The side of a recipe, with hyper-parameters that are held."""
        law, known, rest = norm_growth(recipe, **own), bind(recipe).defaults, None
        with contextlib.suppress(ValueError):
            rest = equilibrium(recipe, **structure_of(own), **without_eps(recipe))
        settings = {n: x for n, x in known.items() if (is_number(x) and x != 0) or are_numbers(x)}
        settings |= {n: x for n, x in SWITCHED_ON.items() if known.get(n) == 0}
        settings = {"lr": 0.1, **settings, **own, **without_eps(recipe)}
        traced = verified_trace(recipe, **structure_of_run(recipe, settings))
        return Side(law, rest, settings, traced)

    def turn(self, lr: float) -> float:
        """The turn per step at rest, at a learning rate; nan where there is none."""
        with contextlib.suppress(ValueError):
            return turn_of(self.traced, self.traced.values(**{**self.settings, "lr": lr}))
        return math.nan


def comparison_report(first: str | Recipe, second: str | Recipe, **given: Any) -> Section:
    """The comparison of two recipes.

    Raises:
        ValueError: no such recipe, or neither has a hyper-parameter that is given.

    Example:
        >>> print(comparison_report("sgdw", "sgdp").title)
        sgdw and sgdp
    """
    recipes = [resolve_recipe(each) for each in (first, second)]
    known = [bind(each).defaults for each in recipes]
    title = " and ".join(bind(each).name for each in recipes)
    if unknown := given.keys() - known[0].keys() - known[1].keys():
        raise ValueError(f"{title} have no hyper-parameter {min(unknown)!r}")
    own = [{n: x for n, x in given.items() if n in each} for each in known]
    sides = [*map(Side.of, recipes, own)]
    return Section(title, [Row(title, _side_by_side(*sides), "")])


def _side_by_side(a: Side, b: Side) -> str:
    """Two laws in two columns."""
    width, lines = (COLUMNS - LABEL - 4) // 2, list[str]()
    for (label, left), (_, right) in zip(_cells(a), _cells(b), strict=True):
        columns = zip_longest([label], _fill(left, width), _fill(right, width), fillvalue="")
        lines += [f"{head:{LABEL}}  {x:{width}}  {y}".rstrip() for head, x, y in columns]
    return "\n".join([*lines, "", *_equal_turns(a, b)])


def _fill(text: str, width: int = COLUMNS) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _cells(side: Side) -> Iterator[tuple[str, str]]:
    """The lines of one side, each with its label."""
    law, lines = side.law, side.rest.formulas() if side.rest is not None else {}
    keep = "" if law.kappa == 0 else f"({show(law.keep)}) "
    step = f"{keep}w + s, s = {show(law.drive)}" if not law.constant else show(law.step.weight)
    shown = law.growth is None and law.cross != 0 and not law.constant
    norm = f"~ {lines['|w|']}" if "|w|" in lines else "numbers alone" if lines else "none"
    yield "", law.name.upper()
    yield "step", f"w' = {step}"
    yield "norm", show(law.law)
    yield "decay", show(law.kappa) if not law.constant else "none: held"
    yield "growth", describe_growth(law) + (f"; <w, s> = {show(law.cross)}" if shown else "")
    yield "|w| at rest", "held" if law.constant and not lines else norm
    others = ", ".join(f"{n}={x}" for n, x in side.settings.items() if n not in ("lr", "eps"))
    turn, square = side.turn(side.settings["lr"]), lines.get("turn^2", "")
    number = f"{turn:.4g} rad a step at lr={side.settings['lr']:g}, {others}"
    number = "no number" if math.isnan(turn) else number
    formula = lines.get("turn", f"sqrt({square})" if 0 < len(square) < 60 else "")
    yield "turn", f"{formula}; {number}" if formula else number


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


def _equal_turns(a: Side, b: Side) -> list[str]:
    """The settings at which both turn equally: in symbols for small lr, and in numbers."""
    lines, forms = [], [*_small_turns(a, b)]
    if len(forms) == 2:
        equal = f"equal turns for small lr where {show(sp.Eq(*forms, evaluate=False))}"
        lines += _fill(f"{equal} (1: {a.law.name}, 2: {b.law.name})")
    for of, to in ((a, b), (b, a)):
        lr = of.settings["lr"]
        turn = of.turn(lr)
        if not math.isnan(found := _rate_of_turn(to, turn)):
            at = f"{of.law.name} does at lr={lr:g} ({turn:.4g} rad a step)"
            lines += _fill(f"{to.law.name} turns as {at} where its own lr is {found:.4g}")
    return lines or ["no settings of equal turns: one of the two has no turn at rest"]


def _small_turns(*sides: Side) -> Iterator[sp.Expr]:
    """The squared turns for small lr, with the number of its recipe behind each hyper-parameter."""
    for n, rest in enumerate((side.rest for side in sides), 1):
        if rest is not None and rest.squared_rotation.is_rational_function():
            small = rest.leading(rest.squared_rotation)
            names = {s: f"{SHORT.get(s.name, s.name)}[{n}]" for s in small.free_symbols}
            yield small.subs({s: sp.Symbol(name, positive=True) for s, name in names.items()})


def _rate_of_turn(side: Side, turn: float) -> float:
    """The learning rate at which a recipe turns so; nan where there is none."""
    from scipy.optimize import brentq  # seconds to import

    def off(power: float) -> float:
        found = side.turn(math.exp(power))
        return math.log(found / turn) if found > 0 else math.nan

    grid = [(x, off(x)) for x in map(math.log, RATES)] if turn > 0 else []
    for (low, under), (high, over) in pairwise(grid):
        if under <= 0 <= over:
            return float(math.exp(brentq(off, low, high, xtol=1e-8)))
    return math.nan
