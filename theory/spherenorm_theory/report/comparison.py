"""Two recipes side by side: laws, effective decay, growth, and the settings of equal turns."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
from spherenorm_theory.algebra.recording import trace
from spherenorm_theory.algebra.statement import COLUMNS
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.turn import turn_of
from spherenorm_theory.report.rows import Job, Row

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
        settings = {n: x for n, x in {**settings, **own}.items() if n != "eps"}
        held = {**structure_of_run(recipe, settings), **without_eps(recipe)}
        return Side(law, rest, settings, trace(recipe, **held))

    @property
    def lr(self) -> float:
        """The learning rate of the settings."""
        return float(self.settings.get("lr", 0.1))

    def turn(self, lr: float) -> float:
        """The turn per step at rest, at a learning rate; nan where there is none."""
        try:
            held = {
                n: x for n, x in self.traced.hyper_parameters.items() if n in self.traced.structure
            }
            return turn_of(self.traced, self.traced.values(**{**self.settings, "lr": lr, **held}))
        except ValueError:
            return math.nan


def comparison_jobs(first: str | Recipe, second: str | Recipe, **given: Any) -> list[Job]:
    """The comparison of two recipes, as one job.

    Raises:
        ValueError: no such recipe, or neither has a hyper-parameter that is given.

    Example:
        >>> [job.name for job in comparison_jobs("sgdw", "sgdp")]
        ['sgdw and sgdp']
    """
    recipes = [resolve_recipe(each) for each in (first, second)]
    known = [bind(each).defaults for each in recipes]
    title = " and ".join(bind(each).name for each in recipes)
    if unknown := given.keys() - known[0].keys() - known[1].keys():
        raise ValueError(f"{title} have no hyper-parameter {min(unknown)!r}")
    own = [{n: x for n, x in given.items() if n in each} for each in known]
    sides = [*map(Side.of, recipes, own)]
    return [Job(title, title, lambda: [Row(title, title, side_by_side(*sides), "")])]


def side_by_side(a: Side, b: Side) -> str:
    """Two laws in two columns."""
    rows: dict[str, Callable[[Side], str]] = {
        "": lambda side: side.law.name.upper(),
        "step": lambda side: _step(side.law),
        "norm": lambda side: show(side.law.law),
        "decay": lambda side: show(side.law.kappa) if not side.law.constant else "none: held",
        "growth": lambda side: _growth(side.law),
        "|w| at rest": _norm_at_rest,
        "turn": _turn,
    }
    width = (COLUMNS - LABEL - 4) // 2
    lines = []
    for label, cell in rows.items():
        cells = [_fill(cell(side), width) for side in (a, b)]
        for n in range(max(map(len, cells))):
            left, right = (c[n] if n < len(c) else "" for c in cells)
            lines.append(f"{label if n == 0 else '':{LABEL}}  {left:{width}}  {right}".rstrip())
    return "\n".join([*lines, "", *_equal_turns(a, b)])


def _fill(text: str, width: int = COLUMNS) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _step(law: Law) -> str:
    if law.constant:
        return f"w' = {show(law.step.weight)}"
    keep = "" if law.kappa == 0 else f"({show(law.keep)}) "
    return f"w' = {keep}w + s, s = {show(law.drive)}"


def _growth(law: Law) -> str:
    shown = law.growth is None and law.cross != 0 and not law.constant
    return describe_growth(law) + (f"; <w, s> = {show(law.cross)}" if shown else "")


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
    formula = side.rest.formulas().get("|w|")
    return f"~ {formula}" if formula else "numbers alone"


def _turn(side: Side) -> str:
    found, shown = (
        side.turn(side.lr),
        ", ".join(f"{n}={x}" for n, x in side.settings.items() if n != "lr"),
    )
    number = f"{found:.4g} rad a step at lr={side.lr:g}, {shown}"
    number = "no number" if math.isnan(found) else number
    lines = side.rest.formulas() if side.rest is not None else {"turn^2": ""}
    short = f"sqrt({lines['turn^2']})" if 0 < len(lines["turn^2"]) < 60 else ""
    formula = lines.get("turn", short)
    return f"{formula}; {number}" if formula else number


def _equal_turns(a: Side, b: Side) -> list[str]:
    """The settings at which both turn equally: in symbols for small lr, and in numbers."""
    lines, forms = [], [*_small_turns(a, b)]
    if len(forms) == 2:
        equal = f"equal turns for small lr where {show(sp.Eq(*forms, evaluate=False))}"
        lines += _fill(f"{equal} (1: {a.law.name}, 2: {b.law.name})")
    for of, to in ((a, b), (b, a)):
        turn = of.turn(of.lr)
        if not math.isnan(found := _rate_of_turn(to, turn)):
            text = (
                f"{to.law.name} turns as {of.law.name} does at lr={of.lr:g} ({turn:.4g} rad a step)"
            )
            lines += _fill(f"{text} where its own lr is {found:.4g}")
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
